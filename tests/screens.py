"""Take screenshots of the pages that this project writes: `python -m tests.screens [NAME...]`.

Each page and each state of the board is taken at widths of 1440 and 390 pixels, light and dark: the
whole page and its first screen, as build/screens/NAME-WIDTH-SCHEME[-first].png. Pages are made from
the embedded sample, or given with --page. To add a page, add a function to PAGES.
"""

import argparse
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from itertools import product
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from pipeline.samples.shipped import EMBEDDED_CHECKPOINT, SAMPLE_DUMP
from tests.conftest import REPOSITORY
from tests.pictures import find_chromium, run_command
from tests.pipeline.board.served import serving
from tests.pipeline.board.states import open_states

SCREENS = REPOSITORY / "build" / "screens"
"""Folder of the screenshots, and of the datasets and networks of the pages; ignored by git."""
WINDOW_SIZES = ((1440, 900), (390, 844))
LIST_CUT_ELEMENTS = """width => {
    const folded = [...document.querySelectorAll("details:not([open])")]
    folded.forEach(it => it.open = true)
    const cut = [document.documentElement, ...document.querySelectorAll(".scroll")]
    .filter(it => it.scrollWidth > it.clientWidth && (width > 400 || it.className != "scroll"))
    .map(it => it.innerText.slice(0, 80))
    folded.forEach(it => it.open = false)
    return cut }"""
"""JavaScript that lists the elements that are cut off. On a phone, tables may scroll, but not the
page."""
COLOR_SCHEMES = ("light", "dark")


def make_network() -> tuple[str, str]:
    """Fine-tune the embedded network on the sample for a few steps, once; return both folders."""
    positions, network = str(SCREENS / "positions"), str(SCREENS / "mine")
    run_command("ingest", str(SAMPLE_DUMP), "--out", positions)
    words = ("--start", str(EMBEDDED_CHECKPOINT), "--steps", "20", "--learning-rate", "0.0005")
    run_command("train", "--positions", positions, *words, "--out", network)
    return positions, network


def make_report(name: str, *others: str) -> Path:
    """Report on the network and on other checkpoints, and return the page."""
    positions, network = make_network()
    out = SCREENS / "reports" / name
    options = ("--positions", positions, "--limit", "3000", "--rating-rows", "50")
    checkpoints = ",".join([*others, network])
    run_command("report", "--checkpoint", checkpoints, *options, "--out", str(out))
    return out / "report.html"


def list_runs() -> Path:
    """Return the page that lists the runs of the other pages."""
    make_network()
    run_command("runs", str(SCREENS), "--out", str(SCREENS / "runs.html"))
    return SCREENS / "runs.html"


PAGES: Mapping[str, Callable[[], Path]] = {
    "report": partial(make_report, "one"),
    "comparison": partial(make_report, "two", str(EMBEDDED_CHECKPOINT)),
    "runs": list_runs,
}
"""Pages by name: functions that make a page and return its file."""


def take_screenshots(pages: Mapping[str, Callable[[], Path]], with_board: bool) -> None:
    """Write screenshots of pages and of the board's states, and check that nothing is cut off."""
    with sync_playwright() as playwright, ExitStack() as stack:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        stack.callback(browser.close)
        urls = {name: make().resolve().as_uri() for name, make in pages.items()}
        _, board = stack.enter_context(serving()) if with_board else (None, "")
        for (width, height), scheme in product(WINDOW_SIZES, COLOR_SCHEMES):
            window = {"width": width, "height": height}
            page = browser.new_page(viewport=window, color_scheme=scheme)
            for name, url in urls.items():
                page.goto(url)
                take_screenshot(page, f"{name}-{width}-{scheme}", width)
            if with_board:
                page.goto(board)
                for state in open_states(page):
                    take_screenshot(page, f"board-{state}-{width}-{scheme}", width)
            page.close()


def take_screenshot(page: Page, name: str, width: int) -> None:
    """Write a screenshot of the first screen and of the whole page; nothing may be cut off."""
    assert not page.evaluate(LIST_CUT_ELEMENTS, width), f"{name} is cut off"
    page.screenshot(path=SCREENS / f"{name}-first.png")
    page.screenshot(path=SCREENS / f"{name}.png", full_page=True)
    sys.stdout.write(f"{name}.png\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"pages to take: {', '.join(PAGES)}, board")
    parser.add_argument("--page", type=Path, action="append", default=[], help="HTML file to take")
    options = parser.parse_args()
    SCREENS.mkdir(parents=True, exist_ok=True)
    files = {file.parent.name: lambda file=file: file for file in options.page}
    names = options.names or [*PAGES, "board"]
    pages = files or {name: PAGES[name] for name in names if name != "board"}
    take_screenshots(pages, with_board="board" in names and not files)
