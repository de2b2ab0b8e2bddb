"""Settings of a search: bounds, and cases that the slow reference does not cover."""

import chess
import numpy as np
import pytest

from engine.evaluation.evaluator import uniform
from engine.search import Search, SearchConfig, SearchError
from tests.engine.search.stubs import MIDDLE, Hashed, Laid, begin, by_uci, chosen, searched
from tests.engine.search.test_puct import ROOT

INFINITY, NAN = float("inf"), float("nan")
AT_LEAST_0 = ("c_puct", "c_factor", "fpu_reduction", "gumbel_scale", "value_scale")
AT_LEAST_0 += ("widening_factor", "repetition_penalty", "branching_exponent")
SHARES = ("c_stdev", "dirichlet_fraction", "tail_mass", "dominance", "endgame_factor")
REFUSED = {
    "algorithm": ("minimax",),
    **dict.fromkeys(("simulations", "leaves", "max_considered_actions"), (0, -1)),
    **dict.fromkeys(("nodes", "top_k"), (-1,)),
    **dict.fromkeys(("policy_temperature", "dirichlet_alpha", "c_base"), (0.0, NAN, INFINITY)),
    **dict.fromkeys(SHARES, (-0.1, 1.5, NAN)),
    **dict.fromkeys(AT_LEAST_0, (-1.0, NAN, INFINITY)),
}


@pytest.mark.parametrize("option", REFUSED)
def test_the_error_names_a_setting_out_of_bounds(option: str):
    for value in REFUSED[option]:
        with pytest.raises(SearchError, match=option):
            SearchConfig(**{option: value})


def test_invalid_calls_are_errors():
    with pytest.raises(SearchError, match="games must be at least 1"):
        Search(Hashed(), games=0)
    search = Search(Hashed(), SearchConfig(leaves=8), games=2)
    begin(search, 0, chess.Board())
    with pytest.raises(SearchError, match="has not been started"):
        search.run()
    for slots in ([0, 0], [-1], [2]):  # a round has room for one row per slot
        with pytest.raises(SearchError, match="distinct numbers"):
            search.run(np.array(slots))
    for options in ({"leaves": 0}, {"leaves": 9}, {"simulations": -1}):
        with pytest.raises(SearchError, match=next(iter(options))):
            search.run(np.array([0]), **options)  # type: ignore[arg-type]


def test_top_k_takes_the_likeliest_after_noise():
    """Noise changes the order of the moves before they are filtered."""
    _, plain = searched(MIDDLE, Hashed(spread=2.0), simulations=1)
    options = {"dirichlet_fraction": 0.9, "top_k": 3, "c_puct": 20.0, "fpu_reduction": 0.0}
    changed = 0
    for seed in range(20):
        _, root = searched(MIDDLE, Hashed(spread=2.0), simulations=100, seed=seed, **options)
        assert (np.diff(root.priors) <= 0).all()
        assert np.flatnonzero(root.visits).tolist() == [0, 1, 2]
        changed += set(root.labels[:3].tolist()) != set(plain.labels[:3].tolist())
    assert changed > 10


def test_filtered_moves_are_searched_if_all_others_lose():
    """The only move within top-k is mated at once, so the search finds the other."""
    fen = "7k/8/8/8/8/1r6/r7/3K4 w - - 0 1"  # Ke1 allows Rb1 mate; Kc1 is mated two plies later
    after = "7k/8/8/8/8/1r6/r7/4K3 b - - 1 1"
    table = Laid({fen: (0.0, {"d1e1": 0.99, "d1c1": 0.01}), after: (0.0, {"b3b1": 0.9})})
    search, root = searched(fen, table, simulations=600, top_k=1, fpu_reduction=0.0)
    assert by_uci(root, chess.WHITE, "proven")["d1e1"] == -1
    assert by_uci(root, chess.WHITE)["d1c1"] > 0
    assert chosen(search, 0, chess.WHITE) == "d1c1"


def test_early_stop_counts_visits_of_earlier_runs():
    table = Laid({ROOT: (0.0, {"a1a2": 0.9, "a1b1": 0.05, "a1b2": 0.05})})
    search, _ = searched(ROOT, table, simulations=200, early_stop=True)
    before = search.simulations
    assert before < 160
    search.run(simulations=20)
    assert search.simulations == before, "the lead is larger than 20 from the start"


def test_budgets_are_bounded():
    many = "r3k2r/p1ppqpb1/bn2pnp1/3PN3/1p2P3/2N2Q1p/PPPBBPPP/R3K2R w KQkq - 0 1"  # 48 moves
    for fen, expected in ((ROOT, 10), (many, 80)):
        _, root = searched(fen, uniform, simulations=40, branching_exponent=1.5)
        assert root.visits.sum() == expected, "a quarter at least, twice at most"


def test_zero_simulations_only_expand_the_root():
    for options in ({}, {"algorithm": "gumbel"}, {"branching_exponent": 0.5}):
        search = Search(Hashed(), SearchConfig(**options))  # type: ignore[arg-type]
        begin(search, 0, chess.Board(MIDDLE))
        search.run(simulations=0)
        assert (search.simulations, search.evaluations) == (0, 1)
        assert search.root().priors.sum() == pytest.approx(1.0, abs=1e-5)


def test_only_allowed_moves_are_searched_and_their_priors_sum_to_one():
    search, root = searched(MIDDLE, Hashed(), simulations=60, allowed=["a2a3", "d1d2"])
    assert set(by_uci(root, chess.WHITE)) == {"a2a3", "d1d2"}
    assert (root.visits.sum(), root.priors.sum()) == (60, pytest.approx(1.0, abs=1e-5))
    assert chosen(search, 0, chess.WHITE) in ("a2a3", "d1d2")


def test_each_slot_has_its_own_budget_and_stop_is_polled_each_round():
    search = Search(Hashed(), SearchConfig(simulations=9), games=4)
    for slot in range(4):
        begin(search, slot, chess.Board(MIDDLE))
    search.run(np.array([2, 0], dtype=np.int64), simulations=np.array([30, 7], dtype=np.int64))
    assert [search.root(slot).simulations for slot in range(4)] == [7, 0, 30, 0]
    asked: list[int] = []
    search.run(np.array([1, 3]), simulations=99, stop=lambda: asked.append(1) or len(asked) == 5)
    assert [search.root(slot).simulations for slot in range(4)] == [7, 5, 30, 5]
