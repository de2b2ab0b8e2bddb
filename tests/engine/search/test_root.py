"""The root: the choice of a move after a search, and the subtree that is kept."""

from collections import Counter

import chess
import numpy as np
import pytest

from engine.board.rules import REPETITION
from engine.encoding.planes import LabelError
from engine.evaluation.evaluator import uniform
from engine.search import Search, SearchConfig
from tests.engine.search.stubs import (
    MIDDLE,
    Hashed,
    Laid,
    begin,
    board_of,
    by_uci,
    chosen,
    play,
    searched,
    ucis,
)
from tests.engine.search.test_puct import LAID, MOVES, PLAIN, ROOT
from tests.engine.search.test_search import check_books


def test_a_temperature_samples_by_visits():
    """Probabilities are proportional to visits ** (1 / temperature); the visits are 1, 3, 2."""
    search, root = searched(ROOT, LAID, simulations=6, **PLAIN)
    labels = by_uci(root, chess.WHITE, "labels")
    for temperature in (1.0, 0.5, 2.0):
        drawn = Counter(int(search.choose(temperature=temperature)[0][0]) for _ in range(3000))
        weights = np.array([1.0, 3.0, 2.0]) ** (1 / temperature)
        for uci, share in zip(MOVES, weights / weights.sum(), strict=True):
            assert drawn[labels[uci]] / 3000 == pytest.approx(share, abs=0.03)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_proven_loss_is_not_chosen_even_if_other_moves_have_no_visits(
    temperature: float,
):
    """Fool's mate: all simulations go to g2g4, the only losing move."""
    board = board_of(chess.STARTING_FEN, "f2f3 e7e5")
    mate = board_of(board.fen(), "g2g4")
    table = Laid({board.fen(): (0.0, {"g2g4": 1.0}), mate.fen(): (0.0, {"d8h4": 1.0})})
    search, root = searched(board, table, simulations=2)
    assert by_uci(root, chess.WHITE, "proven")["g2g4"] == -1
    assert by_uci(root, chess.WHITE)["g2g4"] == root.visits.sum()
    assert chosen(search, 0, chess.WHITE, temperature=temperature) != "g2g4"


def test_gumbel_chooses_the_winner_of_the_halving_or_samples_the_improved_policy():
    options = {"algorithm": "gumbel", "gumbel_scale": 0.0}
    search, root = searched(MIDDLE, Hashed(), simulations=64, **options)
    most = [uci for uci, visits in by_uci(root, chess.WHITE).items() if visits == root.visits.max()]
    improved = by_uci(root, chess.WHITE, "improved")
    assert chosen(search, 0, chess.WHITE) == max(most, key=improved.__getitem__)
    search, root = searched(ROOT, LAID, simulations=6, **options)
    drawn = Counter(int(search.choose(temperature=1.0)[0][0]) for _ in range(3000))
    for label, share in zip(root.labels.tolist(), root.improved.tolist(), strict=True):
        assert drawn[label] / 3000 == pytest.approx(share, abs=0.03)


def test_variations_follow_the_most_visited_moves():
    search, root = searched(ROOT, LAID, simulations=6, **PLAIN)
    moves = ucis(root, chess.WHITE)
    wanted = {"a1b1": 3, "a1b2": 2, "a1a2": 1}  # b1 g7 c2; b2 h7; a2
    assert {uci: len(search.line(0, moves.index(uci))) for uci in moves} == wanted
    assert search.line(0) == search.line(0, moves.index("a1b1"))


def test_the_kept_tree_has_the_child_s_visits_and_values():
    board = chess.Board(MIDDLE)
    search, root = searched(board, Hashed(), simulations=400)
    for _ in range(4):
        best = chosen(search, 0, board.turn)
        visits, value = by_uci(root, board.turn)[best], by_uci(root, board.turn, "values")[best]
        assert visits > 10
        assert play(search, 0, board, best)
        board.push_uci(best)
        root, asked = search.root(), search.evaluations
        assert root.visits.sum() + 1 == visits, "its moves' visits, and its own evaluation"
        assert root.value == pytest.approx(-value, abs=1e-6)
        assert set(ucis(root, board.turn)) == {move.uci() for move in board.legal_moves}
        check_books(search, 0)
        search.run()
        root = search.root()
        assert root.visits.sum() == visits - 1 + 400
        assert search.evaluations - asked <= 400, "nothing is asked again"


def test_an_unvisited_move_starts_a_new_tree():
    board = chess.Board(MIDDLE)
    search, root = searched(board, Hashed(spread=12.0), simulations=30)
    ignored = next(uci for uci, visits in by_uci(root, board.turn).items() if visits == 0)
    assert not play(search, 0, board, ignored)
    board.push_uci(ignored)
    assert len(search.root().labels) == 0
    search.run()
    assert search.root().visits.sum() == 30
    assert set(ucis(search.root(), board.turn)) == {move.uci() for move in board.legal_moves}


def test_an_illegal_move_is_an_error_and_changes_nothing():
    search, root = searched(MIDDLE, Hashed(), simulations=20)
    for label, promotion in ((0, 0), (4095, 0), (int(root.labels[0]), 5), (-1, 0)):
        with pytest.raises(LabelError, match="not a legal move"):
            search.play(0, label, promotion)
    assert search.root().visits.tolist() == root.visits.tolist()


def test_played_moves_join_the_history_until_the_next_start():
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
    begin(search, 0, chess.Board())
    assert search.outcome() is None
