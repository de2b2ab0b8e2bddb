"""What a move leaves behind: the played move's part of the tree, to the last visit, and the game's
history."""

import chess
import pytest

from engine.board.rules import REPETITION
from engine.encoding.planes import LabelError
from engine.evaluation.evaluator import uniform
from engine.search import Search, SearchConfig
from tests.engine.search.stubs import (
    MIDDLE,
    Hashed,
    begin,
    board_of,
    by_uci,
    chosen,
    play,
    searched,
    ucis,
)
from tests.engine.search.test_search import check_books


def test_the_kept_tree_has_the_child_s_visits_and_values():
    board = chess.Board(MIDDLE)
    search, root = searched(board, Hashed(), simulations=400)
    for _ in range(4):
        best = chosen(search, 0, board.turn)
        visits, value = by_uci(root, board.turn)[best], by_uci(root, board.turn, "values")[best]
        assert visits > 10
        assert play(search, 0, board, best)
        board.push_uci(best)
        root = search.root()
        assert root.visits.sum() + 1 == visits, "its moves' visits, and its own evaluation"
        assert root.value == pytest.approx(-value, abs=1e-6)
        assert ucis(root, board.turn) != []
        assert set(ucis(root, board.turn)) == {move.uci() for move in board.legal_moves}
        check_books(search, 0)
        search.run()
        assert search.root().visits.sum() == visits - 1 + 400
        root = search.root()


def test_both_sides_moves_keep_the_tree():
    """Our move and a reply that was looked at: the grandchild's visits are there, and no evaluation
    is asked again."""
    board = chess.Board(MIDDLE)
    search, _ = searched(board, Hashed(), simulations=800)
    for _ in range(2):
        best = chosen(search, 0, board.turn)
        play(search, 0, board, best)
        board.push_uci(best)
    kept, before = search.root().visits.sum(), search.evaluations
    assert kept > 20
    search.run(simulations=1)
    assert search.evaluations - before <= 1


def test_a_move_nobody_looked_at_begins_anew():
    board = chess.Board(MIDDLE)
    search, root = searched(board, Hashed(spread=12.0), simulations=30)
    ignored = next(uci for uci, visits in by_uci(root, board.turn).items() if visits == 0)
    assert not play(search, 0, board, ignored)
    board.push_uci(ignored)
    assert len(search.root().labels) == 0
    search.run()
    assert search.root().visits.sum() == 30
    assert set(ucis(search.root(), board.turn)) == {move.uci() for move in board.legal_moves}


def test_an_illegal_move_is_refused_and_changes_nothing():
    search, root = searched(MIDDLE, Hashed(), simulations=20)
    for label, promotion in ((0, 0), (4095, 0), (int(root.labels[0]), 5), (-1, 0)):
        with pytest.raises(LabelError, match="no legal move"):
            search.play(0, label, promotion)
    assert search.root().visits.tolist() == root.visits.tolist()


def test_moves_played_join_the_game_s_history():
    board = chess.Board()
    search = Search(uniform, SearchConfig(simulations=8))
    begin(search, 0, board)
    for ply, uci in enumerate(("g1f3 g8f6 f3g1 f6g8 " * 2).split()):
        assert search.outcome() is None, ply
        search.run()
        play(search, 0, board, uci)
        board.push_uci(uci)
    assert board.is_repetition(3)
    assert search.outcome() == REPETITION


def test_a_start_forgets_the_game_before():
    search, _ = searched(
        board_of(chess.STARTING_FEN, "g1f3 g8f6 f3g1 f6g8 g1f3 g8f6 f3g1"), uniform, simulations=30
    )
    begin(search, 0, chess.Board())
    search.run()
    fresh, root = searched(chess.Board(), uniform, simulations=30)
    assert search.root().visits.tolist() == root.visits.tolist()
    assert fresh.outcome() is None
