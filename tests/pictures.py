"""Take the pictures of the README: `python -m tests.pictures [--games PGN] [--minutes M]`.

Dagster's UI runs on a temporary instance in which the embedded sample has been materialized.
Chromium trains a network on the given games as docs/guides/own_games.md says. The report is of
datasets/embedded on these games.
"""

import argparse
import io
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import chess.pgn
from PIL import Image

from model.training.config import DEFAULT_PRESET
from pipeline.evaluation.game_texts import read_dump
from pipeline.samples.shipped import EMBEDDED, SAMPLE_DUMP
from tests.conftest import REPOSITORY
from tests.pipeline.board.served import serving as serving_board
from tests.pipeline.defs.served.first_hour import take_first_hour
from tests.pipeline.defs.served.server import Server, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

IMAGES = REPOSITORY / "docs" / "images"
MOST_BYTES = 150_000
"""Maximum size of a picture, since pictures are in git."""
ASKED = "r1bqk2r/pppp1ppp/2n2n2/4p1N1/1bB1P3/8/PPPP1PPP/RNBQK2R w KQkq - 6 5"
"""A position to ask about: White attacks f7."""
POSITION = "r1bqkbnr/pppp1ppp/2n5/4p3/4P3/5N2/PPPP1PPP/RNBQKB1R w KQkq - 2 3"


def main() -> None:
    """Write docs/images/*.png."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--games",
        type=Path,
        default=SAMPLE_DUMP,
        help="games that the embedded network was not trained on (PGN)",
    )
    parser.add_argument("--minutes", type=float, default=1.5, help="minutes of training")
    parser.add_argument("--limit", type=int, default=20_000, help="positions of the report")
    options = parser.parse_args()
    games = options.games.resolve()
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        command("show", POSITION, "--out", str(folder / "planes.png"))
        keep("planes.png", (folder / "planes.png").read_bytes())
        browser = playwright.chromium.launch(
            executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"]
        )
        try:
            take_report(browser, folder / "report", games, options.limit)
            take_board(browser, games)
            with materialised(folder, options.minutes) as server:
                page = browser.new_page()
                page.set_default_timeout(60_000)
                take_first_hour(
                    page, server, folder / "datasets", games, DEFAULT_PRESET, options.minutes, keep
                )
                page.set_viewport_size({"width": 2300, "height": 1350})
                take_graph(page, server)
                take_run(page, server)
        finally:
            browser.close()


def take_report(browser: "Browser", out: Path, games: Path, limit: int) -> None:
    """Report on the embedded network, and take the first screen of the page."""
    words = ("--checkpoint", str(EMBEDDED), "--pgn", str(games), "--limit", str(limit))
    command("report", *words, "--out", str(out))
    page = browser.new_page(viewport={"width": 1300, "height": 780})
    page.goto((out / "report.html").as_uri())
    keep("report.png", page.screenshot())


def take_board(browser: "Browser", games: Path) -> None:
    """Take the page of `fianchetto play`: a game, a question about a position, a reviewed game."""
    first = chess.pgn.read_game(io.StringIO(next(read_dump(str(games))).decode("utf-8", "replace")))
    with serving_board() as (_, url):
        page = browser.new_page(viewport={"width": 1040, "height": 760})
        page.goto(url)
        for san in ("e4", "Nf3", "d4", "Nc3"):
            page.locator("#status", has_text="ove").wait_for()
            before = page.locator("#moves button").count()
            page.fill("#typed-move", san)
            page.press("#typed-move", "Enter")
            page.locator("#moves button").nth(before + 1).wait_for()
        page.click("#board [data-square=f1]")
        keep("playing.png", page.screenshot())
        page.fill("#fen", ASKED)
        page.press("#fen", "Enter")
        page.locator("#moves button").first.wait_for(state="detached")
        page.click("#tab-ask")
        page.locator("#lines table").wait_for()
        keep("asking.png", page.screenshot())
        page.click("#tab-review")
        page.fill("#pgn", str(first))
        page.click("#review-form .main")
        page.locator("#reviewed ol").wait_for(timeout=120_000)
        page.locator("#reviewed h2").first.scroll_into_view_if_needed()
        page.set_viewport_size({"width": 1040, "height": 1150})
        page.wait_for_timeout(500)
        keep("reviewing.png", page.screenshot())


def take_graph(page: "Page", server: Server) -> None:
    """Take the asset graph with all groups unfolded."""
    page.goto(server.url + server.graph_path(), wait_until="domcontentloaded")
    page.locator('text="Hide navigation" >> visible=true').last.click()
    # reloading fits the graph into the window
    page.reload(wait_until="domcontentloaded")
    page.wait_for_timeout(4000)
    for node in server.ask("{ assetNodes { assetKey { path } } }")["assetNodes"]:
        page.locator(f'text="{node["assetKey"]["path"][-1]}" >> visible=true').last.wait_for()
    left = page.locator('[aria-label="panel_show_right"] >> visible=true').last.bounding_box()
    size = page.viewport_size
    assert left is not None
    assert size is not None
    edge = left["x"] + left["width"] + 28  # of the list of groups beside the graph
    width, height = size["width"] - edge - 50, size["height"] - 120
    clip = {"x": edge, "y": 110, "width": width, "height": height}
    keep("asset-graph.png", page.screenshot(clip=clip))


def take_run(page: "Page", server: Server) -> None:
    """Take the page of the newest run, which made a report."""
    found = server.ask("{ runsOrError(limit: 1) { ... on Runs { results { id } } } }")
    run = found["runsOrError"]["results"][0]["id"]
    page.set_viewport_size({"width": 1400, "height": 800})
    page.goto(f"{server.url}/runs/{run}", wait_until="domcontentloaded")
    page.locator('text="accuracy_report" >> visible=true').first.wait_for()
    page.wait_for_timeout(3000)
    keep("run.png", page.screenshot())


@contextmanager
def materialised(folder: Path, minutes: float) -> Iterator[Server]:
    """Serve an instance in which all assets of the sample have been materialized."""
    home, datasets = folder / "home", folder / "datasets"
    home.mkdir()
    for name in ("sample", "dumps"):
        (datasets / name).mkdir(parents=True)
    shutil.copy(REPOSITORY / "dagster_home" / "dagster.yaml", home)
    shutil.copy(SAMPLE_DUMP, datasets / "sample")
    os.environ |= {"DAGSTER_HOME": str(home), "FIANCHETTO_DATASETS": str(datasets)}
    subprocess.run(
        [sys.executable, "-m", "pipeline.defs.first_network", "--minutes", str(minutes)],
        cwd=REPOSITORY,
        check=True,
    )
    with serving() as server:
        yield server


def command(*words: str) -> None:
    """Run the command line."""
    subprocess.run(
        [sys.executable, "-m", "pipeline", *words],
        cwd=REPOSITORY,
        check=True,
        stdout=subprocess.DEVNULL,
    )


def chromium() -> str:
    """Return the command of an installed browser."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    sys.exit("chromium is not installed (Debian: apt-get install chromium)")


def keep(name: str, taken: bytes) -> None:
    """Write a picture in 128 colors, enough for screenshots and charts."""
    target, packed = IMAGES / name, io.BytesIO()
    Image.open(io.BytesIO(taken)).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(
        packed, "PNG", optimize=True
    )
    assert packed.tell() < MOST_BYTES, f"{name} has {packed.tell()} bytes"
    target.write_bytes(packed.getvalue())
    sys.stdout.write(f"{target.relative_to(REPOSITORY)}  {packed.tell():,} bytes\n")


if __name__ == "__main__":
    main()
