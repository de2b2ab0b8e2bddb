"""Gumbel search: what the slow reference does not cover, the noise and repeated runs."""

from collections import Counter

import chess
import numpy as np
import pytest

from engine.evaluation.evaluator import uniform
from engine.search import Search, SearchConfig
from tests.engine.search.stubs import (
    MIDDLEGAME,
    TableEvaluator,
    by_uci,
    search_board,
    start_board,
)
from tests.engine.search.test_puct import MOVES, ROOT

QUIET = {"algorithm": "gumbel", "gumbel_scale": 0.0}


def count_considered_moves(considered: int, games: int) -> Counter[tuple[str, ...]]:
    """Count the sets of moves that get the first `considered` simulations in many games."""
    config = SearchConfig(
        algorithm="gumbel",
        simulations=considered,
        max_considered_actions=considered,
        policy_temperature=1.0,
    )
    table = TableEvaluator({ROOT: (0.0, {"a1a2": 0.5, "a1b1": 0.3, "a1b2": 0.2})})
    search = Search(table, config, games=games)
    for slot in range(games):
        start_board(search, slot, chess.Board(ROOT))
    search.run()
    visits = [by_uci(search.root(slot), chess.WHITE) for slot in range(games)]
    return Counter(tuple(uci for uci in MOVES if counts[uci]) for counts in visits)


def test_noise_samples_moves_by_their_priors_without_replacement():
    """For example, P(a2 and b1) = .5 * .3 / .5 + .3 * .5 / .7."""
    games = 1000
    one, two = count_considered_moves(1, games), count_considered_moves(2, games)
    for uci, share in zip(MOVES, (0.5, 0.3, 0.2), strict=True):
        assert one[(uci,)] / games == pytest.approx(share, abs=0.04)
    pairs = {
        MOVES[:2]: 0.3 + 0.15 / 0.7,
        (MOVES[0], MOVES[2]): 0.2 + 0.1 / 0.8,
        MOVES[1:]: 0.06 / 0.7 + 0.06 / 0.8,
    }
    assert sum(pairs.values()) == pytest.approx(1.0)
    for pair, share in pairs.items():
        assert two[pair] / games == pytest.approx(share, abs=0.04)


def test_each_run_has_its_own_plan():
    search, first = search_board(MIDDLEGAME, uniform, simulations=32, **QUIET)
    before = first.visits.copy()
    search.run()
    added = np.sort(search.root(0).visits - before)[::-1]
    assert added.sum() == 32
    assert added[:16].tolist() == [4] * 4 + [2] * 4 + [1] * 8
