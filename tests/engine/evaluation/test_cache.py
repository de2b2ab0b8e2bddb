"""The cache answers to the bit what the evaluator behind it answers, in bounded memory."""

import tracemalloc

import numpy as np
import pytest

from engine.encoding.planes import legal_mask, planes_of
from engine.evaluation import handwritten
from engine.evaluation.cache import CachedEvaluator
from engine.evaluation.evaluator import Evaluator, uniform
from tests.engine.evaluation.test_handwritten import random_boards

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


def assert_same(planes_BP: np.ndarray, got: Arrays, expected: Arrays) -> None:
    legal_BA = legal_mask(planes_BP)
    assert got[0].shape == (len(planes_BP), 4096)
    assert np.array_equal(got[0][legal_BA].view(np.uint32), expected[0][legal_BA].view(np.uint32))
    assert np.array_equal(got[1].view(np.uint32), expected[1].view(np.uint32))


@pytest.mark.parametrize("evaluator", [handwritten.evaluate, uniform, by_content])
def test_answers_are_the_evaluator_s_to_the_bit(evaluator: Evaluator):
    planes_BP = planes_of(random_boards(300, seed=1))
    cached = CachedEvaluator(spy := Spy(evaluator), mebibytes=1)
    draws = np.random.default_rng(2)
    sizes = (1, 7, 64, 33, 0, 300, 300)
    for size in sizes:
        batch = planes_BP[draws.integers(len(planes_BP), size=size)]
        assert_same(batch, cached(batch), evaluator(batch))
    assert 0 < spy.rows < 0.5 * sum(sizes)


def test_a_row_is_asked_for_once_and_rows_keep_their_order():
    cached = CachedEvaluator(spy := Spy(by_content))
    planes_BP = planes_of(random_boards(10, seed=3))
    for rows in ([5, 3, 5, 5, 3, 8], [8, 9, 3, 2, 9, 5], [5, 3, 5]):
        assert_same(planes_BP[rows], cached(planes_BP[rows]), by_content(planes_BP[rows]))
    wanted = [planes_BP[rows].tolist() for rows in ([5, 3, 8], [9, 2])]
    assert [batch.tolist() for batch in spy.batches] == wanted


def test_the_least_recently_used_positions_are_dropped_and_memory_is_bounded():
    board_P = planes_of(random_boards(1, seed=5))
    cached = CachedEvaluator(spy := Spy(uniform), mebibytes=1)
    planes_BP = np.repeat(board_P, cached.capacity + 500, axis=0)
    planes_BP[:, 12] = np.arange(len(planes_BP))  # no two rows alike
    first, middle, last = planes_BP[:500], planes_BP[500:1000], planes_BP[-500:]
    cached(planes_BP[:1])
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for start in range(0, cached.capacity, 500):
        cached(planes_BP[start : start + 500][: cached.capacity - start])
    held = tracemalloc.get_traced_memory()[0] - before - cached._logits_BA.nbytes
    held -= sum(batch.nbytes for batch in spy.batches[1:])
    tracemalloc.stop()
    assert 0.5 * 2**20 < held < 1.1 * 2**20
    cached(first)
    assert spy.rows == cached.capacity, "full, and the first are the last used now"
    cached(last)
    for known, rows in ((True, first), (True, last), (False, middle)):
        asked = spy.rows
        cached(rows)
        assert spy.rows == asked + 500 * (not known)


def test_an_evaluator_that_raises_leaves_the_cache_as_it_was():
    planes_BP = planes_of(random_boards(40, seed=8))
    cached = CachedEvaluator(by_content)
    cached(planes_BP[:10])

    def broken(planes_BP: np.ndarray) -> Arrays:
        raise KeyError("out of memory")

    cached.evaluator = broken
    with pytest.raises(KeyError):
        cached(planes_BP)
    cached.evaluator = spy = Spy(by_content)
    assert_same(planes_BP, cached(planes_BP), by_content(planes_BP))
    assert spy.rows == len(planes_BP) - 10
