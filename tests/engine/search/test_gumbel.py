"""Gumbel search: plans and an improved policy computed by hand, the noise and repeated runs."""

from collections import Counter

import chess
import numpy as np
import pytest

from engine.evaluation.evaluator import uniform
from engine.search import Search, SearchConfig
from engine.search.gumbel import plan_halving
from tests.engine.search.stubs import (
    MIDDLEGAME,
    TableEvaluator,
    by_uci,
    search_board,
    start_board,
)
from tests.engine.search.test_puct import MOVES, ROOT, SMALL_TREE

QUIET = {"algorithm": "gumbel", "gumbel_scale": 0.0}


@pytest.mark.parametrize(
    ("considered", "simulations", "visits"),
    [
        (3, 6, [3, 2, 1]),  # 3 x 1; 2 x 1; one of 2 x 1
        (8, 50, [15, 15, 6, 6, 2, 2, 2, 2]),  # 8 x 2; 4 x 4; 2 x 8; two more
        (16, 32, [4] * 4 + [2] * 4 + [1] * 8),  # 16 x 1; 8 x 1; 4 x 2
    ],
)
def test_the_plan_equals_one_computed_by_hand(
    considered: int, simulations: int, visits: list[int]
) -> None:
    """`visits` are those of the moves, best first."""
    plan = np.zeros(simulations, dtype=np.int32)
    plan_halving(considered, simulations, plan)
    assert plan.tolist() == sorted(done for total in visits for done in range(total))


def test_the_improved_policy_equals_one_computed_by_hand():
    """Root .2, priors .5 .3 .2; a1a2 and a1b1 are visited once: -.4 and +.5; a1b2 is not visited.

    v_mix = (.2 + 2 * (.5 * -.4 + .3 * .5) / .8) / 3 = .025, the value of a1b2. Rescaled: 0, 1,
    .425 / .9; times (50 + 1) * .1: 0, 5.1, 2.40833. The policy is the softmax of these plus the
    logarithms of the priors.
    """
    _, root = search_board(ROOT, SMALL_TREE, simulations=2, max_considered_actions=2, **QUIET)
    improved = by_uci(root, chess.WHITE, "improved")
    expected = [0.009628, 0.947563, 0.042809]
    assert [improved[uci] for uci in MOVES] == pytest.approx(expected, abs=2e-6)


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
