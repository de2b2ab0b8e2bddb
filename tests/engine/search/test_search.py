"""One seed, one result at any width; values stay in bounds; the books of every tree balance after
many simulations."""

import chess
import numpy as np
import pytest

from engine.evaluation import handwritten
from engine.evaluation.cache import CachedEvaluator
from engine.evaluation.evaluator import Evaluator, uniform
from engine.search import Search, SearchConfig
from engine.search.tree import UNKNOWN
from tests.engine.search.stubs import Hashed, begin, board_of

LINES = (
    "",
    "e2e4 e7e5 g1f3",
    "d2d4 d7d5 c2c4 e7e6",
    "c2c4 g8f6",
    "e2e4 c7c5 g1f3 d7d6 d2d4",
    "g1f3 d7d5 g2g3",
    "b2b3",
)
FENS = (
    "r3k2r/p1ppqpb1/bn2pnp1/3PN3/1p2P3/2N2Q1p/PPPBBPPP/R3K2R w KQkq - 0 1",
    "8/2p5/3p4/KP5r/1R3p1k/8/4P1P1/8 w - - 0 1",
    "n1n5/PPPk4/8/8/8/8/4Kppp/5N1N b - - 0 1",
    "8/8/4k3/3p4/3P4/4K3/8/8 w - - 90 90",
    "4k3/8/8/8/8/8/4P3/4K3 w - - 0 1",
    "r1bqkb1r/pppp1ppp/2n2n2/4p2Q/2B1P3/8/PPPP1PPP/RNB1K1NR w KQkq - 4 4",
)


def boards(count: int) -> list[chess.Board]:
    """Give boards of all kinds, in turn: openings, endings, promotions, fifty moves near, a mate in
    one."""
    kinds = [board_of(chess.STARTING_FEN, line) for line in LINES] + [
        chess.Board(fen) for fen in FENS
    ]
    return [kinds[index % len(kinds)].copy() for index in range(count)]


def results(
    evaluator: Evaluator, config: SearchConfig, width: int, games: int
) -> list[tuple[list[list[float]], list[int]]]:
    """Play three moves in each game, `width` games side by side; give each game's visits, values
    and moves."""
    found: list[tuple[list[list[float]], list[int]]] = []
    for first in range(0, games, width):
        numbers = range(first, min(first + width, games))
        search = Search(evaluator, config, games=len(numbers), seed=11)
        everything = boards(games)
        for slot, number in enumerate(numbers):
            begin(search, slot, everything[number], game=number)
        told: list[tuple[list[list[float]], list[int]]] = [([], []) for _ in numbers]
        for _ in range(3):
            search.run()
            labels, promotions = search.choose(temperature=1.0)
            for slot, (numbers_told, moves) in enumerate(told):
                root = search.root(slot)
                numbers_told += [
                    root.visits.tolist(),
                    np.nan_to_num(root.values).tolist(),
                    root.improved.tolist(),
                ]
                moves.append(int(labels[slot]))
            going = np.flatnonzero(labels >= 0)
            for slot in going.tolist():
                search.play(slot, int(labels[slot]), int(promotions[slot]))
        found += told
    return found


NOISY = {"simulations": 24, "dirichlet_fraction": 0.25}
CONFIGS = {
    "puct": SearchConfig(**NOISY),
    "gumbel": SearchConfig(algorithm="gumbel", simulations=24),
    "leaves": SearchConfig(**NOISY, leaves=4),
}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(
    "evaluator", [Hashed(), handwritten.evaluate], ids=["hashed", "hand-written"]
)
def test_a_game_is_the_same_at_any_width(name: str, evaluator: Evaluator):
    games = 2 * (len(LINES) + len(FENS)) + 2
    alone = results(evaluator, CONFIGS[name], 1, games)
    assert len({str(told) for told in alone[: len(LINES) + len(FENS)]}) == len(LINES) + len(FENS)
    assert alone[0] != alone[len(LINES) + len(FENS)], (
        "the same position, another game number, other noise"
    )
    for width in (7, games):
        assert results(evaluator, CONFIGS[name], width, games) == alone, width


def test_a_cache_changes_nothing():
    plain = results(handwritten.evaluate, CONFIGS["puct"], 32, 32)
    assert (
        results(CachedEvaluator(handwritten.evaluate, mebibytes=1), CONFIGS["puct"], 32, 32)
        == plain
    )


def test_another_seed_is_another_result():
    found = set()
    for seed in range(5):
        search = Search(uniform, SearchConfig(**NOISY), seed=seed)
        begin(search, 0, chess.Board())
        search.run()
        found.add(str(search.root().visits.tolist()))
    assert len(found) == 5


def check_books(search: Search, slot: int) -> int:
    """Check every node and move of a slot's tree; give the number of nodes.

    An edge is one move of one node; its sums are seen by that node's mover.
    """
    used = search._forest.slots[slot]
    nodes, edges = (
        search._forest.nodes[slot][: used["nodes"]],
        search._forest.edges[slot][: used["edges"]],
    )
    opened = np.flatnonzero(nodes["count"] > 0)
    owner, place = [], []
    for node in opened:
        first, count = int(nodes["first"][node]), int(nodes["count"][node])
        owner += [node] * count
        place += range(first, first + count)
    parent, edge = np.array(owner, dtype=np.int64), edges[np.array(place, dtype=np.int64)]
    visits = np.bincount(parent, weights=edge["visits"], minlength=len(nodes))
    assert (nodes["visits"] == nodes["ended"] + visits).all(), (
        "a parent's visits are its children's plus its own"
    )
    assert (nodes["ended"] >= 0).all()
    assert (edge["visits"] >= 0).all()
    assert not nodes["in_flight"].any()
    assert not edge["in_flight"].any()

    has_child = edge["child"] >= 0
    child = edge["child"][has_child]
    assert len(np.unique(child)) == len(child) == len(nodes) - 1, (
        "every node but the root hangs on one move"
    )
    assert (child > parent[has_child]).all()
    if search.config.nodes == 0:  # there is always room
        assert (edge["visits"][has_child] == nodes["visits"][child]).all()
        np.testing.assert_allclose(
            edge["value_sum"][has_child], -nodes["value_sum"][child], atol=1e-6
        )
    else:  # a move tried while there was no room may have got its node later
        assert (edge["visits"][has_child] >= nodes["visits"][child]).all()

    room = 1e-6
    assert (np.abs(edge["value_sum"]) <= edge["visits"] + room).all(), "a move's value left [-1, 1]"
    assert (np.abs(nodes["value_sum"]) <= nodes["visits"] + room).all(), (
        "a node's value left [-1, 1]"
    )
    assert ((nodes["draw_sum"] >= -room) & (nodes["draw_sum"] <= nodes["visits"] + room)).all()
    own = (nodes["proof"] == UNKNOWN) & (nodes["ended"] == 1) & (nodes["count"] > 0)
    value_sums = np.bincount(parent, weights=edge["value_sum"], minlength=len(nodes))
    np.testing.assert_allclose(
        nodes["value_sum"][own], (nodes["value"] + value_sums)[own], atol=1e-5
    )

    priors = np.bincount(parent, weights=edge["prior"], minlength=len(nodes))
    np.testing.assert_allclose(priors[opened], 1.0, atol=1e-4)
    visited_policy = np.bincount(
        parent, weights=edge["prior"] * (edge["visits"] > 0), minlength=len(nodes)
    )
    np.testing.assert_allclose(nodes["visited_policy"][opened], visited_policy[opened], atol=1e-4)

    proof, below = edge["proof"][has_child], nodes["proof"][child]
    proven = proof != UNKNOWN
    assert (proof[proven] == -below[proven]).all(), "a move's proof is its child's, turned"
    return len(nodes)


def play_on(config: SearchConfig, games: int, simulations: int) -> int:
    """Search and play games until so many simulations are done, checking the books of every tree;
    give how many."""
    search = Search(Hashed(), config, games=games, seed=5)
    everything = boards(games)
    for slot, board in enumerate(everything):
        begin(search, slot, board)
    checked, begun = 0, games
    while search.simulations < simulations:
        search.run()
        checked += sum(check_books(search, slot) for slot in range(games))
        labels, promotions = search.choose(temperature=1.0)
        for slot in np.flatnonzero(labels < 0):
            begin(search, int(slot), everything[slot], game=begun)
            begun += 1
        over = [slot for slot in range(games) if search.outcome(slot) is not None]
        going = np.setdiff1d(np.flatnonzero(labels >= 0), over)
        for slot in going.tolist():
            search.play(slot, int(labels[slot]), int(promotions[slot]))
        for slot in np.setdiff1d(over, np.flatnonzero(labels < 0)):
            begin(search, int(slot), everything[slot], game=begun)
            begun += 1
        for slot in range(games):
            check_books(search, slot)
    assert checked > simulations / 2
    return search.simulations


BOOKS = {
    "puct": SearchConfig(simulations=120, dirichlet_fraction=0.25),
    "gumbel": SearchConfig(algorithm="gumbel", simulations=120),
    "leaves": SearchConfig(simulations=120, leaves=8, dirichlet_fraction=0.25),
    "no room": SearchConfig(simulations=120, nodes=90, leaves=3),
}


@pytest.mark.parametrize("name", BOOKS)
def test_the_books_balance_after_many_random_simulations(name: str):
    assert play_on(BOOKS[name], games=28, simulations=20_000) >= 20_000


@pytest.mark.slow
@pytest.mark.parametrize("name", BOOKS)
def test_the_books_balance_after_a_million_random_simulations(name: str):
    assert play_on(BOOKS[name], games=112, simulations=1_000_000) >= 1_000_000
