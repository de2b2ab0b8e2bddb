"""Search of several games: independence of the width, consistent trees, failing evaluators."""

from typing import Any

import chess
import numpy as np
import pytest

from engine.encoding.planes import label_from_move
from engine.evaluation import handwritten
from engine.evaluation.evaluator import Evaluator
from engine.search import Search, SearchConfig, SearchError
from engine.search.tree import EVALUATING, UNKNOWN, tree_bytes
from tests.engine.search.stubs import (
    MIDDLEGAME,
    Arrays,
    HashEvaluator,
    board_of,
    by_uci,
    choose_uci,
    planes_of,
    play,
    search_board,
    start_board,
)

LINES = ("", "e2e4 e7e5 g1f3", "d2d4 d7d5 c2c4 e7e6", "c2c4 g8f6", "b2b3")
FENS = (
    "r3k2r/p1ppqpb1/bn2pnp1/3PN3/1p2P3/2N2Q1p/PPPBBPPP/R3K2R w KQkq - 0 1",
    "8/2p5/3p4/KP5r/1R3p1k/8/4P1P1/8 w - - 0 1",
    "n1n5/PPPk4/8/8/8/8/4Kppp/5N1N b - - 0 1",
    "8/8/4k3/3p4/3P4/4K3/8/8 w - - 90 90",
    "4k3/8/8/8/8/8/4P3/4K3 w - - 0 1",
    "r1bqkb1r/pppp1ppp/2n2n2/4p2Q/2B1P3/8/PPPP1PPP/RNB1K1NR w KQkq - 4 4",
)


def boards(count: int) -> list[chess.Board]:
    """Return `count` boards, cycling through LINES and FENS."""
    kinds = [board_of(chess.STARTING_FEN, line) for line in LINES]
    kinds += [chess.Board(fen) for fen in FENS]
    return [kinds[index % len(kinds)].copy() for index in range(count)]


Game = tuple[list[list[float]], list[int]]


def play_games(evaluator: Evaluator, config: SearchConfig, width: int, games: int) -> list[Game]:
    """Play three moves in each game, `width` games at a time; return their results and moves."""
    found: list[Game] = [([], []) for _ in range(games)]
    starts = boards(games)
    for first in range(0, games, width):
        numbers = range(first, min(first + width, games))
        search = Search(evaluator, config, games=len(numbers), seed=11)
        for slot, number in enumerate(numbers):
            start_board(search, slot, starts[number], game=number)
        for _ in range(3):
            search.run()
            labels, promotions = search.choose(temperature=1.0)
            for slot, number in enumerate(numbers):
                root = search.root(slot)
                for values in (root.visits, np.nan_to_num(root.values), root.improved):
                    found[number][0].append(values.tolist())
                found[number][1].append(int(labels[slot]))
                if labels[slot] >= 0:
                    search.play(slot, int(labels[slot]), int(promotions[slot]))
    return found


NOISY = {"simulations": 24, "dirichlet_fraction": 0.25}
CONFIGS = {
    "puct": SearchConfig(**NOISY),
    "gumbel": SearchConfig(algorithm="gumbel", simulations=24),
    "leaves": SearchConfig(**NOISY, leaves=4),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_game_is_the_same_at_any_width(name: str):
    kinds = len(LINES) + len(FENS)
    games = kinds + 2
    evaluator = handwritten.evaluate if name == "puct" else HashEvaluator()
    alone = play_games(evaluator, CONFIGS[name], 1, games)
    assert len({str(game) for game in alone[:kinds]}) == kinds
    assert alone[0] != alone[kinds], "the same position has other noise in another game"
    assert play_games(evaluator, CONFIGS[name], 7, games) == alone
    assert play_games(evaluator, CONFIGS[name], games, games) == alone


def check_tree(search: Search, slot: int) -> int:
    """Check the sums of every node and edge of a slot's tree; return the number of nodes."""
    used = search._forest.slots[slot]
    nodes = search._forest.nodes[slot][: used["nodes"]]
    edges = search._forest.edges[slot][: used["edges"]]
    expanded = np.flatnonzero(nodes["count"] > 0)
    parents, numbers = [], []
    for node in expanded:
        first, count = int(nodes["first"][node]), int(nodes["count"][node])
        parents += [node] * count
        numbers += range(first, first + count)
    parent, edge = np.array(parents, dtype=np.int64), edges[np.array(numbers, dtype=np.int64)]
    visits = np.bincount(parent, weights=edge["visits"], minlength=len(nodes))
    assert (nodes["visits"] == nodes["ended"] + visits).all()
    assert (nodes["ended"] >= 0).all()
    assert (edge["visits"] >= 0).all()
    assert not nodes["in_flight"].any()
    assert not edge["in_flight"].any()

    has_child = edge["child"] >= 0
    child = edge["child"][has_child]
    assert len(np.unique(child)) == len(child) == len(nodes) - 1, "each node belongs to one edge"
    assert (child > parent[has_child]).all()
    if search.config.nodes == 0:  # the tree never fills
        assert (edge["visits"][has_child] == nodes["visits"][child]).all()
        below = -nodes["value_sum"][child]
        np.testing.assert_allclose(edge["value_sum"][has_child], below, atol=1e-6)
    else:  # a move that was visited while the tree was full may get a node later
        assert (edge["visits"][has_child] >= nodes["visits"][child]).all()

    rounding = 1e-6
    assert (np.abs(edge["value_sum"]) <= edge["visits"] + rounding).all()
    assert (np.abs(nodes["value_sum"]) <= nodes["visits"] + rounding).all()
    assert (nodes["draw_sum"] >= -rounding).all()
    assert (nodes["draw_sum"] <= nodes["visits"] + rounding).all()
    own = (nodes["proof"] == UNKNOWN) & (nodes["ended"] == 1) & (nodes["count"] > 0)
    value_sums = np.bincount(parent, weights=edge["value_sum"], minlength=len(nodes))
    expected = nodes["value"] + value_sums
    np.testing.assert_allclose(nodes["value_sum"][own], expected[own], atol=1e-5)

    priors = np.bincount(parent, weights=edge["prior"], minlength=len(nodes))
    np.testing.assert_allclose(priors[expanded], 1.0, atol=1e-4)
    visited_priors = edge["prior"] * (edge["visits"] > 0)
    visited_policy = np.bincount(parent, weights=visited_priors, minlength=len(nodes))
    got, wanted = nodes["visited_policy"][expanded], visited_policy[expanded]
    np.testing.assert_allclose(got, wanted, atol=1e-4)

    proof, below = edge["proof"][has_child], nodes["proof"][child]
    proven = proof != UNKNOWN
    assert (proof[proven] == -below[proven]).all(), "a move's proof is its child's, negated"
    return len(nodes)


TREE_CONFIGS = {
    "puct": SearchConfig(simulations=120, dirichlet_fraction=0.25),
    "gumbel": SearchConfig(algorithm="gumbel", simulations=120),
    "leaves": SearchConfig(simulations=120, leaves=8, dirichlet_fraction=0.25),
    "no room": SearchConfig(simulations=120, nodes=90, leaves=3),
}


@pytest.mark.parametrize(
    ("games", "simulations"), [(14, 4_000), pytest.param(112, 1_000_000, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", TREE_CONFIGS)
def test_trees_are_consistent_after_many_simulations(name: str, games: int, simulations: int):
    search = Search(HashEvaluator(), TREE_CONFIGS[name], games=games, seed=5)
    starts = boards(games)
    for slot, board in enumerate(starts):
        start_board(search, slot, board)
    checked, next_game = 0, games
    while search.simulations < simulations:
        search.run()
        checked += sum(check_tree(search, slot) for slot in range(games))
        labels, promotions = search.choose(temperature=1.0)
        for slot in range(games):
            if labels[slot] < 0 or search.outcome(slot) is not None:
                start_board(search, slot, starts[slot], game=next_game)
                next_game += 1
            else:
                search.play(slot, int(labels[slot]), int(promotions[slot]))
            check_tree(search, slot)
    assert checked > simulations / 2


class FailingEvaluator:
    """HashEvaluator that raises at call number `at`, from 0."""

    def __init__(self, at: int) -> None:
        self.at, self.calls = at, 0
        self.answer = HashEvaluator()

    def __call__(self, planes_BP: np.ndarray) -> Arrays:
        self.calls += 1
        if self.calls == self.at + 1:
            raise KeyError("out of memory")
        return self.answer(planes_BP)


def start_search(evaluator: Evaluator, games: int = 1, **options: Any) -> Search:
    search = Search(evaluator, SearchConfig(**options), games=games, seed=2)
    for slot in range(games):
        start_board(search, slot, chess.Board(FENS[slot % len(FENS)]))
    return search


@pytest.mark.parametrize(
    "options",
    [{}, {"leaves": 8}, {"leaves": 8, "nodes": 20}, {"algorithm": "gumbel", "leaves": 4}],
    ids=str,
)
@pytest.mark.parametrize("at", [0, 5])
def test_after_a_failed_round_trees_are_those_of_a_search_without_failures(
    at: int, options: dict[str, Any]
):
    games = 6
    whole = start_search(HashEvaluator(), games=games, simulations=100, **options)
    failed = start_search(FailingEvaluator(at), games=games, simulations=100, **options)
    if at:
        whole.run(stop=lambda: whole.batches == at)
    with pytest.raises(KeyError):
        failed.run()
    assert not (failed._forest.nodes["count"] == EVALUATING).any()
    for run in range(2):
        for slot in range(games) if at or run else ():
            one, other = failed.root(slot), whole.root(slot)
            assert one.visits.tolist() == other.visits.tolist()
            assert one.values.tolist() == pytest.approx(other.values.tolist(), nan_ok=True)
        for search in (whole, failed):
            search.run()
    for slot in range(games):
        check_tree(failed, slot)
        assert failed.root(slot).nodes == whole.root(slot).nodes


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
@pytest.mark.parametrize("column", [None, 0, 1, 2])
def test_results_that_are_not_finite_are_errors(wrong: float, column: int | None):
    calls = []

    def broken(planes_BP: np.ndarray) -> Arrays:
        logits_BA, wdl_B3 = HashEvaluator()(planes_BP)
        calls.append(len(planes_BP))
        if len(calls) == 4 and column is None:
            logits_BA[-1] = np.where(np.isfinite(logits_BA[-1]), wrong, logits_BA[-1])
        elif len(calls) == 4:
            wdl_B3[-1, column] = wrong
        return logits_BA, wdl_B3

    search = start_search(broken, simulations=50, leaves=4)
    with pytest.raises(SearchError, match="NaN or infinity"):
        search.run()
    before = search.root().simulations
    search.run()
    check_tree(search, 0)
    assert search.root().simulations == before + 50


def test_a_logit_of_minus_infinity_is_a_prior_of_zero():
    def one_move(planes_BP: np.ndarray) -> Arrays:
        logits_BA = np.full((len(planes_BP), 4096), -np.inf, dtype=np.float32)
        logits_BA[:, 52] = 1.0  # e2e3
        return logits_BA, np.full((len(planes_BP), 3), 1 / 3, dtype=np.float32)

    _, root = search_board(chess.STARTING_FEN, one_move, simulations=4)
    assert by_uci(root, chess.WHITE, "priors")["e2e3"] == 1.0
    assert root.priors.sum() == 1.0


def test_only_allowed_moves_are_searched_and_only_an_allowed_mate_in_one_is_found():
    board = board_of("6k1/5ppp/8/8/8/8/8/R3K3 w Q - 0 1")
    allowed = ["a1a7", "e1d2", "e1f2"]
    _, root = search_board(board, HashEvaluator(), simulations=40, allowed=allowed)
    logits_BA, _ = HashEvaluator()(planes_of(board)[None])
    labels = [label_from_move(chess.Move.from_uci(uci), chess.WHITE) for uci in allowed]
    weights = np.exp(logits_BA[0, labels].astype(float))
    expected = dict(zip(allowed, (weights / weights.sum()).tolist(), strict=True))
    assert by_uci(root, chess.WHITE, "priors") == pytest.approx(expected, abs=1e-6)
    assert (root.mate, root.visits.sum()) == (0, 40)
    search, root = search_board(board, HashEvaluator(), simulations=40, allowed=["a1a8", *allowed])
    assert (root.mate, choose_uci(search, 0, chess.WHITE), search.evaluations) == (1, "a1a8", 0)


def test_a_full_tree_is_searched_further_and_has_room_after_a_move():
    search, root = search_board(MIDDLEGAME, HashEvaluator(), simulations=1000, nodes=100)
    before = sum(array.nbytes for array in search._forest)
    assert tree_bytes(100) <= before < 1.5 * tree_bytes(100) + (1 << 20)
    assert (root.nodes, root.full) == (100, 1.0)
    assert root.visits.sum() == 1000, "simulations go on in a full tree"
    assert np.isfinite(root.values[root.visits > 0]).all()
    play(search, 0, chess.Board(MIDDLEGAME), choose_uci(search, 0, chess.WHITE))
    kept = search.root().nodes
    assert kept < 100
    search.run(simulations=10)
    assert search.root().nodes == min(100, kept + 10)
    assert sum(array.nbytes for array in search._forest) == before
    _, root = search_board(MIDDLEGAME, HashEvaluator(), simulations=300, nodes=1)
    assert (root.nodes, root.visits.sum()) == (1, 300)
    _, root = search_board(MIDDLEGAME, HashEvaluator(), simulations=100)
    assert root.nodes == 101
    assert 0.1 < root.full < 0.5
