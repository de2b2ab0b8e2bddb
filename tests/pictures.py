"""Take the pictures of the documents: `python -m tests.pictures [--games PGN] [--minutes M]`.

Dagster's UI runs on a temporary instance in which the embedded sample has been materialized. In a
browser, a network is trained on the given games as docs/guides/own_games.md describes. The report
measures datasets/embedded on these games.
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
from pipeline.samples.shipped import EMBEDDED_CHECKPOINT, SAMPLE_DUMP
from tests.conftest import REPOSITORY
from tests.pipeline.board.served import serving as serving_board
from tests.pipeline.defs.served.browser import find_newest_run
from tests.pipeline.defs.served.first_hour import take_first_hour
from tests.pipeline.defs.served.server import Server, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

IMAGES = REPOSITORY / "docs" / "images"
MAX_PICTURE_BYTES = 150_000
"""Maximum size of a picture, since pictures are in git."""
FEN_TO_ASK = "r1bqk2r/pppp1ppp/2n2n2/4p1N1/1bB1P3/8/PPPP1PPP/RNBQK2R w KQkq - 6 5"
"""A position to ask about: White attacks f7."""
FEN_TO_SHOW = "r1bqkbnr/pppp1ppp/2n5/4p3/4P3/5N2/PPPP1PPP/RNBQKB1R w KQkq - 2 3"


def main() -> None:
    """Write docs/images/*.png."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--games",
        type=Path,
        default=SAMPLE_DUMP,
        help="PGN file of games that the embedded network was not trained on",
    )
    parser.add_argument("--minutes", type=float, default=1.5, help="minutes of training")
    parser.add_argument(
        "--limit", type=int, default=20_000, help="number of positions of the report"
    )
    options = parser.parse_args()
    games = options.games.resolve()
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        run_command("show", FEN_TO_SHOW, "--out", str(folder / "planes.png"))
        write_picture("planes.png", (folder / "planes.png").read_bytes())
        browser = playwright.chromium.launch(
            executable_path=find_chromium(), args=["--no-sandbox", "--disable-gpu"]
        )
        try:
            take_report(browser, folder / "report", games, options.limit)
            take_board(browser, games)
            with serve_materialized_sample(folder, options.minutes) as server:
                page = browser.new_page()
                page.set_default_timeout(60_000)
                take_first_hour(
                    page,
                    server,
                    folder / "datasets",
                    games,
                    DEFAULT_PRESET,
                    options.minutes,
                    write_picture,
                )
                page.set_viewport_size({"width": 2300, "height": 870})
                take_graph(page, server)
                take_run(page, server)
        finally:
            browser.close()


def take_report(browser: "Browser", out: Path, games: Path, limit: int) -> None:
    """Report on the embedded network, and take the first screen of the page."""
    inputs = ("--checkpoint", str(EMBEDDED_CHECKPOINT), "--pgn", str(games), "--limit", str(limit))
    run_command("report", *inputs, "--out", str(out))
    page = browser.new_page(viewport={"width": 1300, "height": 780})
    page.goto((out / "report.html").as_uri())
    write_picture("report.png", page.screenshot())


def take_board(browser: "Browser", games: Path) -> None:
    """Take the page of `fianchetto play`: a game, a question about a position, a reviewed game."""
    first_game = chess.pgn.read_game(
        io.StringIO(next(read_dump(str(games))).decode("utf-8", "replace"))
    )
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
        write_picture("playing.png", page.screenshot())
        page.fill("#fen", FEN_TO_ASK)
        page.press("#fen", "Enter")
        page.click("#sure [value=yes]")  # abandon the running game
        page.locator("#moves button").first.wait_for(state="detached")
        page.click("#tab-ask")
        page.locator("#lines table").wait_for()
        write_picture("asking.png", page.screenshot())
        page.click("#tab-review")
        page.fill("#pgn", str(first_game))
        page.click("#review-form .main")
        page.locator("#reviewed ol").wait_for(timeout=120_000)
        page.locator("#reviewed h2").first.scroll_into_view_if_needed()
        page.set_viewport_size({"width": 1040, "height": 1150})
        page.wait_for_timeout(500)
        write_picture("reviewing.png", page.screenshot())


def take_graph(page: "Page", server: Server) -> None:
    """Take the asset graph with all groups expanded."""
    page.goto(server.url + server.graph_path(), wait_until="domcontentloaded")
    page.locator('text="Hide navigation" >> visible=true').last.click()
    # a reload fits the graph into the window
    page.reload(wait_until="domcontentloaded")
    page.wait_for_timeout(4000)
    for node in server.ask("{ assetNodes { assetKey { path } } }")["assetNodes"]:
        page.locator(f'text="{node["assetKey"]["path"][-1]}" >> visible=true').last.wait_for()
    button = page.locator('[aria-label="panel_show_right"] >> visible=true').last.bounding_box()
    size = page.viewport_size
    assert button is not None
    assert size is not None
    graph_left = button["x"] + button["width"] + 28  # the list of groups ends there
    width, height = size["width"] - graph_left - 50, size["height"] - 120
    clip = {"x": graph_left, "y": 110, "width": width, "height": height}
    write_picture("asset-graph.png", page.screenshot(clip=clip))


def take_run(page: "Page", server: Server) -> None:
    """Take the page of the newest run, which made a report."""
    page.set_viewport_size({"width": 1400, "height": 800})
    page.goto(f"{server.url}/runs/{find_newest_run(server)}", wait_until="domcontentloaded")
    page.locator('text="accuracy_report" >> visible=true').first.wait_for()
    page.wait_for_timeout(3000)
    write_picture("run.png", page.screenshot())


@contextmanager
def serve_materialized_sample(folder: Path, minutes: float) -> Iterator[Server]:
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


def run_command(*words: str) -> None:
    """Run a command of this project without its output."""
    subprocess.run(
        [sys.executable, "-m", "pipeline", *words],
        cwd=REPOSITORY,
        check=True,
        stdout=subprocess.DEVNULL,
    )


def find_chromium() -> str:
    """Return the name of the installed browser's program, or exit."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    sys.exit("chromium is not installed (Debian: apt-get install chromium)")


def write_picture(name: str, screenshot: bytes) -> None:
    """Write a picture in 128 colors, which are enough for screenshots and charts."""
    target, packed = IMAGES / name, io.BytesIO()
    image = Image.open(io.BytesIO(screenshot)).convert("RGB")
    image.quantize(128, dither=Image.Dither.NONE).save(packed, "PNG", optimize=True)
    assert packed.tell() < MAX_PICTURE_BYTES, f"{name} has {packed.tell()} bytes"
    target.write_bytes(packed.getvalue())
    sys.stdout.write(f"{target.relative_to(REPOSITORY)}  {packed.tell():,} bytes\n")


if __name__ == "__main__":
    main()
