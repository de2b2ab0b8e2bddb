"""PUCT: a small tree computed by hand, the root's noise, and priors of promotions."""

import chess
import numpy as np
import pytest

from engine.evaluation.evaluator import uniform
from tests.engine.search.stubs import TableEvaluator, by_uci, play, search_board

# Two kings and two pawns that block each other: White's king on a1 and Black's on h8 have three
# moves each.
ROOT = "7k/8/8/3p4/3P4/8/8/K7 w - - 0 1"
AFTER_A2 = "7k/8/8/3p4/3P4/8/K7/8 b - - 1 1"
AFTER_B1 = "7k/8/8/3p4/3P4/8/8/1K6 b - - 1 1"
AFTER_B2 = "7k/8/8/3p4/3P4/8/1K6/8 b - - 1 1"
AFTER_B1_G7 = "8/6k1/8/3p4/3P4/8/8/1K6 w - - 2 2"
AFTER_B1_G7_C2 = "8/6k1/8/3p4/3P4/8/2K5/8 b - - 3 2"
AFTER_B2_H7 = "8/7k/8/3p4/3P4/8/1K6/8 w - - 2 2"
SMALL_TREE = TableEvaluator(
    {
        ROOT: (0.2, {"a1a2": 0.5, "a1b1": 0.3, "a1b2": 0.2}),
        AFTER_A2: (0.4, {"h8g8": 0.6, "h8g7": 0.3, "h8h7": 0.1}),
        AFTER_B1: (-0.5, {"h8g8": 0.2, "h8g7": 0.5, "h8h7": 0.3}),
        AFTER_B2: (0.0, {"h8g8": 0.1, "h8g7": 0.1, "h8h7": 0.8}),
        AFTER_B1_G7: (0.1, {"b1c2": 0.6, "b1a1": 0.1, "b1a2": 0.1, "b1b2": 0.1, "b1c1": 0.1}),
        AFTER_B1_G7_C2: (0.7, {}),
        AFTER_B2_H7: (-0.3, {}),
    }
)
PLAIN = {"c_puct": 1.0, "c_factor": 0.0, "c_stdev": 0.0, "fpu_reduction": 0.0}
# Score = value + prior * sqrt(visits of all, at least 1) / (1 + visits). The value of an unvisited
# move is the root's mean, which includes the root's own evaluation.
#
#    a1a2                     a1b1                     a1b2                    to         its value
# 1  .2+.5          =  .7     .2+.3          =  .5     .2+.2         =  .4     a2         -.4
# 2  -.4+1*.5/2     = -.15    -.1+1*.3       =  .2     -.1+1*.2      =  .1     b1         +.5
# 3  -.4+1.414*.5/2 = -.046   .5+1.414*.3/2  =  .712   .1+1.414*.2   =  .383   b1 g7      +.1
# 4  -.4+1.732*.5/2 =  .033   .3+1.732*.3/3  =  .473   .1+1.732*.2   =  .446   b1 g7 c2   -.7
# 5  -.4+2.000*.5/2 =  .1     -.033+2*.3/4   =  .117   -.06+2*.2     =  .34    b2          0
# 6  -.4+2.236*.5/2 =  .159   -.033+2.236*.3/4 = .134  0+2.236*.2/2  =  .224   b2 h7      -.3
#
# In simulation 3, Black at b1 plays the likeliest move, g7. In simulation 4, the scores of g8, g7
# and h7 are -.3+.2, -.1+.5/2 and -.3+.3, so it is g7 again.
BY_HAND = {  # simulations -> visits, values of a1a2, a1b1, a1b2
    1: ((1, 0, 0), (-0.4, None, None)),
    2: ((1, 1, 0), (-0.4, 0.5, None)),
    3: ((1, 2, 0), (-0.4, 0.3, None)),
    4: ((1, 3, 0), (-0.4, -0.1 / 3, None)),
    5: ((1, 3, 1), (-0.4, -0.1 / 3, 0.0)),
    6: ((1, 3, 2), (-0.4, -0.1 / 3, -0.15)),
}
MOVES = ("a1a2", "a1b1", "a1b2")


@pytest.mark.parametrize("simulations", BY_HAND)
def test_the_small_tree_grows_as_computed_by_hand(simulations: int):
    _, root = search_board(ROOT, SMALL_TREE, simulations=simulations, **PLAIN)
    visits, values = BY_HAND[simulations]
    assert tuple(by_uci(root, chess.WHITE)[uci] for uci in MOVES) == visits
    found = [by_uci(root, chess.WHITE, "values")[uci] for uci in MOVES]
    wanted = [np.nan if value is None else value for value in values]
    assert found == pytest.approx(wanted, abs=1e-6, nan_ok=True)
    priors = by_uci(root, chess.WHITE, "priors")
    assert [priors[uci] for uci in MOVES] == pytest.approx([0.5, 0.3, 0.2], abs=1e-6)
    assert root.simulations == simulations


def test_dirichlet_noise_has_the_right_mean_and_variance():
    share, alpha, moves = 0.25, 0.3, 20
    options = {"simulations": 1, "dirichlet_fraction": share, "dirichlet_alpha": alpha}
    noise = []
    for seed in range(150):
        _, root = search_board(chess.STARTING_FEN, uniform, seed=seed, **options)
        assert root.priors.sum() == pytest.approx(1.0, abs=1e-5)
        noise.append(np.sort((root.priors - (1 - share) / moves) / share))
    noise_NM = np.array(noise)
    assert noise_NM.min() > -1e-6
    assert noise_NM.mean() == pytest.approx(1 / moves, abs=1e-6)
    variance = (1 / moves) * (1 - 1 / moves) / (moves * alpha + 1)
    assert (noise_NM**2).mean() - noise_NM.mean() ** 2 == pytest.approx(variance, rel=0.15)
    assert len({tuple(row) for row in noise_NM.round(6).tolist()}) == 150, "seeds differ"


def test_noise_is_added_only_to_the_root_and_again_after_a_move():
    search, root = search_board(ROOT, SMALL_TREE, simulations=40, dirichlet_fraction=0.5, seed=3)
    assert sorted(root.priors.tolist(), reverse=True) != pytest.approx([0.5, 0.3, 0.2], abs=0.01)
    play(search, 0, chess.Board(ROOT), "a1b1")
    before = by_uci(search.root(0), chess.BLACK, "priors")
    assert [before[uci] for uci in ("h8g8", "h8g7", "h8h7")] == pytest.approx(
        [0.2, 0.5, 0.3], abs=1e-6
    )
    search.run(simulations=1)
    after = by_uci(search.root(0), chess.BLACK, "priors")
    assert max(abs(after[uci] - before[uci]) for uci in before) > 0.01


def test_the_four_promotions_share_their_label_s_prior():
    fen = "8/P7/8/8/8/7k/8/K7 w - - 0 1"
    table = TableEvaluator({fen: (0.0, {"a7a8q": 0.7, "a1a2": 0.1, "a1b1": 0.1, "a1b2": 0.1})})
    _, root = search_board(fen, table, simulations=1)
    priors = by_uci(root, chess.WHITE, "priors")
    assert sum(priors["a7a8" + piece] for piece in "nbrq") == pytest.approx(0.7, abs=1e-5)
    assert priors["a7a8q"] > 0.6
    assert all(priors["a7a8" + piece] > 0 for piece in "nbr")
    assert priors["a1b1"] == pytest.approx(0.1, abs=1e-5)
