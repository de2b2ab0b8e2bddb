"""The page in a real browser: with a mouse, with a keyboard, on a phone, and without its server."""

import io
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import chess
import chess.pgn
import pytest

import model
from model.card import CARD_FILE
from pipeline.samples.shipped import EMBEDDED_CHECKPOINT
from tests.pipeline.board.games import HANGS, MATED, SHORT, game
from tests.pipeline.board.served import serving
from tests.pipeline.defs.served.browser import CHROMIUM, FLAGS, MARKS
from tests.waiting import until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

pytestmark = MARKS

EXPECTED = re.compile(r"net::ERR_(CONNECTION|EMPTY)|status of 400")
"""What a browser logs while the server is down, and when a move or a game is refused."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving() as (_, url):
        yield url


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@contextmanager
def visiting(browser: "Browser", url: str, **options: object) -> "Iterator[Page]":
    """Open the page in a new browser context; at the end, require that it logged no error."""
    context = browser.new_context(**({"viewport": {"width": 1100, "height": 900}} | options))
    page = context.new_page()
    page.set_default_timeout(60_000)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on(
        "console", lambda message: errors.append(message.text) if message.type == "error" else None
    )
    page.on("dialog", lambda dialog: errors.append(f"dialog {dialog.message}"))
    page.goto(url)
    page.locator("[data-square=e2]").wait_for()
    yield page
    context.close()
    assert not [error for error in errors if not EXPECTED.search(error)]


def read_pieces(page: "Page") -> str:
    """Return the first field of the FEN, read from the labels for screen readers."""
    board = chess.Board(None)
    for label in page.locator("[data-square]").evaluate_all("all => all.map(it => it.ariaLabel)"):
        name, piece, *_ = label.split(", ")
        if piece != "empty":
            color, kind = piece.split()
            board.set_piece_at(
                chess.parse_square(name),
                chess.Piece(chess.PIECE_NAMES.index(kind), chess.COLOR_NAMES.index(color) == 1),
            )
    return board.board_fen()


def read_moves(page: "Page") -> list[str]:
    """Return the list of moves in SAN."""
    return [
        re.sub(r"^\d+\.+ ", "", text) for text in page.locator("#moves button").all_inner_texts()
    ]


def replay_moves(page: "Page", start: str = chess.STARTING_FEN) -> chess.Board:
    """Replay the list of moves with python-chess, check the page's board, and return it."""
    board = chess.Board(start)
    for san in read_moves(page):
        board.push_san(san)
    assert read_pieces(page) == board.board_fen()
    return board


def choose_clock(page: "Page", clock: str) -> None:
    """Choose a clock, and wait for the game that begins with it."""
    page.select_option("#clock", clock)
    page.locator("#clock-bottom").wait_for()


def make_move(page: "Page", move: chess.Move) -> None:
    """Make a move by clicks, with the piece of a promotion."""
    page.click(f"[data-square={chess.square_name(move.from_square)}]")
    page.click(f"[data-square={chess.square_name(move.to_square)}].target")
    if move.promotion is not None:
        page.click(f"#promotion button[value={chess.piece_symbol(move.promotion)}]")


def wait_for_turn(page: "Page") -> str:
    page.locator("#status", has_text=re.compile("Your move|Game over")).wait_for()
    return page.inner_text("#status")


def test_a_game_is_clicked_to_its_end_and_saved(browser: "Browser", url: str) -> None:
    strong = model.load(EMBEDDED_CHECKPOINT, device="cpu")
    with visiting(browser, url) as page:
        page.locator("#rating").fill("800")
        while "Game over" not in (status := wait_for_turn(page)):
            board = replay_moves(page)
            make_move(page, strong.analyse(board, 64, lines=0).moves[0].move)
            page.locator("#moves button").nth(len(board.move_stack)).wait_for()
        board = replay_moves(page)
        assert board.is_game_over() or board.is_repetition(3) or board.is_fifty_moves()
        result = re.search(r"Game over: (White wins|Black wins|Draw).*, (1-0|0-1|1/2-1/2)", status)
        assert result
        assert page.locator("[data-square] img[draggable=true]").count() == 0
        with page.expect_download() as download:
            page.click("#save")
        saved = chess.pgn.read_game(io.StringIO(download.value.path().read_text()))
        assert saved is not None
        assert saved.end().board().fen() == board.fen()
        assert saved.headers["Result"] == result[2]
        assert (saved.headers["WhiteElo"], saved.headers["BlackElo"]) == ("800", "800")
        page.keyboard.press("ArrowLeft")
        page.locator("#status", has_text="earlier position").wait_for()
        page.keyboard.press("ArrowDown")
        page.locator("#status", has_text="Game over").wait_for()
        page.click("#take-back")
        page.locator("#status", has_text="Your move").wait_for()
        assert len(read_moves(page)) < len(board.move_stack)
        page.click("#new")
        page.click("#sure [value=no]")
        assert read_moves(page), "a running game is kept"
        page.click("#new")
        page.click("#sure [value=yes]")
        page.locator("#moves button").first.wait_for(state="detached")
        assert read_pieces(page) == chess.STARTING_FEN.split()[0]


def test_pieces_are_dragged_and_promotions_chosen(browser: "Browser", url: str) -> None:
    start = "7k/P7/8/8/8/8/8/K7 w - - 0 1"
    with visiting(browser, url) as page:
        page.drag_and_drop("[data-square=g1]", "[data-square=f3]")
        page.locator("#moves button").nth(1).wait_for()
        assert read_moves(page)[0] == "Nf3"
        page.fill("#fen", "nonsense")
        page.press("#fen", "Enter")
        page.click("#sure [value=yes]")
        page.locator("#status.bad").wait_for()
        assert read_moves(page)[0] == "Nf3"  # what is refused changes nothing
        page.fill("#fen", start)
        page.press("#fen", "Enter")
        page.click("#sure [value=yes]")
        page.locator("#moves button").first.wait_for(state="detached")
        make_move(page, chess.Move.from_uci("a7a8r"))
        page.locator("#moves button").first.wait_for()
        assert read_moves(page)[0] == "a8=R+"


def test_the_keyboard_is_enough(browser: "Browser", url: str) -> None:
    with visiting(browser, url) as page:
        assert "Rating (Lichess rapid)" in page.inner_text("#rating-label")
        choose_clock(page, "180+2")
        page.keyboard.press("Tab")
        while page.evaluate("document.activeElement.dataset.square ?? ''") != "e2":
            page.keyboard.press("Tab")
        for key in ("Enter", "ArrowUp", "ArrowUp", "Enter"):
            page.keyboard.press(key)
        wait_for_turn(page)
        page.locator("#moves button").nth(1).wait_for()
        assert read_moves(page)[0] == "e4"
        assert page.evaluate("document.activeElement.dataset.square") == "e4"
        board = replay_moves(page)
        san = board.san(next(iter(board.legal_moves)))
        page.keyboard.press("Tab")
        clock = "JSON.parse(sessionStorage.getItem('game')).clocks.w"
        before = page.evaluate(clock)
        for _ in range(5):
            page.keyboard.type("Ke9")
            page.keyboard.press("Enter")
            page.locator("#status.bad", has_text="not a legal move").wait_for()
        page.wait_for_timeout(300)  # the page counts every 0.2 s
        assert page.evaluate(clock) <= before, "a move that is refused adds no time"
        page.check("#bar")
        page.focus("#typed-move")
        page.keyboard.type(san)
        page.keyboard.press("Enter")
        page.locator("#moves button").nth(3).wait_for()
        assert page.is_checked("#bar"), "a typed move leaves the switches as they are"
        assert read_moves(page)[2] == san
        page.focus("#tab-ask")
        page.keyboard.press("Enter")
        page.locator("#shares tbody tr").first.wait_for()


def test_a_phone_shows_all_of_it_without_scrolling_sideways_and_in_the_dark(
    browser: "Browser", url: str
) -> None:
    phone = {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark", "has_touch": True}
    with visiting(browser, url, **phone) as page:
        page.tap("[data-square=e2]")
        page.tap("[data-square=e4]")
        page.locator("#moves button").nth(1).wait_for()
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert sum(map(int, re.findall(r"\d+", paper))) < 200
        for tab, ready in (("play", "#new"), ("ask", "#lines table"), ("review", "#pgn")):
            page.click(f"#tab-{tab}")
            page.locator(ready).wait_for()
            assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.fill("#pgn", SHORT)
        page.click("#review-form .main")
        page.locator("#reviewed ol").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        # names of HTML stay text
        assert "<img src=x onerror=alert(1)>" in page.inner_text("#reviewed h2 >> nth=0")
        assert page.locator("#reviewed img, #reviewed script").count() == 0


def test_a_clock_that_runs_out_without_a_server_asks_once_until_it_is_back(
    browser: "Browser",
) -> None:
    with serving() as (process, url), visiting(browser, url) as page:
        page.clock.install()
        choose_clock(page, "60+0")
        make_move(page, chess.Move.from_uci("e2e4"))
        page.locator("#moves button").nth(1).wait_for()
        process.kill()
        process.wait()
        for _ in range(32):
            page.clock.run_for(2000)
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        for _ in range(10):
            page.clock.run_for(1000)
            page.wait_for_timeout(100)
        assert len(asked) <= 12, "one request a second"
        with serving(int(url.rpartition(":")[2])):
            page.clock.resume()
            page.locator("#status", has_text="Black wins on time, 0-1").wait_for()


def test_castling_premoves_resigning_and_the_evaluation_bar(browser: "Browser", url: str) -> None:
    with visiting(browser, url, reduced_motion="reduce") as page:
        page.fill("#fen", "k7/8/8/8/8/8/P7/4K2R w K - 0 1")
        page.press("#fen", "Enter")
        page.check("#bar")
        page.locator("#score-bar[aria-valuenow]").wait_for()
        # hold the network's answer back, so that there is time for a premove
        hold: list[Route] = []
        page.route("**/api/play", lambda route: hold.append(route), times=1)
        page.click("[data-square=e1]")
        page.click("[data-square=h1].target")
        page.locator("#status", has_text="thinking").wait_for()
        page.click("[data-square=a2]")
        page.click("[data-square=a4]")
        assert page.locator(".premove").count() == 2
        until(lambda: hold)
        hold[0].continue_()
        page.locator("#moves button").nth(3).wait_for()
        assert read_moves(page)[0] == "O-O"
        assert read_moves(page)[2] == "a4"
        assert float(page.get_attribute("#score-bar", "aria-valuenow") or 0) > 0.5
        page.click("#resign")
        page.click("#sure [value=yes]")
        page.locator("#status", has_text="Black wins by resignation, 0-1").wait_for()


def test_many_games_are_reviewed_stopped_and_opened(browser: "Browser", url: str) -> None:
    games = game(HANGS, "me", "<b>you</b>", "0-1") + game(MATED, "a", "me", "1-0") * 20
    with visiting(browser, url) as page:
        page.click("#tab-review")
        file = {"name": "games.pgn", "mimeType": "text/plain", "buffer": games.encode()}
        page.set_input_files("#pgn-file", [file])
        page.locator("#progress", has_text="21 games in games.pgn").wait_for()
        page.fill("#player-name", "ME")
        page.click("#review-form .main")
        page.locator("#stop:visible").wait_for()
        page.locator("#progress", has_text="Reviewed 21 of 21 games").wait_for()
        page.locator("#stop").wait_for(state="hidden")
        page.locator("td summary", has_text="5 examples").first.click()
        page.locator("td li button").first.click()
        page.locator("#board svg path.c1").wait_for()
        assert page.locator("#reviewed b").count() == 0
        for width in (1440, 390):
            page.set_viewport_size({"width": width, "height": 900})
            page.evaluate("scrollTo(0, document.body.scrollHeight)")
            assert page.locator("#board").is_visible()
            box = page.locator("#board").bounding_box()
            assert box is not None
            assert box["y"] >= 0
            assert box["y"] + box["height"] <= 900
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.click("#review-form .main")
        page.click("#stop")
        page.locator("#progress", has_text="Stopped").wait_for()


def test_a_new_imitation_is_preselected_and_named_and_reviews_use_the_embedded_network(
    browser: "Browser", tmp_path: Path
) -> None:
    folder = tmp_path / "datasets" / "checkpoints" / "ada"
    shutil.copytree(EMBEDDED_CHECKPOINT, folder)
    card = json.loads((folder / CARD_FILE).read_text())
    card["data"]["player"] = {"names": ["Ada"], "rating": 1850, "games": 1200}
    (folder / CARD_FILE).write_text(json.dumps(card))
    with serving(cwd=tmp_path) as (_, url), visiting(browser, url) as page:
        assert page.input_value("#network") == "ada"
        assert page.inner_text("#training") == "Trained on the moves of Ada in 1,200 games."
        assert page.inner_text("#rating-shown") == "1850"
        assert page.inner_text("#style option >> nth=0") == "Like Ada, mistakes included"
        make_move(page, chess.Move.from_uci("e2e4"))
        page.locator("#status", has_text="which Ada would play with a probability of").wait_for()
        page.click("#tab-ask")
        page.locator("h2", has_text="Probability that Ada plays each move, by rating").wait_for()
        page.click("#tab-review")
        assert page.input_value("#network") == "embedded"
        page.click("#tab-play")
        page.select_option("#network", "embedded")
        assert page.inner_text("#rating-shown") == "1500"
