"""Gumbel search: Sequential Halving and completed Q-values by hand, and the noise."""

from collections import Counter

import chess
import numpy as np
import pytest

from engine.evaluation.evaluator import uniform
from engine.search import Search, SearchConfig
from engine.search.gumbel import plan_halving
from tests.engine.search.stubs import MIDDLE, Laid, begin, by_uci, chosen, searched
from tests.engine.search.test_puct import LAID, MOVES, ROOT

QUIET = {"algorithm": "gumbel", "gumbel_scale": 0.0}

# considered, simulations, visits of the moves from the best down. By hand: ceil(log2 considered)
# rounds, each of which gives max(1, simulations // (rounds * left)) visits to every move left and
# then halves them, but never below two.
HALVING = [
    (1, 5, [5]),
    (2, 2, [1, 1]),
    (3, 6, [3, 2, 1]),  # 3 x 1; 2 x 1; 2 x 1, of which one is due
    (4, 4, [1, 1, 1, 1]),
    (4, 8, [3, 3, 1, 1]),  # 4 x 1; 2 x 2
    (4, 16, [6, 6, 2, 2]),  # 4 x 2; 2 x 4
    (8, 50, [15, 15, 6, 6, 2, 2, 2, 2]),  # 8 x 2; 4 x 4; 2 x 8; two over
    (16, 16, [1] * 16),
    (16, 32, [4] * 4 + [2] * 4 + [1] * 8),  # 16 x 1; 8 x 1; 4 x 2
    (16, 64, [15, 15, 7, 7] + [3] * 4 + [1] * 8),  # 16 x 1; 8 x 2; 4 x 4; 2 x 8
    (16, 200, [49, 49, 21, 21] + [9] * 4 + [3] * 8),  # 16 x 3; 8 x 6; 4 x 12; 2 x 25; six over
]


def test_the_plan_is_as_worked_by_hand():
    for considered, simulations, visits in HALVING:
        plan = np.zeros(simulations, dtype=np.int32)
        plan_halving(considered, simulations, plan)
        # equal visits first, then one more for all remaining moves
        assert plan.tolist() == sorted(done for total in visits for done in range(total))


def test_completed_values_and_the_improved_policy_are_as_worked_by_hand():
    """Root .2, priors .5 .3 .2; a1a2 and a1b1 tried once: -.4 and +.5; a1b2 not tried.

    v_mix = (.2 + 2 * (.5 * -.4 + .3 * .5) / .8) / 3 = .025, which is a1b2's value. Rescaled: 0, 1,
    .425 / .9; times (50 + 1) * .1: 0, 5.1, 2.40833. Added to the logarithms of the priors and
    normalised: .009628, .947563, .042809.
    """
    search, root = searched(ROOT, LAID, simulations=2, max_considered_actions=2, **QUIET)
    visits, improved = by_uci(root, chess.WHITE), by_uci(root, chess.WHITE, "improved")
    assert [visits[uci] for uci in MOVES] == [1, 1, 0]
    assert [improved[uci] for uci in MOVES] == pytest.approx(
        [0.009628, 0.947563, 0.042809], abs=2e-6
    )
    assert chosen(search, 0, chess.WHITE) == "a1b1", "visited as often as a1a2, and much better"


def tried_sets(considered: int, games: int) -> Counter[tuple[str, ...]]:
    """Count which moves get the first `considered` simulations, over many games."""
    config = SearchConfig(
        algorithm="gumbel",
        simulations=considered,
        max_considered_actions=considered,
        policy_temperature=1.0,
    )
    table = Laid({ROOT: (0.0, {"a1a2": 0.5, "a1b1": 0.3, "a1b2": 0.2})})
    search = Search(table, config, games=games)
    for slot in range(games):
        begin(search, slot, chess.Board(ROOT))
    search.run()
    visits = [by_uci(search.root(slot), chess.WHITE) for slot in range(games)]
    return Counter(tuple(uci for uci in MOVES if counts[uci]) for counts in visits)


def test_moves_are_drawn_by_their_priors_without_replacement():
    """Gumbel-top-k samples without replacement: P(a2, b1) = .5 * .3 / .5 + .3 * .5 / .7."""
    games = 1000
    one, two = tried_sets(1, games), tried_sets(2, games)
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


def test_a_second_run_plans_anew():
    search, first = searched(MIDDLE, uniform, simulations=32, **QUIET)
    before = first.visits.copy()
    search.run()
    added = np.sort(search.root(0).visits - before)[::-1]
    assert added.sum() == 32
    assert added[:16].tolist() == [4] * 4 + [2] * 4 + [1] * 8
