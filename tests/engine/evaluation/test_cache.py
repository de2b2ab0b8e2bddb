"""The evaluation cache says to the bit what the evaluator behind it says, in memory that does not grow."""

import random
from typing import Any

import chess
import numpy as np
import pytest
from numba import njit

from engine.board.movegen import legal_planes
from engine.board.position import from_board, from_fen
from engine.encoding.planes import PLANES, legal_mask
from engine.evaluation import cache as evaluation_cache
from engine.evaluation import handwritten
from engine.evaluation.cache import Cached, CacheSizeError, row_key
from engine.evaluation.evaluator import Evaluator, uniform
from tests.conftest import shared_data
from tests.engine.compiled import kernels, not_unsigned

Arrays = tuple[np.ndarray, np.ndarray]


class Spy:
    """Remembers the batches it was asked for, and answers by an evaluator."""

    def __init__(self, evaluator: Evaluator) -> None:
        self.evaluator = evaluator
        self.batches: list[np.ndarray] = []

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
    cached = Cached(evaluator, mebibytes=1)
    draws = np.random.default_rng(2)
    for size in (1, 7, 64, 200, 33, 0, 64, 600, 600):
        batch = planes_BP[draws.integers(len(planes_BP), size=size)]
        assert_same(batch, cached(batch), evaluator(batch))
    assert 0.5 < cached.hit_rate < 1


def test_answers_are_the_evaluator_s_on_real_positions():
    lines = shared_data("truth/mate/mate_in_1_from_games_train.epd").read_text().splitlines()[::5]
    planes_BP = np.zeros((len(lines), PLANES), dtype=np.uint64)
    for row, line in enumerate(lines):
        legal_planes(from_fen(" ".join(line.split()[:4]) + " 0 1"), planes_BP[row])
    cached = Cached(handwritten.evaluate, mebibytes=16)
    different = len(np.unique(planes_BP, axis=0))
    for _ in range(2):
        for start in range(0, len(planes_BP), 256):
            batch = planes_BP[start : start + 256]
            assert_same(batch, cached(batch), handwritten.evaluate(batch))
    assert cached.misses == different, "16 MiB hold them all"
    assert cached.hits == 2 * len(planes_BP) - different


def test_a_row_is_asked_for_once_and_rows_keep_their_order():
    spy = Spy(by_content)
    cached = Cached(spy)
    planes_BP = np.unique(rows_of_random_games(60, seed=3), axis=0)[:40]
    first, second = planes_BP[[5, 3, 5, 5, 3, 8]], planes_BP[[8, 9, 3, 2, 9, 5]]
    assert_same(first, cached(first), by_content(first))
    assert_same(second, cached(second), by_content(second))
    assert_same(first, cached(first), by_content(first))
    assert [batch.tolist() for batch in spy.batches] == [planes_BP[[5, 3, 8]].tolist(), planes_BP[[9, 2]].tolist()]
    assert (cached.hits, cached.misses) == (18 - 5, 5)
    assert cached.hit_rate == 13 / 18


def test_no_rows_ask_nobody():
    spy = Spy(uniform)
    logits_BA, wdl_B3 = Cached(spy)(np.zeros((0, PLANES), dtype=np.uint64))
    assert (logits_BA.shape, wdl_B3.shape, spy.batches) == ((0, 4096), (0, 3), [])


def test_rows_that_differ_in_one_bit_are_told_apart():
    start = rows_of_random_games(1, seed=4)[0]
    rows_BP = np.tile(start, (PLANES * 64 + 1, 1))
    for flipped in range(PLANES * 64):
        rows_BP[flipped, flipped // 64] ^= np.uint64(1 << flipped % 64)
    one_of_each = Cached(by_content)
    one_of_each(rows_BP[::7])
    assert one_of_each.misses == len(rows_BP[::7])
    keys = np.array([row_key(row) for row in rows_BP], dtype=np.uint64)
    assert [len(np.unique(half)) for half in keys.T] == [len(rows_BP)] * 2, "each half alone tells them apart"
    flips = np.unpackbits((keys[:-1] ^ keys[-1]).view(np.uint8)).mean() * 64
    assert 31.9 < flips < 32.1, "a flipped bit flips half of a hash"


@njit
def keys_of_pairs(row: Any, bits: Any) -> Any:
    """Hash a row with each two of `bits` flipped, and with none, one or both of bits 31 and 63 of the last plane."""
    flipped = len(bits)
    keys = np.empty((2 * flipped * (flipped - 1), 2), dtype=np.uint64)
    count = 0
    for one in range(flipped):
        row[bits[one] >> 6] ^= np.uint64(1) << np.uint64(bits[one] & 63)
        for other in range(one):
            row[bits[other] >> 6] ^= np.uint64(1) << np.uint64(bits[other] & 63)
            for low in (np.uint64(0), np.uint64(1 << 31)):
                for high in (np.uint64(0), np.uint64(1 << 63)):
                    row[76] ^= low | high
                    keys[count, 0], keys[count, 1] = row_key(row)
                    row[76] ^= low | high
                    count += 1
            row[bits[other] >> 6] ^= np.uint64(1) << np.uint64(bits[other] & 63)
        row[bits[one] >> 6] ^= np.uint64(1) << np.uint64(bits[one] & 63)
    return keys


def test_rows_that_differ_in_two_to_four_bits_are_told_apart():
    row = rows_of_random_games(1, seed=4)[0]
    draws = np.random.default_rng(10)
    tops = np.arange(PLANES - 1) * 64 + 63  # a product carries upwards: topmost bits are stirred least
    bits = np.unique(np.concatenate([tops, tops - 32, draws.integers((PLANES - 1) * 64, size=400)]))
    keys = keys_of_pairs(row, bits)
    assert len(keys) > 500_000
    assert [len(np.unique(half)) for half in keys.T] == [len(keys)] * 2, "each half alone tells them apart"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("4k3/8/8/8/8/8/8/4K2R w K - 0 1", "4k3/8/8/8/8/8/8/4K2R w - - 0 1"),  # a right shows in a move plane alone
        ("4k3/8/8/3pP3/8/8/8/4K3 w - d6 0 1", "4k3/8/8/3pP3/8/8/8/4K3 w - - 0 1"),  # so does en passant
        ("4k3/8/8/8/8/8/8/4K3 w - - 0 1", "4k3/8/8/8/8/8/8/4K3 b - - 0 1"),  # one view, the other's turn
    ],
)
def test_what_an_evaluator_could_tell_apart_is_told_apart(one: str, other: str):
    planes_BP = np.zeros((2, PLANES), dtype=np.uint64)
    legal_planes(from_fen(one), planes_BP[0])
    legal_planes(from_fen(other), planes_BP[1])
    assert (planes_BP[0] != planes_BP[1]).sum() == 1
    cached = Cached(by_content)
    for _ in range(2):
        assert_same(planes_BP, cached(planes_BP), by_content(planes_BP))
        assert cached.misses == 2


def random_rows(rows: int, seed: int) -> np.ndarray:
    """Give rows of random bits with about 30 legal moves."""
    draws = np.random.default_rng(seed)
    planes_BP = draws.integers(2**64, size=(rows, PLANES), dtype=np.uint64)
    for _ in range(4):
        planes_BP[:, 13:] &= draws.integers(2**64, size=(rows, PLANES - 13), dtype=np.uint64)
    planes_BP[:, 13 + 15 :] = 0
    return planes_BP


def test_memory_is_what_was_given_and_the_newest_rows_stay():
    cached = Cached(uniform, mebibytes=1)
    room = cached.nbytes
    assert 0.98 < room / 2**20 <= 1
    planes_BP = random_rows(20_000, seed=5)
    for start in range(0, 20_000, 500):
        cached(planes_BP[start : start + 500])
    assert cached.nbytes == room
    assert cached.misses == 20_000
    cached(planes_BP[-3000:])
    newest = cached.hits
    assert newest > 2900, "what came last is there, but for the few whose bucket is full"
    cached(planes_BP[:3000])
    assert cached.hits == newest, "what came first has been written over"


def test_the_ring_wraps_without_a_wrong_word():
    cached = Cached(by_content, mebibytes=1)
    planes_BP = random_rows(9_000, seed=6)
    draws = np.random.default_rng(7)
    for start in range(0, 9_000, 300):
        cached(planes_BP[start : start + 300])
        again = planes_BP[draws.integers(start + 300, size=20)]
        assert_same(again, cached(again), by_content(again))
    assert cached.hits > 100


def test_clear_forgets_and_counts_from_zero():
    cached = Cached(uniform)
    planes_BP = rows_of_random_games(20, seed=8)
    cached(planes_BP)
    cached.clear()
    assert (cached.hits, cached.misses, cached.hit_rate) == (0, 0, 0.0)
    cached.evaluator = by_content
    assert_same(planes_BP, cached(planes_BP), by_content(planes_BP))


def test_no_room_is_said():
    with pytest.raises(CacheSizeError, match="1 or more"):
        Cached(uniform, mebibytes=0)


def test_no_kernel_mixes_signed_and_unsigned():
    Cached(handwritten.evaluate, mebibytes=1)(rows_of_random_games(3, seed=9))
    found = kernels(evaluation_cache)
    unsigned = [kernel for kernel in found.values() if kernel.signatures]
    assert len(unsigned) >= 3
    for kernel in unsigned:
        for signature in kernel.signatures:
            mixed = [line for line in not_unsigned(kernel, signature) if line.endswith("is int64")]
            assert not mixed, f"{kernel.__name__}: {mixed}"
