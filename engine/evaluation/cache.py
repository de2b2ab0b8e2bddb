"""A cache in front of an evaluator: a position that was evaluated is not evaluated again while there is room.

Keyed on all that an evaluator can see, the 77 planes: 128 bits of two hashes. Among 2**40 rows the chance of one
confusion is 2**-49, as far as hashes are random. A castling right that shows in a move plane alone makes another key.

What is kept of a row is the win, draw and loss and the logits of its legal labels, one float32 each, in the order of the
labels. These records go into a ring, and the oldest are written over: nothing is freed, nothing moves, memory is fixed.
An index of buckets says where in the ring a key's record starts, counted in floats since the beginning, so that a
record that was written over is known by its number.

Axes: B rows, M rows that missed, P planes, A labels, S slots of the index.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from engine.board.bitboard import EMPTY, U, lowest, popcount
from engine.board.movegen import MOVE_PLANES, TYPES
from engine.encoding.planes import LABELS, PLANES
from engine.errors import UserError
from engine.evaluation.evaluator import Evaluator

WAYS = 8
"""Slots of a bucket: a key is looked for in these alone."""
SLOT_BYTES = 24
"""Two hashes and a start."""
RECORD_FLOATS = 40
"""What a record is reckoned at: three outcomes and 37 legal moves, some more than games have on average."""
SLOTS_A_RECORD = 2
"""Twice the slots that records need, so that few buckets fill before the ring does."""
OUTCOMES = 3


class CacheSizeError(UserError):
    """A size of cache that holds nothing."""


class _Store(NamedTuple):
    """The memory of a cache."""

    keys: Any  # uint64[S, 2]
    starts: Any  # int64[S], where the record starts, in floats since the beginning; -1 for none
    ring: Any  # float32[floats]
    written: Any  # int64[1], floats since the beginning


@njit(cache=True, nogil=True, inline="always")
def _stirred(total: Any, word: Any, factor: Any) -> Any:
    """Stir a word into a running hash: a bijection of `total` for each word, and of the word for each `total`.

    Two multiplications, since after one the topmost bit of a word has changed two bits, which another word can undo.
    """
    total = (total ^ word) * factor
    total = (total ^ (total >> U(32))) * U(0xD6E8_FEB8_6659_FD93)
    return total ^ (total >> U(29))


@njit(cache=True, nogil=True)
def row_key(planes: Any) -> Any:
    """Hash a row, planes uint64[77]: two uint64, of unlike factors.

    Four lanes each, since a chain of 77 multiplications is what a processor would wait for.
    """
    one, two = U(0xBF58_476D_1CE4_E5B9), U(0x94D0_49BB_1331_11EB)
    a, b, c, d = U(0x9E37_79B9_7F4A_7C15), U(0xD1B5_4A32_D192_ED03), U(0xABC9_8388_FB8F_AC03), U(0x8CB9_2BA7_2F3D_8DD7)
    e, f, g, h = U(0x2545_F491_4F6C_DD1D), U(0x8538_ECB5_BD45_6EA3), U(0xA076_1D64_78BD_642F), U(0xE703_7ED1_A0B4_28DB)
    for plane in range(0, PLANES - 1, 4):
        a, e = _stirred(a, planes[plane], one), _stirred(e, planes[plane], two)
        b, f = _stirred(b, planes[plane + 1], one), _stirred(f, planes[plane + 1], two)
        c, g = _stirred(c, planes[plane + 2], one), _stirred(g, planes[plane + 2], two)
        d, h = _stirred(d, planes[plane + 3], one), _stirred(h, planes[plane + 3], two)
    a, e = _stirred(a, planes[PLANES - 1], one), _stirred(e, planes[PLANES - 1], two)
    first = _stirred(_stirred(_stirred(a, b, two), c, two), d, two)
    second = _stirred(_stirred(_stirred(e, f, one), g, one), h, one)
    return first, second


@njit(cache=True, nogil=True)
def _bucket(first: Any, slots: Any) -> Any:
    """Return the first slot of a key's bucket, int64."""
    buckets = U(slots // WAYS)
    return np.int64((first >> U(32)) * buckets >> U(32)) * WAYS


@njit(cache=True, nogil=True)
def _find(store: Any, first: Any, second: Any) -> Any:
    """Return where in the ring a key's record lies, int64; -1 when it is not there, or no longer."""
    slot = _bucket(first, len(store.starts))
    oldest = max(np.int64(0), store.written[0] - len(store.ring))
    for way in range(slot, slot + WAYS):
        if store.keys[way, 0] == first and store.keys[way, 1] == second and store.starts[way] >= oldest:
            return store.starts[way] % len(store.ring)
    return np.int64(-1)


@njit(cache=True, nogil=True)
def _read(store: Any, place: Any, planes: Any, logits: Any, wdl: Any) -> None:
    """Write the record at `place` of the ring out: logits float32[4096] (legal labels alone), wdl float32[3]."""
    for outcome in range(OUTCOMES):
        wdl[outcome] = store.ring[place + outcome]
    place += OUTCOMES
    for kind in range(TYPES):
        sources = planes[MOVE_PLANES + kind]
        while sources != EMPTY:
            logits[np.int64(kind) * 64 + np.int64(lowest(sources))] = store.ring[place]
            sources &= sources - U(1)
            place += 1


@njit(cache=True, nogil=True)
def _write(store: Any, first: Any, second: Any, planes: Any, logits: Any, wdl: Any) -> None:
    """Append a record to the ring, and name it in the bucket's oldest slot (an empty one counts as oldest)."""
    size = np.int64(OUTCOMES)
    for kind in range(TYPES):
        size += np.int64(popcount(planes[MOVE_PLANES + kind]))
    length = len(store.ring)
    if store.written[0] % length + size > length:  # a record does not wrap round
        store.written[0] += length - store.written[0] % length
    start = store.written[0]
    store.written[0] += size
    place = start % length
    for outcome in range(OUTCOMES):
        store.ring[place + outcome] = wdl[outcome]
    place += OUTCOMES
    for kind in range(TYPES):
        sources = planes[MOVE_PLANES + kind]
        while sources != EMPTY:
            store.ring[place] = logits[np.int64(kind) * 64 + np.int64(lowest(sources))]
            sources &= sources - U(1)
            place += 1
    slot = _bucket(first, len(store.starts))
    oldest = slot
    for way in range(slot + 1, slot + WAYS):
        if store.starts[way] < store.starts[oldest]:
            oldest = way
    store.keys[oldest, 0], store.keys[oldest, 1], store.starts[oldest] = first, second, start


@njit(cache=True, nogil=True)
def _look_up(store: Any, planes_BP: Any, found: Any, missed: Any) -> Any:
    """Write out what is known, and gather what is not: return the number of rows gathered, int64.

    `found` is (logits [B, 4096], wdl [B, 3]); `missed` is (planes uint64[B, P], keys uint64[B, 2], sources int64[B]). A
    row's source is its index among the gathered rows, -1 when it was known; rows that are equal share one.
    """
    logits_BA, wdl_BW = found
    planes_MP, keys_M2, sources_B = missed
    size = np.int64(4)
    while size < 2 * len(planes_BP):
        size *= 2
    seats = np.full(size, -1, dtype=np.int64)  # open addressing over the gathered rows
    count = np.int64(0)
    for row in range(len(planes_BP)):
        first, second = row_key(planes_BP[row])
        sources_B[row] = -1
        place = _find(store, first, second)
        if place >= 0:
            _read(store, place, planes_BP[row], logits_BA[row], wdl_BW[row])
            continue
        seat = np.int64(second & U(size - 1))
        while seats[seat] >= 0 and (keys_M2[seats[seat], 0] != first or keys_M2[seats[seat], 1] != second):
            seat = (seat + 1) & (size - 1)
        if seats[seat] < 0:
            seats[seat] = count
            keys_M2[count, 0], keys_M2[count, 1] = first, second
            planes_MP[count] = planes_BP[row]
            count += 1
        sources_B[row] = seats[seat]
    return count


@njit(cache=True, nogil=True)
def _store_and_copy(store: Any, planes_BP: Any, found: Any, missed: Any, evaluated: Any) -> None:
    """Store the evaluations of the gathered rows, and copy them to each row that waits for them."""
    logits_BA, wdl_BW = found
    planes_MP, keys_M2, sources_B = missed
    logits_MA, wdl_MW = evaluated
    for index in range(len(logits_MA)):
        _write(store, keys_M2[index, 0], keys_M2[index, 1], planes_MP[index], logits_MA[index], wdl_MW[index])
    for row in range(len(planes_BP)):
        source = sources_B[row]
        if source < 0:
            continue
        wdl_BW[row] = wdl_MW[source]
        for kind in range(TYPES):
            moves = planes_BP[row, MOVE_PLANES + kind]
            while moves != EMPTY:
                label = np.int64(kind) * 64 + np.int64(lowest(moves))
                moves &= moves - U(1)
                logits_BA[row, label] = logits_MA[source, label]


class Cached:
    """An Evaluator that asks another one only for rows that it does not hold; for one thread at a time."""

    def __init__(self, evaluator: Evaluator, mebibytes: int = 64) -> None:
        """Put a cache of `mebibytes` (2**20 bytes) in front of an evaluator."""
        if mebibytes < 1:
            raise CacheSizeError(f"an evaluation cache of {mebibytes} MiB holds nothing: give it 1 or more")
        self.evaluator = evaluator
        """Asked for what is missing; its result must depend on the row alone. Call `clear` when it has changed."""
        record_bytes = RECORD_FLOATS * 4 + SLOTS_A_RECORD * SLOT_BYTES
        records = (mebibytes << 20) // record_bytes
        slots = records * SLOTS_A_RECORD // WAYS * WAYS
        self._store = _Store(
            np.zeros((slots, 2), dtype=np.uint64),
            np.full(slots, -1, dtype=np.int64),
            np.zeros(records * RECORD_FLOATS, dtype=np.float32),
            np.zeros(1, dtype=np.int64),
        )
        self._logits_BA = np.zeros((0, LABELS), dtype=np.float32)
        self._missed = self._room(0)
        self.hits = 0
        """Rows answered without the evaluator: held, or equal to an earlier row of the same batch."""
        self.misses = 0
        """Rows that the evaluator was asked for."""

    def __call__(self, planes_BP: NDArray[np.uint64]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return logits float32[B, 4096] and wdl float32[B, 3], mover's view: to the bit those of the evaluator.

        The logits lie in memory that is used again, since fresh memory costs more than the look-up: they are valid until
        the next call, and only those of legal labels carry a meaning.
        """
        planes_BP = np.ascontiguousarray(planes_BP, dtype=np.uint64)
        rows = len(planes_BP)
        if rows > len(self._logits_BA):
            self._logits_BA = np.zeros((rows, LABELS), dtype=np.float32)
            self._missed = self._room(rows)
        found = self._logits_BA[:rows], np.empty((rows, OUTCOMES), dtype=np.float32)
        count = int(_look_up(self._store, planes_BP, found, self._missed))
        self.hits += rows - count
        self.misses += count
        if count:
            logits_MA, wdl_MW = self.evaluator(self._missed[0][:count])
            evaluated = np.asarray(logits_MA, dtype=np.float32), np.asarray(wdl_MW, dtype=np.float32)
            _store_and_copy(self._store, planes_BP, found, self._missed, evaluated)
        return found

    @staticmethod
    def _room(rows: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.int64]]:
        """Make room for the rows of a batch that are missing: planes [B, P], keys [B, 2], sources [B]."""
        return np.zeros((rows, PLANES), np.uint64), np.zeros((rows, 2), np.uint64), np.zeros(rows, np.int64)

    @property
    def hit_rate(self) -> float:
        """Share of rows that were answered without the evaluator, 0 before the first."""
        return self.hits / max(1, self.hits + self.misses)

    @property
    def nbytes(self) -> int:
        """Bytes held for records and their index; room for one batch comes on top."""
        return self._store.keys.nbytes + self._store.starts.nbytes + self._store.ring.nbytes  # type: ignore[no-any-return]

    def clear(self) -> None:
        """Forget every row, and count from zero again."""
        self._store.starts.fill(-1)
        self._store.written[0] = 0
        self.hits = self.misses = 0
