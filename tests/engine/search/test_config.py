"""Settings of a search: their bounds, and cases that the slow reference does not cover."""

import chess
import numpy as np
import pytest

from engine.evaluation.evaluator import uniform
from engine.search import Search, SearchConfig, SearchError
from tests.engine.search.stubs import (
    MIDDLEGAME,
    HashEvaluator,
    TableEvaluator,
    by_uci,
    choose_uci,
    search_board,
    start_board,
)
from tests.engine.search.test_puct import ROOT

INFINITY, NAN = float("inf"), float("nan")
AT_LEAST_0 = ("c_puct", "c_factor", "fpu_reduction", "gumbel_scale", "value_scale")
AT_LEAST_0 += ("widening_factor", "repetition_penalty", "branching_exponent")
SHARES = ("c_stdev", "dirichlet_fraction", "tail_mass", "dominance", "endgame_factor")
OUT_OF_BOUNDS = {
    "algorithm": ("minimax",),
    **dict.fromkeys(("simulations", "leaves", "max_considered_actions"), (0, -1)),
    **dict.fromkeys(("nodes", "top_k"), (-1,)),
    **dict.fromkeys(("policy_temperature", "dirichlet_alpha", "c_base"), (0.0, NAN, INFINITY)),
    **dict.fromkeys(SHARES, (-0.1, 1.5, NAN)),
    **dict.fromkeys(AT_LEAST_0, (-1.0, NAN, INFINITY)),
}


@pytest.mark.parametrize("option", OUT_OF_BOUNDS)
def test_the_error_names_a_setting_out_of_bounds(option: str):
    for value in OUT_OF_BOUNDS[option]:
        with pytest.raises(SearchError, match=option):
            SearchConfig(**{option: value})


def test_invalid_calls_are_errors():
    with pytest.raises(SearchError, match="games must be at least 1"):
        Search(HashEvaluator(), games=0)
    search = Search(HashEvaluator(), SearchConfig(leaves=8), games=2)
    start_board(search, 0, chess.Board())
    with pytest.raises(SearchError, match="a slot has no game"):
        search.run()
    for slots in ([0, 0], [-1], [2]):  # a round has one row for each slot
        with pytest.raises(SearchError, match="distinct numbers"):
            search.run(np.array(slots))
    for options in ({"leaves": 0}, {"leaves": 9}, {"simulations": -1}):
        with pytest.raises(SearchError, match=next(iter(options))):
            search.run(np.array([0]), **options)  # type: ignore[arg-type]


def test_top_k_filters_moves_after_noise_has_changed_their_order():
    evaluator = HashEvaluator(spread=2.0)
    _, plain = search_board(MIDDLEGAME, evaluator, simulations=1)
    options = {"dirichlet_fraction": 0.9, "top_k": 3, "c_puct": 20.0, "fpu_reduction": 0.0}
    changed = 0
    for seed in range(20):
        _, root = search_board(
            MIDDLEGAME, HashEvaluator(spread=2.0), simulations=100, seed=seed, **options
        )
        assert (np.diff(root.priors) <= 0).all()
        assert np.flatnonzero(root.visits).tolist() == [0, 1, 2]
        changed += set(root.labels[:3].tolist()) != set(plain.labels[:3].tolist())
    assert changed > 10


def test_filtered_moves_are_searched_if_all_others_lose():
    fen = "7k/8/8/8/8/1r6/r7/3K4 w - - 0 1"  # Ke1 allows Rb1 mate; Kc1 is mated two plies later
    after = "7k/8/8/8/8/1r6/r7/4K3 b - - 1 1"
    table = TableEvaluator({fen: (0.0, {"d1e1": 0.99, "d1c1": 0.01}), after: (0.0, {"b3b1": 0.9})})
    search, root = search_board(fen, table, simulations=600, top_k=1, fpu_reduction=0.0)
    assert by_uci(root, chess.WHITE, "proven")["d1e1"] == -1
    assert by_uci(root, chess.WHITE)["d1c1"] > 0
    assert choose_uci(search, 0, chess.WHITE) == "d1c1"


def test_early_stop_counts_visits_of_earlier_runs():
    table = TableEvaluator({ROOT: (0.0, {"a1a2": 0.9, "a1b1": 0.05, "a1b2": 0.05})})
    search, _ = search_board(ROOT, table, simulations=200, early_stop=True)
    before = search.simulations
    assert before < 160
    search.run(simulations=20)
    assert search.simulations == before, "the lead is larger than 20 from the start"


def test_the_factor_of_a_budget_is_between_a_quarter_and_two():
    many = "r3k2r/p1ppqpb1/bn2pnp1/3PN3/1p2P3/2N2Q1p/PPPBBPPP/R3K2R w KQkq - 0 1"  # 48 moves
    for fen, expected in ((ROOT, 10), (many, 80)):
        _, root = search_board(fen, uniform, simulations=40, branching_exponent=1.5)
        assert root.visits.sum() == expected


def test_zero_simulations_only_expand_the_root():
    for options in ({}, {"algorithm": "gumbel"}, {"branching_exponent": 0.5}):
        search = Search(HashEvaluator(), SearchConfig(**options))  # type: ignore[arg-type]
        start_board(search, 0, chess.Board(MIDDLEGAME))
        search.run(simulations=0)
        assert (search.simulations, search.evaluations) == (0, 1)
        assert search.root().priors.sum() == pytest.approx(1.0, abs=1e-5)


def test_each_slot_has_its_own_budget_and_stop_is_polled_each_round():
    search = Search(HashEvaluator(), SearchConfig(simulations=9), games=4)
    for slot in range(4):
        start_board(search, slot, chess.Board(MIDDLEGAME))
    search.run(np.array([2, 0], dtype=np.int64), simulations=np.array([30, 7], dtype=np.int64))
    assert [search.root(slot).simulations for slot in range(4)] == [7, 0, 30, 0]
    polls: list[int] = []
    search.run(np.array([1, 3]), simulations=99, stop=lambda: polls.append(1) or len(polls) == 5)
    assert [search.root(slot).simulations for slot in range(4)] == [7, 5, 30, 5]
