"""Actions in the UI, in a real browser."""

import importlib.util
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.pipeline.defs.served.server import Server, wait

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
MARKS = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        CHROMIUM is None, reason="there is no chromium here (Debian: apt-get install chromium)"
    ),
    pytest.mark.skipif(
        importlib.util.find_spec("playwright") is None,
        reason="there is no playwright here (pip install .[browser])",
    ),
]
"""Marks of the modules that need a browser."""
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-sync", "--disable-background-networking", "--disable-component-update"),
]


@contextmanager
def browsing() -> "Iterator[Page]":
    """Open a page in a browser, and require that it has logged no error at the end."""
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


def visible(page: "Page", text: str) -> "Locator":
    return page.locator(f'text="{text}" >> visible=true').last


def go(page: "Page", server: Server, path: str, text: str) -> None:
    """Open a page and wait until it shows a text."""
    page.goto(server.url + path, wait_until="domcontentloaded")
    visible(page, text).wait_for()


def newest(server: Server) -> str:
    """Return the id of the run that was launched last, "" where there is none."""
    query = "{ runsOrError(limit: 1) { ... on Runs { results { id } } } }"
    found = server.ask(query)["runsOrError"]["results"]
    return str(found[0]["id"]) if found else ""


def wait_for_run(server: Server, before: str) -> str:
    """Wait until another run than `before` is the newest, and return its id."""
    return str(wait(lambda: (found := newest(server)) != before and found, 60))


def open_launchpad(page: "Page") -> None:
    """Open the launchpad from the menu; retry if the page redraws and closes the menu."""
    from playwright.sync_api import TimeoutError as TooLate

    for left in reversed(range(6)):
        try:
            page.locator('button:has([aria-label="arrow_drop_down"])').first.click()
            visible(page, "Open launchpad").click(timeout=5_000)
            page.locator("text=/^Launchpad \\(configure/ >> visible=true").wait_for(timeout=10_000)
            visible(page, "No errors").wait_for()
        except TooLate:
            if not left:
                raise
            page.keyboard.press("Escape")
        else:
            return


def write(page: "Page", config: str) -> None:
    """Write the launchpad's configuration; retry if the page overwrites it with defaults."""
    # a job's page has another editor, to search, before it
    editor = "[...document.querySelectorAll('.CodeMirror')].at(-1).CodeMirror"
    for _ in range(10):
        page.evaluate(f"text => {editor}.setValue(text)", config)
        page.wait_for_timeout(3000)
        if page.evaluate(f"{editor}.getValue()") == config:
            break
    else:
        pytest.fail("the launchpad does not keep what is written")
    visible(page, "No errors").wait_for()


def launch(
    page: "Page",
    server: Server,
    asset: str,
    config: str = "",
    partition: str = "",
    keep: Callable[[bytes], None] = lambda taken: None,
    folder: str = "assets",
) -> str:
    """Press Materialize on the page of an asset or a job, choose the partition or write the
    configuration, and return the run's id.

    `keep` gets a picture of the launchpad.
    """
    before = newest(server)
    go(page, server, f"/{folder}/{asset}", asset)
    if partition:
        page.get_by_role("button", name="Materialize").first.click()
        visible(page, "Select a partition or create one").click()
        page.get_by_placeholder("Filter partitions").fill(partition)
        visible(page, partition).click()
        page.keyboard.press("Escape")
        page.locator('button:has-text("Launch")').last.click()
    else:
        open_launchpad(page)
        write(page, config)
        keep(page.screenshot())
        page.locator('button:has-text("Materialize")').last.click()
    return wait_for_run(server, before)


def shown_pictures(page: "Page", row: str) -> list[int]:
    """Return the widths of the pictures in a Markdown entry of the metadata."""
    entry = page.locator(f'tr:has(:text-is("{row}")) >> visible=true').last
    widths = "it => [...it.querySelectorAll('img')].map(img => img.naturalWidth)"
    return list(wait(lambda: (found := entry.evaluate(widths)) and all(found) and found, 30))
