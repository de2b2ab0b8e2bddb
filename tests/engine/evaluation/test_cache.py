"""The evaluation cache answers to the bit what the evaluator behind it answers, in memory that does
not grow."""

import random
import tracemalloc

import chess
import numpy as np
import pytest

from engine.board.movegen import legal_planes
from engine.board.position import from_board, from_fen
from engine.encoding.planes import PLANES, legal_mask
from engine.evaluation import handwritten
from engine.evaluation.cache import CachedEvaluator
from engine.evaluation.evaluator import Evaluator, uniform

Arrays = tuple[np.ndarray, np.ndarray]


class Spy:
    """Remembers the batches it was asked for, and answers by an evaluator."""

    def __init__(self, evaluator: Evaluator) -> None:
        self.evaluator = evaluator
        self.batches: list[np.ndarray] = []

    @property
    def rows(self) -> int:
        return sum(len(batch) for batch in self.batches)

    def __call__(self, planes_BP: np.ndarray) -> Arrays:
        self.batches.append(planes_BP.copy())
        return self.evaluator(planes_BP)


def by_content(planes_BP: np.ndarray) -> Arrays:
    """Answer every row by numbers that any changed bit changes, some of them not finite."""
    logits_BA = np.full((len(planes_BP), 4096), -np.inf, dtype=np.float32)
    wdl_B3 = np.zeros((len(planes_BP), 3), dtype=np.float32)
    for row, planes in enumerate(planes_BP):
        draws = np.random.default_rng(planes.view(np.uint32))
        logits_BA[row] = draws.normal(size=4096)
        logits_BA[row, draws.integers(4096, size=9)] = (np.nan, np.inf, -np.inf) * 3
        wdl_B3[row] = draws.dirichlet((1, 1, 1))
    return logits_BA, wdl_B3


def rows_of_random_games(rows: int, seed: int) -> np.ndarray:
    """Give the rows of positions, each from its own random game, with repeats."""
    draws = random.Random(seed)
    planes_BP = np.zeros((rows, PLANES), dtype=np.uint64)
    board = chess.Board()
    for row in range(rows):
        if board.is_game_over() or board.ply() > 60:
            board = chess.Board()
        legal_planes(from_board(board), planes_BP[row])
        board.push(draws.choice(list(board.legal_moves)))
    return planes_BP


def assert_same(planes_BP: np.ndarray, got: Arrays, expected: Arrays) -> None:
    legal_BA = legal_mask(planes_BP)
    assert got[0].dtype == got[1].dtype == np.float32
    assert got[0].shape == (len(planes_BP), 4096)
    assert np.array_equal(got[0][legal_BA].view(np.uint32), expected[0][legal_BA].view(np.uint32))
    assert np.array_equal(got[1].view(np.uint32), expected[1].view(np.uint32))


@pytest.mark.parametrize("evaluator", [handwritten.evaluate, uniform, by_content])
def test_answers_are_the_evaluator_s_to_the_bit(evaluator: Evaluator):
    planes_BP = rows_of_random_games(600, seed=1)
    cached = CachedEvaluator(spy := Spy(evaluator), mebibytes=1)
    draws = np.random.default_rng(2)
    for size in (1, 7, 64, 200, 33, 0, 64, 600, 600):
        batch = planes_BP[draws.integers(len(planes_BP), size=size)]
        assert_same(batch, cached(batch), evaluator(batch))
    assert 0 < spy.rows < 0.5 * (1 + 7 + 64 + 200 + 33 + 64 + 600 + 600)


def test_a_row_is_asked_for_once_and_rows_keep_their_order():
    spy = Spy(by_content)
    cached = CachedEvaluator(spy)
    planes_BP = np.unique(rows_of_random_games(60, seed=3), axis=0)[:40]
    first, second = planes_BP[[5, 3, 5, 5, 3, 8]], planes_BP[[8, 9, 3, 2, 9, 5]]
    assert_same(first, cached(first), by_content(first))
    assert_same(second, cached(second), by_content(second))
    assert_same(first, cached(first), by_content(first))
    assert [batch.tolist() for batch in spy.batches] == [
        planes_BP[[5, 3, 8]].tolist(),
        planes_BP[[9, 2]].tolist(),
    ]


def test_rows_that_differ_in_one_bit_are_told_apart():
    start = rows_of_random_games(1, seed=4)[0]
    rows_BP = np.tile(start, (PLANES * 64 + 1, 1))
    for flipped in range(PLANES * 64):
        rows_BP[flipped, flipped // 64] ^= np.uint64(1 << flipped % 64)
    spy = Spy(by_content)
    CachedEvaluator(spy)(rows_BP[::7])
    assert spy.rows == len(rows_BP[::7])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        # a right shows in a move plane alone
        ("4k3/8/8/8/8/8/8/4K2R w K - 0 1", "4k3/8/8/8/8/8/8/4K2R w - - 0 1"),
        # so does en passant
        ("4k3/8/8/3pP3/8/8/8/4K3 w - d6 0 1", "4k3/8/8/3pP3/8/8/8/4K3 w - - 0 1"),
        # one view, the other's turn
        ("4k3/8/8/8/8/8/8/4K3 w - - 0 1", "4k3/8/8/8/8/8/8/4K3 b - - 0 1"),
    ],
)
def test_what_an_evaluator_could_tell_apart_is_told_apart(one: str, other: str):
    planes_BP = np.zeros((2, PLANES), dtype=np.uint64)
    legal_planes(from_fen(one), planes_BP[0])
    legal_planes(from_fen(other), planes_BP[1])
    assert (planes_BP[0] != planes_BP[1]).sum() == 1
    cached = CachedEvaluator(spy := Spy(by_content))
    for _ in range(2):
        assert_same(planes_BP, cached(planes_BP), by_content(planes_BP))
        assert spy.rows == 2


def random_rows(rows: int, seed: int) -> np.ndarray:
    """Give rows of random bits with about 30 legal moves."""
    draws = np.random.default_rng(seed)
    planes_BP = draws.integers(2**64, size=(rows, PLANES), dtype=np.uint64)
    for _ in range(4):
        planes_BP[:, 13:] &= draws.integers(2**64, size=(rows, PLANES - 13), dtype=np.uint64)
    planes_BP[:, 13 + 15 :] = 0
    return planes_BP


def test_the_least_recently_used_positions_are_dropped():
    cached = CachedEvaluator(spy := Spy(by_content), mebibytes=1)
    planes_BP = random_rows(cached.capacity + 500, seed=5)
    first, middle, last = planes_BP[:500], planes_BP[500:1000], planes_BP[-500:]
    for start in range(0, cached.capacity, 500):
        cached(planes_BP[start : start + 500][: cached.capacity - start])
    assert_same(first, cached(first), by_content(first))
    assert spy.rows == cached.capacity, "full, and the first are the last used now"
    cached(last)
    for known, rows in ((True, first), (True, last), (False, middle)):
        before = spy.rows
        assert_same(rows, cached(rows), by_content(rows))
        assert spy.rows == before + 500 * (not known)


def test_memory_is_about_what_was_given():
    planes_BP = rows_of_random_games(CachedEvaluator(uniform, mebibytes=1).capacity, seed=6)
    planes_BP[:, 12] = np.arange(len(planes_BP))  # no two rows alike
    cached = CachedEvaluator(uniform, mebibytes=1)
    tracemalloc.start()
    cached(planes_BP[:1])
    before = tracemalloc.get_traced_memory()[0]
    for start in range(1, len(planes_BP), 256):
        cached(planes_BP[start : start + 256])
    held = tracemalloc.get_traced_memory()[0] - before - cached._logits_BA.nbytes
    tracemalloc.stop()
    assert 0.7 * 2**20 < held < 1.1 * 2**20


def test_an_evaluator_that_raises_leaves_the_cache_as_it_was():
    planes_BP = np.unique(rows_of_random_games(40, seed=8), axis=0)
    cached = CachedEvaluator(by_content)
    cached(planes_BP[:10])

    def broken(planes_BP: np.ndarray) -> Arrays:
        raise KeyError("out of memory")

    cached.evaluator = broken
    with pytest.raises(KeyError):
        cached(planes_BP)
    assert_same(planes_BP[:10], cached(planes_BP[:10]), by_content(planes_BP[:10]))
    cached.evaluator = spy = Spy(by_content)
    assert_same(planes_BP, cached(planes_BP), by_content(planes_BP))
    assert spy.rows == len(planes_BP) - 10
