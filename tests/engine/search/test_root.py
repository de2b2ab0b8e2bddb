"""The root of a search: the choice of a move, and the subtree that is kept after it."""

from collections import Counter

import chess
import numpy as np
import pytest

from engine.encoding.planes import LabelError
from tests.engine.search.stubs import (
    MIDDLEGAME,
    HashEvaluator,
    TableEvaluator,
    board_of,
    by_uci,
    choose_uci,
    list_ucis,
    play,
    search_board,
)
from tests.engine.search.test_puct import MOVES, PLAIN, ROOT, SMALL_TREE
from tests.engine.search.test_search import check_tree


def test_a_temperature_samples_in_proportion_to_powers_of_visits():
    search, root = search_board(ROOT, SMALL_TREE, simulations=6, **PLAIN)
    labels = by_uci(root, chess.WHITE, "labels")
    for temperature in (1.0, 0.5, 2.0):
        drawn = Counter(int(search.choose(temperature=temperature)[0][0]) for _ in range(3000))
        weights = np.array([1.0, 3.0, 2.0]) ** (1 / temperature)  # visits
        for uci, share in zip(MOVES, weights / weights.sum(), strict=True):
            assert drawn[labels[uci]] / 3000 == pytest.approx(share, abs=0.03)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_proven_loss_is_not_chosen_even_if_only_it_has_visits(temperature: float):
    board = board_of(chess.STARTING_FEN, "f2f3 e7e5")
    mate = board_of(board.fen(), "g2g4")
    table = TableEvaluator({board.fen(): (0.0, {"g2g4": 1.0}), mate.fen(): (0.0, {"d8h4": 1.0})})
    search, root = search_board(board, table, simulations=2)
    assert by_uci(root, chess.WHITE, "proven")["g2g4"] == -1
    assert by_uci(root, chess.WHITE)["g2g4"] == root.visits.sum()
    assert choose_uci(search, 0, chess.WHITE, temperature=temperature) != "g2g4"


def test_gumbel_chooses_the_winner_of_the_halving_or_samples_its_improved_policy():
    options = {"algorithm": "gumbel", "gumbel_scale": 0.0}
    search, root = search_board(MIDDLEGAME, HashEvaluator(), simulations=64, **options)
    most = [uci for uci, visits in by_uci(root, chess.WHITE).items() if visits == root.visits.max()]
    improved = by_uci(root, chess.WHITE, "improved")
    assert choose_uci(search, 0, chess.WHITE) == max(most, key=improved.__getitem__)
    search, root = search_board(ROOT, SMALL_TREE, simulations=6, **options)
    drawn = Counter(int(search.choose(temperature=1.0)[0][0]) for _ in range(3000))
    for label, share in zip(root.labels.tolist(), root.improved.tolist(), strict=True):
        assert drawn[label] / 3000 == pytest.approx(share, abs=0.03)


def test_variations_follow_the_most_visited_moves():
    search, root = search_board(ROOT, SMALL_TREE, simulations=6, **PLAIN)
    moves = list_ucis(root, chess.WHITE)
    wanted = {"a1b1": 3, "a1b2": 2, "a1a2": 1}  # b1 g7 c2; b2 h7; a2
    assert {uci: len(search.line(0, moves.index(uci))) for uci in moves} == wanted
    assert search.line(0) == search.line(0, moves.index("a1b1"))


def test_the_kept_tree_has_the_child_s_visits_and_values():
    board = chess.Board(MIDDLEGAME)
    search, root = search_board(board, HashEvaluator(), simulations=400)
    for _ in range(4):
        best = choose_uci(search, 0, board.turn)
        visits, value = (
            by_uci(root, board.turn)[best],
            by_uci(root, board.turn, "values")[best],
        )
        assert visits > 10
        assert play(search, 0, board, best)
        board.push_uci(best)
        root, evaluations = search.root(), search.evaluations
        assert root.visits.sum() + 1 == visits, "one visit evaluated the position itself"
        assert root.value == pytest.approx(-value, abs=1e-6)
        assert set(list_ucis(root, board.turn)) == {move.uci() for move in board.legal_moves}
        check_tree(search, 0)
        search.run()
        root = search.root()
        assert root.visits.sum() == visits - 1 + 400
        assert search.evaluations - evaluations <= 400, "kept positions are not evaluated again"


def test_an_unvisited_move_starts_a_new_tree():
    board = chess.Board(MIDDLEGAME)
    search, root = search_board(board, HashEvaluator(spread=12.0), simulations=30)
    ignored = next(uci for uci, visits in by_uci(root, board.turn).items() if visits == 0)
    assert not play(search, 0, board, ignored)
    board.push_uci(ignored)
    assert len(search.root().labels) == 0
    search.run()
    assert search.root().visits.sum() == 30
    assert set(list_ucis(search.root(), board.turn)) == {move.uci() for move in board.legal_moves}


def test_an_illegal_move_is_an_error_and_changes_nothing():
    search, root = search_board(MIDDLEGAME, HashEvaluator(), simulations=20)
    for label, promotion in ((0, 0), (4095, 0), (int(root.labels[0]), 5), (-1, 0)):
        with pytest.raises(LabelError, match="not a legal move"):
            search.play(0, label, promotion)
    assert search.root().visits.tolist() == root.visits.tolist()
