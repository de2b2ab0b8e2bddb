"""PUCT against a tree worked by hand, and against a slow search written from the papers, whoever
the neighbours are."""

import math

import chess
import numpy as np
import pytest

from engine.evaluation.evaluator import uniform
from engine.search import Search, SearchConfig
from tests.engine.search import reference
from tests.engine.search.stubs import Hashed, Laid, begin, board_of, by_uci, play, searched

# Two kings and two pawns that block each other: White's king on a1 and Black's on h8 have three
# moves each.
ROOT = "7k/8/8/3p4/3P4/8/8/K7 w - - 0 1"
AFTER_A2 = "7k/8/8/3p4/3P4/8/K7/8 b - - 1 1"
AFTER_B1 = "7k/8/8/3p4/3P4/8/8/1K6 b - - 1 1"
AFTER_B2 = "7k/8/8/3p4/3P4/8/1K6/8 b - - 1 1"
AFTER_B1_G7 = "8/6k1/8/3p4/3P4/8/8/1K6 w - - 2 2"
AFTER_B1_G7_C2 = "8/6k1/8/3p4/3P4/8/2K5/8 b - - 3 2"
AFTER_B2_H7 = "8/7k/8/3p4/3P4/8/1K6/8 w - - 2 2"
LAID = Laid(
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
# Score = value + prior * sqrt(visits of all, at least 1) / (1 + visits); an unvisited move is worth
# the root's mean, its own evaluation included. a1a2                         b1
# b2                       to     White's value of the leaf 1    .2+.5         =  .7        .2+.3
# =  .5        .2+.2          =  .4            a2     -.4      mean -.1 2   -.4+1*.5/2     = -.15
# -.1+1*.3         =  .2       -.1+1*.2        =  .1            b1     +.5      mean  .1 3
# -.4+1.414*.5/2 = -.046      .5+1.414*.3/2   =  .712      .1+1.414*.2    =  .383          b1 g7
# +.1      mean  .1 4   -.4+1.732*.5/2 =  .033      .3+1.732*.3/3   =  .473      .1+1.732*.2    =
# .446          b1 g7 c2  -.7   mean -.06 5   -.4+2.000*.5/2 =  .1       -.033+2*.3/4     =  .117
# -.06+2*.2       =  .34           b2      0       mean -.05 6   -.4+2.236*.5/2 =  .159
# -.033+2.236*.3/4 =  .134       0+2.236*.2/2  =  .224          b2 h7  -.3      mean -.6/7 In the
# third, Black at b1 tries the likeliest, g7; in the fourth g8 -.3+.2, g7 -.1+.5/2, h7 -.3+.3: g7
# again.
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
def test_the_small_tree_grows_as_worked_by_hand(simulations: int):
    _, root = searched(ROOT, LAID, simulations=simulations, **PLAIN)
    visits, values = BY_HAND[simulations]
    assert tuple(by_uci(root, chess.WHITE)[uci] for uci in MOVES) == visits
    for uci, value in zip(MOVES, values, strict=True):
        got = by_uci(root, chess.WHITE, "values")[uci]
        assert math.isnan(got) if value is None else got == pytest.approx(value, abs=1e-6)
    priors = by_uci(root, chess.WHITE, "priors")
    assert [priors[uci] for uci in MOVES] == pytest.approx([0.5, 0.3, 0.2], abs=1e-6)
    assert root.simulations == simulations


def test_the_small_tree_is_as_worked_by_hand_below_the_root():
    search, root = searched(ROOT, LAID, simulations=6, **PLAIN)
    assert root.value == pytest.approx(-0.6 / 7, abs=1e-6)
    assert (root.nodes, root.seldepth) == (7, 3)
    assert search.evaluations == 7, "six leaves and the root"
    _, after_b1 = searched(ROOT, LAID, simulations=6, path="a1b1", **PLAIN)
    assert by_uci(after_b1, chess.BLACK) == {"h8g8": 0, "h8g7": 2, "h8h7": 0}
    assert by_uci(after_b1, chess.BLACK, "values")["h8g7"] == pytest.approx(0.3, abs=1e-6)
    assert after_b1.value == pytest.approx(0.1 / 3, abs=1e-6)
    _, after_g7 = searched(ROOT, LAID, simulations=6, path="a1b1 h8g7", **PLAIN)
    assert by_uci(after_g7, chess.WHITE) == {"b1c2": 1, "b1a1": 0, "b1a2": 0, "b1b2": 0, "b1c1": 0}
    assert by_uci(after_g7, chess.WHITE, "values")["b1c2"] == pytest.approx(-0.7, abs=1e-6)
    _, after_b2 = searched(ROOT, LAID, simulations=6, path="a1b2", **PLAIN)
    assert by_uci(after_b2, chess.BLACK) == {"h8g8": 0, "h8g7": 0, "h8h7": 1}


@pytest.mark.parametrize(("games", "slot"), [(2, 0), (2, 1), (9, 4), (64, 63)])
def test_the_small_tree_is_the_same_beside_any_neighbours(games: int, slot: int):
    search = Search(LAID, SearchConfig(simulations=6, policy_temperature=1.0, **PLAIN), games=games)
    boards = [
        board_of(chess.STARTING_FEN, line) for line in ("", "e2e4", "d2d4 d7d5", "g1f3 g8f6 f3g1")
    ]
    for other in range(games):
        begin(search, other, chess.Board(ROOT) if other == slot else boards[other % 4])
    search.run()
    assert by_uci(search.root(slot), chess.WHITE) == {"a1a2": 1, "a1b1": 3, "a1b2": 2}
    board = chess.Board(ROOT)
    play(search, slot, board, "a1b1")
    assert by_uci(search.root(slot), chess.BLACK) == {"h8g8": 0, "h8g7": 2, "h8h7": 0}


def assert_same_tree(
    board: chess.Board, node: reference.Node, visited: list[str], **options: object
) -> int:
    """Compare every position of the tree that has three visits or more; give how many there
    were."""
    _, root = searched(board, path=" ".join(visited), **options)  # type: ignore[arg-type]
    assert by_uci(root, node.board.turn) == node.visits_by_uci(), visited
    assert root.value == pytest.approx(node.value_sum / node.visits, abs=1e-5)
    compared = 1
    for index, child in node.children.items():
        if child.visits >= 3 and not child.over:
            compared += assert_same_tree(
                board, child, [*visited, node.moves[index].uci()], **options
            )
    return compared


MIDDLE = "r1bq1rk1/pp2bppp/2n1pn2/3p4/2PP4/2N2N2/PP2BPPP/R1BQ1RK1 w - - 0 9"
OPENINGS = [
    (chess.STARTING_FEN, ""),
    (MIDDLE, ""),
    ("r3k2r/pppq1ppp/2npbn2/2b1p3/2B1P3/2NPBN2/PPPQ1PPP/R3K2R b KQkq - 4 8", ""),
    ("8/8/4k3/3p4/3P4/4K3/8/8 w - - 0 1", "e3d3 e6d6 d3e3 d6e6"),  # repetitions near
    ("8/8/4k3/3p4/3P4/4K3/8/8 w - - 95 90", ""),  # fifty moves near
]


@pytest.mark.parametrize(("fen", "line"), OPENINGS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"c_puct": 0.8, "c_base": 20.0, "c_factor": 1.5, "c_stdev": 0.0, "fpu_reduction": 0.0},
        {
            "c_puct": 3.0,
            "c_factor": 0.0,
            "c_stdev": 1.0,
            "fpu_reduction": 1.0,
            "policy_temperature": 1.7,
        },
    ],
)
def test_trees_are_those_of_the_slow_search(fen: str, line: str, options: dict[str, float]):
    board = board_of(fen, line)
    plain = {
        "temperature" if name == "policy_temperature" else name: value
        for name, value in options.items()
    }
    evaluator = Hashed()
    node = reference.puct(board, evaluator, 160, **plain)
    compared = assert_same_tree(board, node, [], evaluator=evaluator, simulations=160, **options)
    assert compared > 8


@pytest.mark.parametrize(("fen", "line"), OPENINGS)
@pytest.mark.parametrize(
    "options",
    [
        {"leaves": 8},
        {"leaves": 3, "fpu_reduction": 1.2},
        {"leaves": 8, "c_puct": 3.0, "c_factor": 0.0, "fpu_reduction": 0.0},
    ],
)
def test_trees_of_several_leaves_at_once_are_those_of_the_slow_search(
    fen: str, line: str, options: dict[str, float]
):
    board = board_of(fen, line)
    evaluator = Hashed()
    node = reference.puct(board, evaluator, 160, **options)  # type: ignore[arg-type]
    assert assert_same_tree(board, node, [], evaluator=evaluator, simulations=160, **options) > 8


def test_an_untried_move_is_worth_the_mean_of_what_has_come_back():
    """Two leaves a round, every position worth .7 to White but the root .8; c 1, no reduction.

    The first round tries a1a2 and a1b1, and the root's mean is 2.2/3. In the second a1a2 is taken
    again (.7 + .5 * 1.414/2), and while it is in flight a1b1 is worth .7 + .3 * 1.732/2 = .96 and
    a1b2 .733 + .2 * 1.732 = 1.08. Were the visit in flight counted, with nothing, the mean would be
    2.2/4 and a1b2 .90.
    """
    even = {"h8g8": 0.4, "h8g7": 0.3, "h8h7": 0.3}
    laid = Laid(
        {
            ROOT: (0.8, {"a1a2": 0.5, "a1b1": 0.3, "a1b2": 0.2}),
            AFTER_A2: (-0.7, even),
            AFTER_B1: (-0.7, even),
            AFTER_B2: (-0.7, even),
        }
    )
    _, root = searched(ROOT, laid, simulations=4, leaves=2, **PLAIN)
    assert [by_uci(root, chess.WHITE)[uci] for uci in MOVES] == [2, 1, 1]


def test_exploration_grows_by_its_logarithm():
    """At c_base 1 the growth is large: more visits leave the best move than at c_factor 0."""
    shares = []
    for factor in (0.0, 3.0):
        _, root = searched(MIDDLE, Hashed(), simulations=400, c_base=1.0, c_factor=factor)
        shares.append(root.visits.max() / root.visits.sum())
        node = reference.puct(chess.Board(MIDDLE), Hashed(), 400, c_base=1.0, c_factor=factor)
        assert by_uci(root, chess.WHITE) == node.visits_by_uci()
    assert shares[1] < 0.7 * shares[0]


def test_first_play_urgency_keeps_to_what_was_tried():
    """With every position even, a move is left after one visit without reduction, and kept with a
    large one.

    Root even, priors .5 .3 .2, c 1. After one visit of a1a2: it scores .5/2, a1b1 .3 - r *
    sqrt(.5): for r > .0707 it is a1a2 again.
    """
    even = Laid({ROOT: (0.0, {"a1a2": 0.5, "a1b1": 0.3, "a1b2": 0.2})})
    for reduction, expected in ((0.0, (1, 1)), (0.07, (1, 1)), (0.0708, (2, 0)), (0.5, (2, 0))):
        _, root = searched(ROOT, even, simulations=2, **PLAIN | {"fpu_reduction": reduction})
        visits = by_uci(root, chess.WHITE)
        assert (visits["a1a2"], visits["a1b1"]) == expected, reduction


def test_policy_temperature_flattens_priors_everywhere():
    both = np.array([0.5, 0.3, 0.2]) ** 0.5
    search, root = searched(ROOT, LAID, simulations=6, policy_temperature=2.0)
    assert sorted(root.priors.tolist(), reverse=True) == pytest.approx(
        (both / both.sum()).tolist(), abs=1e-6
    )
    play(search, 0, chess.Board(ROOT), "a1b1")
    below = by_uci(search.root(0), chess.BLACK, "priors")
    black = np.array([0.2, 0.5, 0.3]) ** 0.5
    assert [below[uci] for uci in ("h8g8", "h8g7", "h8h7")] == pytest.approx(
        (black / black.sum()).tolist(), abs=1e-6
    )


def test_dirichlet_noise_has_its_share_and_its_concentration():
    """Priors are (1 - share) * policy + share * noise; noise of a symmetric Dirichlet has mean 1/M,
    variance below."""
    share, alpha, moves = 0.25, 0.3, 20
    noise = []
    for seed in range(300):
        _, root = searched(
            chess.STARTING_FEN,
            uniform,
            seed=seed,
            simulations=1,
            dirichlet_fraction=share,
            dirichlet_alpha=alpha,
        )
        assert root.priors.sum() == pytest.approx(1.0, abs=1e-5)
        noise.append(np.sort((root.priors - (1 - share) / moves) / share))
    noise_NM = np.array(noise)
    assert noise_NM.min() > -1e-6
    assert noise_NM.mean() == pytest.approx(1 / moves, abs=1e-6)
    variance = (1 / moves) * (1 - 1 / moves) / (moves * alpha + 1)
    assert (noise_NM**2).mean() - noise_NM.mean() ** 2 == pytest.approx(variance, rel=0.1)
    assert len({tuple(row) for row in noise_NM.round(6).tolist()}) == 300, "each seed has its own"


def test_noise_stays_at_the_root_and_is_drawn_again_after_a_move():
    search, root = searched(ROOT, LAID, simulations=40, dirichlet_fraction=0.5, seed=3)
    assert sorted(root.priors.tolist(), reverse=True) != pytest.approx([0.5, 0.3, 0.2], abs=0.01)
    play(search, 0, chess.Board(ROOT), "a1b1")
    before = by_uci(search.root(0), chess.BLACK, "priors")
    assert [before[uci] for uci in ("h8g8", "h8g7", "h8h7")] == pytest.approx(
        [0.2, 0.5, 0.3], abs=1e-6
    )
    search.run(simulations=1)
    after = by_uci(search.root(0), chess.BLACK, "priors")
    assert max(abs(after[uci] - before[uci]) for uci in before) > 0.01


def test_an_underpromotion_shares_its_label_s_prior():
    fen = "8/P7/8/8/8/7k/8/K7 w - - 0 1"
    table = Laid({fen: (0.0, {"a7a8q": 0.7, "a1a2": 0.1, "a1b1": 0.1, "a1b2": 0.1})})
    _, root = searched(fen, table, simulations=1)
    priors = by_uci(root, chess.WHITE, "priors")
    assert sum(priors["a7a8" + piece] for piece in "nbrq") == pytest.approx(0.7, abs=1e-5)
    assert priors["a7a8q"] > 0.6
    assert all(priors["a7a8" + piece] > 0 for piece in "nbr")
    assert priors["a1b1"] == pytest.approx(0.1, abs=1e-5)
