"""The UI as a person uses it, in a real browser: materialise, read, watch, stop."""

import importlib.util
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.pipeline.defs.conftest import prepared, random_pgn
from tests.pipeline.defs.served.server import Server, serving, wait

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium here (Debian: apt-get install chromium)"),
    pytest.mark.skipif(
        importlib.util.find_spec("playwright") is None, reason="there is no playwright here (pip install .[browser])"
    ),
]
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
POSITIONS = "ops: {positions: {config: {workers: 1, ingest: {test_share: 0.2, val_share: 0.2}}}}"
TRAIN = "ops: {checkpoint: {config: {name: %s, train: {minutes: %s, steps: 0, batch_size: 64, threads: 1}}}}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        datasets = prepared(tmp_path_factory.mktemp("browsed"), monkeypatch)
        (datasets / "dumps" / "small.pgn").write_text(random_pgn(200))
        with serving() as server:
            run = server.launch("register_dumps", {})
            wait(lambda: server.status(run) == "SUCCESS", 60)
            yield server


@pytest.fixture(scope="module")
def page(server: Server) -> Iterator["Page"]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.set_default_timeout(30_000)
        errors: list[str] = []
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        yield page
        browser.close()
        assert not errors, errors


def visible(page: "Page", text: str) -> "Locator":
    return page.locator(f'text="{text}" >> visible=true').last


def go(page: "Page", server: Server, path: str, text: str) -> None:
    """Open a page and wait until it shows a text."""
    page.goto(server.url + path, wait_until="domcontentloaded")
    visible(page, text).wait_for()


def configure(page: "Page", config: str) -> None:
    """Write a launchpad's configuration and save it."""
    visible(page, "Add config").click()
    page.locator(".CodeMirror").wait_for()
    page.evaluate("text => document.querySelector('.CodeMirror').CodeMirror.setValue(text)", config)


def newest(server: Server) -> str:
    """Give the id of the run that was launched last."""
    return str(
        server.ask("{ runsOrError(limit: 1) { ... on Runs { results { id } } } }")["runsOrError"]["results"][0]["id"]
    )


def open_launchpad(page: "Page") -> None:
    """Open it from the menu, again where the page has drawn itself anew meanwhile and closed that."""
    from playwright.sync_api import TimeoutError as TooLate

    for left in reversed(range(6)):
        try:
            page.locator('button:has([aria-label="arrow_drop_down"])').first.click()
            visible(page, "Open launchpad").click(timeout=5_000)
            page.locator(".CodeMirror").wait_for(timeout=10_000)
        except TooLate:
            if not left:
                raise
            page.keyboard.press("Escape")
        else:
            return


def launch(page: "Page", server: Server, asset: str, config: str, partition: str = "") -> str:
    """Press Materialize, fill the dialog in, and give the run's id."""
    before = newest(server)
    go(page, server, f"/assets/{asset}", asset)
    if not partition:
        open_launchpad(page)
    else:
        page.get_by_role("button", name="Materialize").first.click()
        visible(page, "Select a partition or create one").click()
        page.get_by_placeholder("Filter partitions").fill(partition)
        visible(page, partition).click()
        page.keyboard.press("Escape")
        if config:
            visible(page, "Config").click()
            configure(page, config)
            visible(page, "Save config").click()
        page.locator('button:has-text("Launch")').last.click()
    if not partition:
        page.evaluate("text => document.querySelector('.CodeMirror').CodeMirror.setValue(text)", config)
        page.locator('button:has-text("Materialize")').last.click()
    return str(wait(lambda: (found := newest(server)) != before and found, 30))


def shown_pictures(page: "Page", row: str) -> list[int]:
    """Open a markdown entry and give the widths of the pictures in it."""
    page.locator(f'tr:has(:text-is("{row}")) >> text="[Show Markdown]"').last.click()
    page.locator("img[src^='data:image']").first.wait_for()
    return list(page.evaluate("[...document.querySelectorAll(\"img[src^='data:image']\")].map(it => it.naturalWidth)"))


def test_a_dump_becomes_positions(server: Server, page: "Page") -> None:
    run = launch(page, server, "dump", "", "small")
    wait(lambda: server.status(run) == "SUCCESS", 120, lambda: server.status(run))
    run = launch(page, server, "positions", POSITIONS, "small")
    wait(lambda: server.status(run) == "SUCCESS", 120, lambda: server.status(run))
    go(page, server, "/assets/positions?view=partitions&partition=small", "dropped_games")
    for words in ("dagster/row_count", "bytes_per_position", "shards", "Materialized"):
        assert visible(page, words).count()
    assert all(width > 0 for width in shown_pictures(page, "sample_of_positions"))


def test_a_bad_option_is_refused_in_the_form(server: Server, page: "Page") -> None:
    go(page, server, "/assets/positions", "positions")
    page.get_by_role("button", name="Materialize").first.click()
    visible(page, "Config").click()
    configure(page, "ops: {positions: {config: {wrokers: 1}}}")
    page.locator("text=/wrokers/ >> visible=true").last.wait_for()
    page.locator('text=/unexpected config entry "wrokers"/').first.wait_for()


def test_positions_become_a_training_set(server: Server, page: "Page") -> None:
    run = launch(page, server, "training_set", "ops: {training_set: {config: {}}}")
    wait(lambda: server.status(run) == "SUCCESS", 120, lambda: server.status(run))
    go(page, server, "/assets/training_set", "test_positions_in_train")
    assert all(width > 0 for width in shown_pictures(page, "audit"))
    page.keyboard.press("Escape")


def test_training_is_watched_and_stopped(server: Server, page: "Page") -> None:
    run = launch(page, server, "checkpoint", TRAIN % ("stopped", "10.0"))
    go(page, server, f"/runs/{run}", "checkpoint")
    page.locator("text=ASSET_OBSERVATION >> visible=true").first.wait_for(timeout=120_000)
    page.get_by_role("button", name="Terminate").first.click()
    page.locator('button:has-text("Terminate")').last.click()
    wait(lambda: server.status(run) == "CANCELED", 60, lambda: server.status(run))


def test_the_report_is_read(server: Server, page: "Page") -> None:
    run = launch(page, server, "checkpoint", TRAIN % ("done", "0.1"))
    wait(lambda: server.status(run) == "SUCCESS", 600, lambda: server.status(run))
    go(page, server, "/assets/checkpoint", "curves")
    assert all(width > 0 for width in shown_pictures(page, "curves"))
    page.keyboard.press("Escape")
    visible(page, "Plots").click()
    page.locator("canvas").first.wait_for()
    run = launch(page, server, "accuracy_report", "ops: {accuracy_report: {config: {checkpoint: done}}}")
    wait(lambda: server.status(run) == "SUCCESS", 120, lambda: server.status(run))
    go(page, server, "/assets/accuracy_report", "top1")
    assert shown_pictures(page, "first_choices") == [220] * 6
    visible(page, "Close").click()
    page.locator("img[src^='data:image']").first.wait_for(state="detached")
    assert shown_pictures(page, "report")[0] > 500


def test_the_graph_is_drawn(server: Server, page: "Page") -> None:
    page.set_viewport_size({"width": 1900, "height": 900})
    page.goto(server.url + server.unfolded_graph(), wait_until="domcontentloaded")
    for node in server.ask("{ assetNodes { assetKey { path } } }")["assetNodes"]:
        visible(page, node["assetKey"]["path"][-1]).wait_for()
