"""The page of `export --web` in a browser, offline, has python-chess's rules and torch's
probabilities."""

from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING

import chess
import chess.pgn
import numpy as np
import pytest

from model.inference.export import ExportError
from model.inference.player import load
from model.inference.web import export_page
from pipeline.samples.shipped import EMBEDDED_CHECKPOINT
from tests.conftest import shared_data
from tests.model.test_checkpoint import make
from tests.pipeline.defs.served.browser import MARKS, browsing

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = MARKS
MAX_PAGE_BYTES = 3_000_000
TOLERANCE = 0.001
"""Maximum difference of a probability; with 16-bit weights it was at most 0.0003."""
POSITIONS = 200
PERFT = (
    (chess.STARTING_FEN, 3),
    ("r3k2r/p1ppqpb1/bn2pnp1/3PN3/1p2P3/2N2Q1p/PPPBBPPP/R3K2R w KQkq - 0 1", 3),
    ("r3k2r/p1ppqpb1/bn2pnp1/3PN3/1p2P3/2N2Q1p/PPPBBPPP/R3K2R b KQkq - 0 1", 2),
    ("8/2p5/3p4/KP5r/1R3p1k/8/4P1P1/8 w - - 0 1", 4),
    ("r3k2r/Pppp1ppp/1b3nbN/nP6/BBP1P3/q4N2/Pp1P2PP/R2Q1RK1 w kq - 0 1", 3),
    ("8/6bb/8/8/R1pP2k1/4P3/P7/K7 b - d3 0 1", 3),
)
COUNT = """([fen, depth]) => {
  const count = (at, left) => left
    ? legalMoves(at).reduce((sum, move) => sum + count(push(at, move), left - 1), 0) : 1;
  return count(readFen(fen), depth);
}"""
EVALUATE = """([fen, past, rating]) => {
  const at = readFen(fen);
  return policy(NETWORK, at, past, rating).map((one) => [uci(one.move, at.black), one.probability]);
}"""


def perft(board: chess.Board, depth: int) -> int:
    if depth == 1:
        return board.legal_moves.count()
    total = 0
    for move in board.legal_moves:
        board.push(move)
        total += perft(board, depth - 1)
        board.pop()
    return total


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Page]":
    """Open the embedded network's page from a file, without a network connection."""
    path = tmp_path_factory.mktemp("web") / "play.html"
    assert export_page(EMBEDDED_CHECKPOINT, path)["bytes"] == path.stat().st_size < MAX_PAGE_BYTES
    with browsing() as page:
        page.context.set_offline(True)
        page.goto(path.as_uri())
        yield page


def real_boards() -> Iterator[chess.Board]:
    """Yield a position of each of several real games, with its moves, from all phases."""
    with shared_data("pgn/lichess_dump_2021-10_999.pgn").open() as stream:
        for number in count():
            game = chess.pgn.read_game(stream)
            assert game is not None
            moves, board = list(game.mainline_moves()), game.board()
            for move in moves[: 37 * number % max(len(moves), 1)]:
                board.push(move)
            if moves:
                yield board


@pytest.mark.parametrize(("fen", "depth"), PERFT)
def test_the_page_counts_moves_as_python_chess_does(page: "Page", fen: str, depth: int) -> None:
    assert page.evaluate(COUNT, [fen, depth]) == perft(chess.Board(fen), depth)


def test_the_page_has_torchs_probabilities_on_real_positions(page: "Page") -> None:
    player, largest = load(EMBEDDED_CHECKPOINT, device="cpu"), 0.0
    for number, board in enumerate(islice(real_boards(), POSITIONS)):
        rating = 800 + 100 * (number % 18)
        moves, (expected,) = player.policies(board, [rating])
        past = [[move.from_square ^ 56, move.to_square ^ 56] for move in board.move_stack]
        sorted_moves = page.evaluate(EVALUATE, [board.fen(), past, rating])
        policy = dict(sorted_moves)
        assert policy.keys() == {move.uci() for move in moves}
        difference = np.abs([policy[move.uci()] for move in moves] - expected)
        assert difference.max() < TOLERANCE, board.fen()
        largest = max(largest, float(difference.max()))
        first, second = np.sort(expected)[[-1, -2]] if len(moves) > 1 else (1.0, 0.0)
        best = moves[expected.argmax()].uci()
        assert sorted_moves[0][0] == best or first - second < TOLERANCE
    assert number == POSITIONS - 1
    print(f"largest difference of a probability: {largest:.6f}")  # noqa: T201


def test_a_game_is_played_offline(page: "Page") -> None:
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.click('[data-square="e2"]')
    page.click('[data-square="e4"]')
    page.locator("#status", has_text="Your move.").wait_for()
    assert len(page.inner_text("#moves").split()) == 2
    page.select_option("#side", "black")
    page.click("#new")
    page.locator("#status", has_text="Your move.").wait_for()
    assert len(page.inner_text("#moves").split()) == 1
    assert page.get_attribute("#board button:first-child", "aria-label") == "h1, white rook"
    page.evaluate("game.positions = [readFen('7k/5KQ1/8/8/8/8/8/8 b - - 0 1')], render()")
    assert page.inner_text("#status") == "Checkmate: White wins."
    assert not requests


def test_a_network_of_another_kind_is_refused(tmp_path: Path) -> None:
    make(tmp_path / "tiny")
    with pytest.raises(ExportError, match="fianchetto-human"):
        export_page(tmp_path / "tiny", tmp_path / "play.html")
    assert not (tmp_path / "play.html").exists()
