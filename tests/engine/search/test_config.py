"""Each option is off unless asked for, and does what it says."""

import chess
import numpy as np
import pytest

from engine.evaluation.evaluator import uniform
from engine.search import Search, SearchConfig
from tests.engine.search.stubs import Hashed, Laid, begin, board_of, by_uci, chosen, searched
from tests.engine.search.test_puct import MIDDLE, ROOT

OFF = {
    "widening_factor": 0.0,
    "top_k": 0,
    "tail_mass": 0.0,
    "repetition_penalty": 0.0,
    "early_stop": False,
    "dominance": 0.0,
    "branching_exponent": 0.0,
    "endgame_factor": 1.0,
    "leaves": 1,
    "dirichlet_fraction": 0.0,
    "policy_temperature": 1.4,
}


def test_options_are_off_unless_asked_for():
    config = SearchConfig()
    assert {name: getattr(config, name) for name in OFF} == OFF
    assert OFF.keys() <= set(SearchConfig.__slots__)
    _, plain = searched(
        MIDDLE, Hashed(), simulations=200, policy_temperature=config.policy_temperature
    )
    _, off = searched(MIDDLE, Hashed(), simulations=200, **OFF)
    assert plain.visits.tolist() == off.visits.tolist()


def visited_priors(**options: float) -> tuple[np.ndarray, np.ndarray]:
    """Search MIDDLE wide and give (visits, priors), likeliest first."""
    _, root = searched(
        MIDDLE, Hashed(spread=2.0), simulations=300, c_puct=20.0, fpu_reduction=0.0, **options
    )
    order = np.argsort(-root.priors, kind="stable")
    return root.visits[order], root.priors[order]


def test_without_filters_every_move_is_visited():
    assert (visited_priors()[0] > 0).all()


def test_top_k_keeps_to_the_k_likeliest():
    visits, _ = visited_priors(top_k=5)
    assert (visits[:5] > 0).all()
    assert not visits[5:].any()


def test_top_k_takes_the_likeliest_after_noise():
    """Noise changes the order: in the old one, moves that it favors are never searched."""
    changed = 0
    for seed in range(20):
        options = {"dirichlet_fraction": 0.9, "top_k": 3, "c_puct": 20.0, "fpu_reduction": 0.0}
        _, root = searched(MIDDLE, Hashed(spread=2.0), simulations=100, seed=seed, **options)
        assert (np.diff(root.priors) <= 0).all()
        assert np.flatnonzero(root.visits).tolist() == [0, 1, 2]
        _, plain = searched(MIDDLE, Hashed(spread=2.0), simulations=1)
        changed += set(root.labels[:3].tolist()) != set(plain.labels[:3].tolist())
    assert changed > 10


def test_top_k_holds_below_the_root_too():
    _, below = searched(MIDDLE, Hashed(), simulations=600, top_k=3, path=first_choice(top_k=3))
    assert (below.visits > 0).sum() == 3


def first_choice(**options: float) -> str:
    search, _ = searched(MIDDLE, Hashed(), simulations=600, **options)
    return chosen(search, 0, chess.WHITE)


def test_tail_leaves_out_the_least_likely():
    """The least likely moves whose priors sum to the tail or less are not walked."""
    visits, priors = visited_priors(tail_mass=0.2)
    left_out = np.cumsum(priors[::-1])[::-1] <= 0.2 + 1e-6
    assert 3 < left_out.sum() < len(priors) - 3
    assert not visits[left_out].any()
    assert (visits[~left_out] > 0).all()


def test_filters_give_way_when_all_that_is_left_loses():
    """The one move that top-k leaves is mated at once; the search finds the other."""
    fen = "7k/8/8/8/8/1r6/r7/3K4 w - - 0 1"  # Ke1 allows Rb1 mate, Kc1 lives two plies longer
    after = "7k/8/8/8/8/1r6/r7/4K3 b - - 1 1"
    table = Laid({fen: (0.0, {"d1e1": 0.99, "d1c1": 0.01}), after: (0.0, {"b3b1": 0.9})})
    search, root = searched(fen, table, simulations=600, top_k=1, fpu_reduction=0.0)
    assert by_uci(root, chess.WHITE, "proven")["d1e1"] == -1
    assert by_uci(root, chess.WHITE)["d1c1"] > 0
    assert chosen(search, 0, chess.WHITE) == "d1c1"


@pytest.mark.parametrize(
    ("simulations", "widening", "most"), [(99, 1.0, 10), (99, 0.5, 5), (63, 0.5, 4)]
)
def test_widening_grows_with_visits(simulations: int, widening: float, most: int):
    """After n visits of the root, the first ceil(widening * sqrt(n)) moves by prior may have been
    tried."""
    options = {"c_puct": 20.0, "fpu_reduction": 0.0, "widening_factor": widening}
    _, root = searched(MIDDLE, Hashed(spread=2.0), simulations=simulations, **options)
    visits = root.visits[np.argsort(-root.priors, kind="stable")]
    assert (visits[:most] > 0).all()
    assert not visits[most:].any()


def test_a_repetition_penalty_turns_from_repeating():
    """Going back to f3 would repeat; with all values even and that move likeliest, only the penalty
    stops it."""
    board = board_of(chess.STARTING_FEN, "g1f3 g8f6 f3g1 f6g8")
    favourite = Laid({board.fen(): (0.0, {"g1f3": 0.9, "e2e4": 0.1})})
    options = {"simulations": 40, "c_puct": 0.5, "c_factor": 0.0}
    search, plain = searched(board, favourite, **options)
    assert chosen(search, 0, chess.WHITE) == "g1f3"
    search, root = searched(board, favourite, repetition_penalty=0.8, **options)
    assert chosen(search, 0, chess.WHITE) == "e2e4"
    assert by_uci(root, chess.WHITE)["g1f3"] < by_uci(plain, chess.WHITE)["g1f3"]
    assert abs(by_uci(root, chess.WHITE, "values")["g1f3"]) < 0.2, (
        "the value that is told has no penalty in it"
    )
    _, once = searched(chess.Board(board.fen()), favourite, repetition_penalty=0.8, **options)
    _, again = searched(chess.Board(board.fen()), favourite, **options)
    assert once.visits.tolist() == again.visits.tolist(), "without a past nothing repeats"


def firm(share: float) -> Laid:
    return Laid({ROOT: (0.0, {"a1a2": share, "a1b1": (1 - share) / 2, "a1b2": (1 - share) / 2})})


def test_early_stop_ends_when_the_first_can_no_longer_be_overtaken():
    _, plain = searched(ROOT, firm(0.9), simulations=200)
    search, root = searched(ROOT, firm(0.9), simulations=200, early_stop=True)
    assert plain.visits.sum() == 200
    assert root.visits.sum() < 160
    first, second = np.sort(root.visits)[::-1][:2]
    assert first - second > 200 - root.visits.sum(), "what is left cannot overtake"
    assert first - second - 1 <= 200 - (root.visits.sum() - 1), "and one simulation before it could"
    assert search.simulations == root.visits.sum()
    assert chosen(search, 0, chess.WHITE) == "a1a2"


def test_early_stop_counts_what_was_kept_from_before():
    search, _ = searched(ROOT, firm(0.9), simulations=200, early_stop=True)
    before = search.simulations
    search.run(simulations=20)
    assert search.simulations == before, "the lead is larger than 20 from the start"


def test_dominance_ends_when_one_move_has_its_share_of_half_the_budget():
    _search, root = searched(ROOT, firm(0.98), simulations=200, dominance=0.8)
    assert root.visits.sum() == 100, "its share is reached long before half the budget is spent"
    assert root.visits.max() >= 80
    _, even = searched(ROOT, uniform, simulations=200, dominance=0.8)
    assert even.visits.sum() == 200


@pytest.mark.parametrize(("exponent", "expected"), [(0.0, 100), (1.0, 25), (0.5, 31)])
def test_budgets_follow_the_number_of_moves(exponent: float, expected: int):
    """Three moves: a tenth of thirty, so the quarter that is the least; its root is .316."""
    search, root = searched(ROOT, uniform, simulations=100, branching_exponent=exponent)
    assert root.visits.sum() == search.simulations == expected


def test_budgets_grow_with_many_moves_up_to_twice():
    many = chess.Board("R6R/3Q4/1Q4Q1/4Q3/2Q4Q/Q4Q2/pp1Q4/kBNN1KB1 w - - 0 1")
    assert many.legal_moves.count() == 218
    board = chess.Board("3Q4/1Q4Q1/4Q3/2Q4R/Q4Q2/3Q4/1Q4Rp/1K1BBNNk w - - 0 1")
    wide = chess.Board("8/8/1Q4Q1/8/3QQ3/8/1K4Q1/7k w - - 0 1")
    assert wide.legal_moves.count() >= 60
    for position in (many, board, wide):
        _search, root = searched(position, Hashed(), simulations=40, branching_exponent=1.0)
        assert root.visits.sum() == 80 or root.mate > 0


@pytest.mark.parametrize(
    ("fen", "pieces"),
    [(chess.STARTING_FEN, 30), (ROOT, 2), ("4k3/8/8/8/8/8/8/R3K2R w KQ - 0 1", 2), (MIDDLE, 28)],
)
def test_budgets_shrink_towards_the_endgame(fen: str, pieces: int):
    board = chess.Board(fen)
    assert chess.popcount(board.occupied) - 2 == pieces
    search, _ = searched(board, Hashed(), simulations=120, endgame_factor=0.25)
    assert search.simulations == int(120 * (0.25 + 0.75 * pieces / 30))


def test_more_leaves_make_fewer_and_fuller_batches():
    one, root_one = searched(MIDDLE, Hashed(), simulations=240)
    eight, root_eight = searched(MIDDLE, Hashed(), simulations=240, leaves=8)
    assert root_one.visits.sum() == root_eight.visits.sum() == 240
    assert one.batches >= 240
    assert eight.batches < 60
    assert eight.evaluations == one.evaluations == 241


def test_virtual_losses_leave_no_trace():
    """Values are means of what was found: the same leaves one by one give the same value."""
    table = Laid({}, draw=0.5)
    _, root = searched(MIDDLE, table, simulations=64, leaves=8)
    assert np.abs(root.values[root.visits > 0]).max() < 1e-6
    assert root.draws[root.visits > 0] == pytest.approx(0.5, abs=1e-6)


def test_allowed_moves_are_the_only_ones_searched_and_their_priors_sum_to_one():
    search, root = searched(MIDDLE, Hashed(), simulations=60, allowed=["a2a3", "d1d2"])
    assert set(by_uci(root, chess.WHITE)) == {"a2a3", "d1d2"}
    assert root.visits.sum() == 60
    assert root.priors.sum() == pytest.approx(1.0, abs=1e-5)
    assert chosen(search, 0, chess.WHITE) in ("a2a3", "d1d2")


def test_a_search_stops_when_it_is_told_to():
    asked = []

    def stop() -> bool:
        asked.append(1)
        return len(asked) == 5

    search = Search(Hashed(), SearchConfig(simulations=1000), games=3)
    for slot in range(3):
        begin(search, slot, chess.Board(MIDDLE))
    search.run(stop=stop)
    assert len(asked) == 5
    assert [int(search.root(slot).visits.sum()) for slot in range(3)] == [5, 5, 5]


def test_each_slot_may_have_its_own_budget():
    search = Search(Hashed(), SearchConfig(simulations=9), games=4)
    for slot in range(4):
        begin(search, slot, chess.Board(MIDDLE))
    search.run(np.array([2, 0], dtype=np.int64), simulations=np.array([30, 7], dtype=np.int64))
    assert [int(search.root(slot).visits.sum()) for slot in range(4)] == [7, 0, 30, 0]
