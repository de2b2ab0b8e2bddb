"""Positions with more legal moves than arrays have room for: they are rejected where they enter."""

from pathlib import Path

import chess
import numpy as np
import pytest

from engine.board.movegen import legal_planes
from engine.board.position import MAX_MOVES, FenError, from_board, from_fen, mirror
from engine.encoding.planes import LABELS, PLANES, label_from_move
from engine.evaluation.evaluator import uniform
from engine.evaluation.handwritten import score_moves
from engine.match.openings import BookError, read_book
from engine.search import Search, SearchConfig
from engine.search.puct import NO_ROOM, expand
from engine.search.tree import empty_forest

MANY = "QQQQQQnk/Q4Qpp/Q5QQ/Q6Q/Q6Q/Q6Q/Q6Q/KQQQQQQQ w - - 0 1"
BEFORE = MANY.replace(" w ", " b ")
"""Position in which Black has one move, g7h6, after which White has 263."""
MOST = "R6R/3Q4/1Q4Q1/4Q3/2Q4Q/Q4Q2/pp1Q4/kBNN1KB1 w - - 0 1"
"""Position of a game with the most legal moves: 218."""


def test_fens_boards_and_books_are_rejected(tmp_path: Path) -> None:
    assert chess.Board(MANY).legal_moves.count() == 263 > MAX_MOVES
    for read in (from_fen, lambda fen: from_board(chess.Board(fen))):
        with pytest.raises(FenError, match="263 legal moves, more than the 256"):
            read(MANY)
    books = {"book.epd": f"{MANY}\n", "book.pgn": f'[FEN "{BEFORE}"]\n\n1... gxh6 *\n'}
    for name, text in books.items():
        (tmp_path / name).write_text(text)
        with pytest.raises(BookError, match="263 legal moves"):
            read_book(tmp_path / name)


@pytest.mark.parametrize("algorithm", ["puct", "gumbel"])
def test_a_search_has_room_for_any_game(algorithm: str) -> None:
    search = Search(uniform, SearchConfig(simulations=300, algorithm=algorithm))  # type: ignore[arg-type]
    search.start(0, from_fen(MOST))
    search.run()
    assert len(search.root().labels) == 218
    search.start(0, from_fen(BEFORE))
    search.run(simulations=8)
    assert search.root().visits.tolist() == [8]
    search.play(0, label_from_move(chess.Move.from_uci("g7h6"), chess.BLACK), 0)
    search.run(simulations=8)
    assert (len(search.root().labels), search.choose()[0].tolist()) == (0, [-1])


def test_arrays_are_not_written_past_their_end() -> None:
    position = from_fen(BEFORE)
    mirror(position)  # gives White the move without the checks of `from_fen`
    planes, scratch = np.zeros((2, PLANES), dtype=np.uint64)
    legal_planes(position, planes)
    blank = np.zeros(LABELS, dtype=np.float32)
    blank.flags.writeable = False  # as in a search
    assert expand(empty_forest(1, 100, 0), 0, 0, planes, blank, 1.0) == NO_ROOM
    labels, scores = np.zeros((2, MAX_MOVES), dtype=np.int64)
    with pytest.raises(AssertionError):
        score_moves(planes, labels, scores, (np.zeros(64, dtype=np.int64), scratch))
