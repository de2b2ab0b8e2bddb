"""Actions of a user in the UI, in a real browser."""

import importlib.util
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.pipeline.defs.served.server import Server, wait_for

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
MARKS = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        CHROMIUM is None, reason="chromium is not installed (Debian: apt-get install chromium)"
    ),
    pytest.mark.skipif(
        importlib.util.find_spec("playwright") is None,
        reason="playwright is not installed (pip install .[browser])",
    ),
]
"""Marks of test modules that need a browser."""
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-sync", "--disable-background-networking", "--disable-component-update"),
]


@contextmanager
def browsing() -> "Iterator[Page]":
    """Yield a page of a browser, and check at the end that it has logged no error."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.set_default_timeout(60_000)
        errors: list[str] = []
        page.on(
            "console",
            lambda message: errors.append(message.text) if message.type == "error" else None,
        )
        yield page
        browser.close()
        assert not errors, errors


def find_visible(page: "Page", text: str) -> "Locator":
    return page.locator(f'text="{text}" >> visible=true').last


def open_page(page: "Page", server: Server, path: str, text: str) -> None:
    """Open a page and wait until it shows a text."""
    page.goto(server.url + path, wait_until="domcontentloaded")
    find_visible(page, text).wait_for()


def find_newest_run(server: Server) -> str:
    """Return the ID of the newest run, "" if there are no runs."""
    query = "{ runsOrError(limit: 1) { ... on Runs { results { id } } } }"
    found = server.ask(query)["runsOrError"]["results"]
    return str(found[0]["id"]) if found else ""


def wait_for_run(server: Server, before: str) -> str:
    """Wait until a run other than `before` is the newest, and return its ID."""
    return str(wait_for(lambda: (run := find_newest_run(server)) != before and run, 60))


def open_launchpad(page: "Page") -> None:
    """Open the launchpad from the menu; retry if the page redraws and closes the menu."""
    from playwright.sync_api import TimeoutError as PlaywrightTimeout

    for attempts_left in reversed(range(6)):
        try:
            page.locator('button:has([aria-label="arrow_drop_down"])').first.click()
            find_visible(page, "Open launchpad").click(timeout=5_000)
            page.locator("text=/^Launchpad \\(configure/ >> visible=true").wait_for(timeout=10_000)
            find_visible(page, "No errors").wait_for()
        except PlaywrightTimeout:
            if not attempts_left:
                raise
            page.keyboard.press("Escape")
        else:
            return


def write_config(page: "Page", config: str) -> None:
    """Write the launchpad's configuration; retry if the page overwrites it with defaults."""
    # the last one, because a job's page has another editor, for searching
    editor = "[...document.querySelectorAll('.CodeMirror')].at(-1).CodeMirror"
    for _ in range(10):
        page.evaluate(f"text => {editor}.setValue(text)", config)
        page.wait_for_timeout(3000)
        if page.evaluate(f"{editor}.getValue()") == config:
            break
    else:
        pytest.fail("the launchpad does not keep the configuration")
    find_visible(page, "No errors").wait_for()


def launch(
    page: "Page",
    server: Server,
    asset: str,
    config: str = "",
    partition: str = "",
    keep: Callable[[bytes], None] = lambda screenshot: None,
    folder: str = "assets",
) -> str:
    """Press Materialize on the page of an asset or a job, and return the run's ID.

    Before, choose the partition, or write the configuration and give `keep` a screenshot of it.
    """
    before = find_newest_run(server)
    open_page(page, server, f"/{folder}/{asset}", asset)
    if partition:
        page.get_by_role("button", name="Materialize").first.click()
        find_visible(page, "Select a partition or create one").click()
        page.get_by_placeholder("Filter partitions").fill(partition)
        find_visible(page, partition).click()
        page.keyboard.press("Escape")
        page.locator('button:has-text("Launch")').last.click()
    else:
        open_launchpad(page)
        write_config(page, config)
        keep(page.screenshot())
        page.locator('button:has-text("Materialize")').last.click()
    return wait_for_run(server, before)


def read_picture_widths(page: "Page", row: str) -> list[int]:
    """Wait for the pictures in a Markdown entry of the metadata, and return their widths."""
    entry = page.locator(f'tr:has(:text-is("{row}")) >> visible=true').last
    widths = "it => [...it.querySelectorAll('img')].map(img => img.naturalWidth)"
    return list(wait_for(lambda: (read := entry.evaluate(widths)) and all(read) and read, 30))
