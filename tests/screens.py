"""Take screenshots of the pages that this project writes: `python -m tests.screens [NAME...]`.

Each page is taken whole and in its first screen, 1440 and 390 pixels wide, light and dark, as
build/screens/NAME-WIDTH-SCHEME[-first].png. Pages are made from the embedded sample, or given with
--page. To add a page, add a function to PAGES.
"""

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from playwright.sync_api import sync_playwright

from pipeline.samples.shipped import EMBEDDED, SAMPLE_DUMP
from tests.conftest import REPOSITORY
from tests.pictures import chromium, command

SCREENS = REPOSITORY / "build" / "screens"
"""Folder of the pictures, and of the datasets and networks of the pages; ignored by git."""
SIZES = ((1440, 900), (390, 844))
CUT = """width => {
    const folded = [...document.querySelectorAll("details:not([open])")]
    folded.forEach(it => it.open = true)
    const cut = [document.documentElement, ...document.querySelectorAll(".scroll")]
    .filter(it => it.scrollWidth > it.clientWidth && (width > 400 || it.className != "scroll"))
    .map(it => it.innerText.slice(0, 80))
    folded.forEach(it => it.open = false)
    return cut }"""
"""Lists elements that are cut off: on a phone, tables may scroll, but not the page."""
SCHEMES = ("light", "dark")


def make_network() -> tuple[str, str]:
    """Fine-tune the embedded network on the sample for a few steps, once; return both folders."""
    positions, network = str(SCREENS / "positions"), str(SCREENS / "mine")
    command("ingest", str(SAMPLE_DUMP), "--out", positions)
    words = ("--start", str(EMBEDDED), "--steps", "20", "--learning-rate", "0.0005")
    command("train", "--positions", positions, *words, "--out", network)
    return positions, network


def make_report(*checkpoints: str, name: str, positions: str) -> Path:
    """Report on checkpoints, and return the page."""
    out = SCREENS / "reports" / name
    words = ("--positions", positions, "--limit", "3000", "--rating-rows", "50")
    command("report", "--checkpoint", ",".join(checkpoints), *words, "--out", str(out))
    return out / "report.html"


def report_one() -> Path:
    """Return the report of one network."""
    positions, network = make_network()
    return make_report(network, name="one", positions=positions)


def report_two() -> Path:
    """Return the report of a network beside the embedded one."""
    positions, network = make_network()
    return make_report(str(EMBEDDED), network, name="two", positions=positions)


def runs() -> Path:
    """Return the page of the runs of the other pages."""
    make_network()
    command("runs", str(SCREENS), "--out", str(SCREENS / "runs.html"))
    return SCREENS / "runs.html"


PAGES: Mapping[str, Callable[[], Path]] = {
    "report": report_one,
    "comparison": report_two,
    "runs": runs,
}
"""Pages by name: functions that make a page and return its file."""


def take(pages: Mapping[str, Callable[[], Path]]) -> None:
    """Write the pictures of pages."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        for name, make in pages.items():
            address = make().resolve().as_uri()
            for width, height in SIZES:
                for scheme in SCHEMES:
                    page = browser.new_page(
                        viewport={"width": width, "height": height}, color_scheme=scheme
                    )
                    page.goto(address)
                    assert not page.evaluate(CUT, width), f"{name} is cut at {width} pixels"
                    target = SCREENS / f"{name}-{width}-{scheme}"
                    page.screenshot(path=f"{target}-first.png")
                    page.screenshot(path=f"{target}.png", full_page=True)
                    page.close()
                    sys.stdout.write(f"{target.relative_to(REPOSITORY)}.png\n")
        browser.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"pages to take: {', '.join(PAGES)}")
    parser.add_argument("--page", type=Path, action="append", default=[], help="a page to show")
    options = parser.parse_args()
    SCREENS.mkdir(parents=True, exist_ok=True)
    files = {file.parent.name: lambda file=file: file for file in options.page}
    take(files or {name: PAGES[name] for name in options.names or PAGES})
