"""A tree keeps within its memory, reports how full it is, and searches on when it is full."""

import chess
import numpy as np

from engine.search import Search, SearchConfig
from engine.search.tree import tree_bytes
from tests.engine.search.stubs import MIDDLE, Hashed, begin, chosen, play, searched


def held(search: Search) -> int:
    """Give the bytes of every array that the search holds."""
    arrays = [
        *search._forest,
        *search._round,
        search._blank,
        search._fresh,
        search._started,
        search._all,
    ]
    return sum(array.nbytes for array in arrays)


def test_memory_is_what_the_setting_says_however_long_one_searches():
    search = Search(Hashed(), SearchConfig(simulations=100, nodes=200), games=3)
    before = held(search)
    trees = 3 * tree_bytes(200)
    assert trees <= before < 1.5 * trees + (1 << 20)
    for slot in range(3):
        begin(search, slot, chess.Board(MIDDLE))
    for _ in range(20):
        search.run()
    assert held(search) == before
    assert all(search.root(slot).nodes <= 200 for slot in range(3))


def test_a_full_tree_still_searches():
    search, root = searched(MIDDLE, Hashed(), simulations=1000, nodes=100)
    assert (root.nodes, root.full) == (100, 1.0)
    assert root.visits.sum() == 1000, "simulations beyond the room are still made and counted"
    assert np.isfinite(root.values[root.visits > 0]).all()
    assert chosen(search, 0, chess.WHITE) != ""


def test_a_tree_with_room_holds_every_position():
    _, root = searched(MIDDLE, Hashed(), simulations=100)
    assert root.nodes == 101
    assert 0.1 < root.full < 0.5


def test_a_full_tree_has_room_again_after_a_move():
    board = chess.Board(MIDDLE)
    search, _root = searched(board, Hashed(), simulations=1000, nodes=100)
    play(search, 0, board, chosen(search, 0, chess.WHITE))
    assert search.root().nodes < 100
    before = search.root().nodes
    search.run(simulations=10)
    assert search.root().nodes == min(100, before + 10)


def test_the_root_alone_is_a_tree():
    _, root = searched(MIDDLE, Hashed(), simulations=300, nodes=1)
    assert (root.nodes, root.visits.sum()) == (1, 300)
