"""Convert planes to columns and back, and gather rows in shuffled order, in compiled kernels.

The kernels are separate from the readers, so that editing a reader does not recompile them. Memory
latency dominates a shuffle, so rows are prefetched before they are copied.

Axes: R rows, P planes, C columns, W words of a row or of a packed position, K picked rows.
"""

from collections.abc import Mapping
from itertools import chain
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from engine.board.bitboard import ALL_SQUARES, EMPTY, ONE, U, popcount
from engine.board.movegen import MOVE_PLANES, MOVE_TYPES, legal_planes
from engine.board.piece_codes import CODE_BITS, piece_codes
from engine.board.position import CASTLING, EN_PASSANT, KING, MAX_MOVES, TURN, WORDS
from engine.encoding.views import NO_LABEL
from engine.kernels import NO_REFCOUNT

# ---------------------------------------------------------------- planes and columns

SINGLE_PLANES, MOVE_COLUMN_WIDTHS = 13, (8, 8, 8, 8, 24, 8)
"""Number of planes that have a column each, and of planes in each column of moves. The loops below
use these numbers as literals, because constant widths make them six times as fast."""
_ROW_WORDS = SINGLE_PLANES + sum(MOVE_COLUMN_WIDTHS)
assert _ROW_WORDS == MOVE_PLANES + MOVE_TYPES


@njit(**NO_REFCOUNT)
def split_planes(rows_RP: Any, pieces_CR: Any, groups: Any) -> None:
    """Copy planes, uint64[R, 77], to columns: 0..12 to uint64[13, R], the others to `groups`.

    Each group is uint64[R * W], with W from MOVE_COLUMN_WIDTHS. All arrays are contiguous.
    """
    words = rows_RP.reshape(-1)
    a, b, c, d, e, f = groups
    for row in range(len(rows_RP)):
        at, narrow, wide = row * _ROW_WORDS, 8 * row, 24 * row
        for plane in range(SINGLE_PLANES):
            pieces_CR[plane, row] = words[at + plane]
        for plane in range(8):
            a[narrow + plane] = words[at + 13 + plane]
            b[narrow + plane] = words[at + 21 + plane]
            c[narrow + plane] = words[at + 29 + plane]
            d[narrow + plane] = words[at + 37 + plane]
            f[narrow + plane] = words[at + 69 + plane]
        for plane in range(24):
            e[wide + plane] = words[at + 45 + plane]


@njit(**NO_REFCOUNT)
def join_planes(pieces_CR: Any, groups: Any, out_RP: Any) -> None:
    """Copy columns to planes, contiguous uint64[R, 77]: the inverse of `split_planes`."""
    words = out_RP.reshape(-1)
    a, b, c, d, e, f = groups
    for row in range(len(out_RP)):
        at, narrow, wide = row * _ROW_WORDS, 8 * row, 24 * row
        for plane in range(SINGLE_PLANES):
            words[at + plane] = pieces_CR[plane, row]
        for plane in range(8):
            words[at + 13 + plane] = a[narrow + plane]
            words[at + 21 + plane] = b[narrow + plane]
            words[at + 29 + plane] = c[narrow + plane]
            words[at + 37 + plane] = d[narrow + plane]
            words[at + 69 + plane] = f[narrow + plane]
        for plane in range(24):
            words[at + 45 + plane] = e[wide + plane]


# ---------------------------------------------------------------- positions

PACKED_PIECE_WORDS = CODE_BITS
"""Words of a packed position that hold its pieces (engine/board/piece_codes.py)."""
PACKED_WORDS = PACKED_PIECE_WORDS + 1
"""Words of a packed position. The last one is
turn (1 for Black) | castling << 8 | en-passant file << 16."""

VALID, NO_KINGS, MANY_MOVES, ILLEGAL_LABEL = range(4)
"""Results of checking a packed position."""


@njit(**NO_REFCOUNT)
def pack_positions(rows_RP: Any, castling_R: Any, ep_file_R: Any, out_RW: Any) -> None:
    """Pack planes, castling rights and en-passant files (uint8) into uint64[R, PACKED_WORDS]."""
    for row in range(len(rows_RP)):
        planes, out = rows_RP[row], out_RW[row]
        out[0], out[1], out[2], out[3] = piece_codes(planes)
        out[4] = planes[TURN] & U(1) | U(castling_R[row]) << U(8) | U(ep_file_R[row]) << U(16)


@njit(**NO_REFCOUNT)
def pack_columns(boards: Any, black_R: Any, castling_R: Any, ep_file_R: Any, out_RW: Any) -> Any:
    """Pack a compact shard's columns, four uint64[R] and three uint8[R], into `out_RW`.

    Returns the first row (int64) with a piece code above 12, or -1.
    """
    a, b, c, d = boards
    for row in range(U(len(out_RW))):
        if d[row] & c[row] & (b[row] | a[row]) != EMPTY:
            return np.int64(row)
        out = out_RW[row]
        out[0], out[1], out[2], out[3] = a[row], b[row], c[row], d[row]
        out[4] = U(black_R[row]) | U(castling_R[row]) << U(8) | U(ep_file_R[row]) << U(16)
    return np.int64(-1)


@njit(**NO_REFCOUNT)
def _unpack_position(packed_W: Any, position: Any) -> None:
    """Unpack one packed position to a position, uint64[16], without its counters."""
    a, b, c, d = packed_W[0], packed_W[1], packed_W[2], packed_W[3]
    low, high = ~c & ~d, ~c & d
    position[0] = a & ~b & low
    position[1] = ~a & b & low
    position[2] = a & b & low
    position[3] = ~a & ~b & c & ~d
    position[4] = a & ~b & c & ~d
    position[5] = ~a & b & c & ~d
    position[6] = a & b & c & ~d
    position[7] = ~a & ~b & high
    position[8] = a & ~b & high
    position[9] = ~a & b & high
    position[10] = a & b & high
    position[11] = ~a & ~b & c & d
    state = packed_W[PACKED_PIECE_WORDS]
    position[TURN] = ALL_SQUARES if state & U(1) else EMPTY
    rights = state >> U(8)
    position[CASTLING] = (
        (rights & U(1)) << U(63)
        | ((rights >> U(1)) & U(1)) << U(56)
        | ((rights >> U(2)) & U(1)) << U(7)
        | ((rights >> U(3)) & U(1))
    )
    file = (state >> U(16)) & U(255)
    position[EN_PASSANT] = U(1) << (U(16) + file) if file < U(8) else EMPTY


@njit(**NO_REFCOUNT)
def unpack_positions(packed_RW: Any, labels_R: Any, position: Any, out_RP: Any) -> Any:
    """Write the planes of packed positions to `out_RP`, uint64[R, 77].

    Returns the first invalid row (int64) and its problem, or (-1, VALID); rows after it are not
    written. Labels (uint16) must be legal moves or NO_LABEL; an empty array skips this check.
    `position` is scratch memory, uint64[16].
    """
    for row in range(len(packed_RW)):
        _unpack_position(packed_RW[row], position)
        if popcount(position[KING]) != ONE or popcount(position[KING + 1]) != ONE:
            return np.int64(row), NO_KINGS
        planes = out_RP[row]
        legal_planes(position, planes)
        moves = U(0)
        for index in range(MOVE_PLANES, MOVE_PLANES + MOVE_TYPES):
            moves += popcount(planes[index])
        if moves > U(MAX_MOVES):
            return np.int64(row), MANY_MOVES
        if len(labels_R) and labels_R[row] != NO_LABEL:
            label = U(labels_R[row])
            if (
                label >= U(64 * MOVE_TYPES)
                or (planes[U(MOVE_PLANES) + (label >> U(6))] >> (label & U(63))) & ONE == EMPTY
            ):
                return np.int64(row), ILLEGAL_LABEL
    return np.int64(-1), VALID


SPLIT_ROWS = 64
"""Rows whose planes are computed before they are split: 39 kB, which fits in the L1 cache."""


@njit(cache=True, nogil=True)
def split_positions(packed_RW: Any, pieces_CR: Any, groups: Any) -> None:
    """Write the planes of valid packed positions to columns, as `split_planes` does."""
    scratch = np.empty((SPLIT_ROWS, _ROW_WORDS), dtype=np.uint64)
    none, position = np.empty(0, dtype=np.uint16), np.zeros(WORDS, dtype=np.uint64)
    a, b, c, d, e, f = groups
    for first in range(0, len(packed_RW), SPLIT_ROWS):
        last = min(first + SPLIT_ROWS, len(packed_RW))
        unpack_positions(packed_RW[first:last], none, position, scratch)
        low, high = 8 * first, 8 * last
        narrow = a[low:high], b[low:high], c[low:high], d[low:high]
        tile = (*narrow, e[24 * first : 24 * last], f[low:high])
        split_planes(scratch[: last - first], pieces_CR[:, first:last], tile)


@njit(**NO_REFCOUNT)
def unpack_to_positions(packed_RW: Any, positions_RW: Any) -> None:
    """Unpack packed positions to positions, uint64[R, 16], with all counters 0."""
    for row in range(len(packed_RW)):
        _unpack_position(packed_RW[row], positions_RW[row])


# ---------------------------------------------------------------- rows in shuffled order

PREFETCH_ROWS = 16
"""Number of rows by which prefetching is ahead of copying."""
TILE_ROWS = 256
"""Records that are split into columns at a time: two such tiles, 32 kB, fit in the L1 cache."""
CACHE_LINE_WORDS = 8
"""Number of uint64 words in a cache line."""
VALUE_SIZES = (8, 4, 2, 1)
"""Sizes in bytes of the values in a record, widest first."""
PADDING = "unused"
"""Name of the field that pads a record to whole words."""


def _make_prefetch(typing_context: Any, words: Any, index: Any) -> Any:
    """Return the signature and the code generator of `prefetch(words, index)`."""

    def build(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        place, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        data = context.make_array(signature.args[0])(context, builder, values[0]).data
        line = builder.bitcast(builder.gep(data, [values[1]]), place)
        kind = ir.FunctionType(ir.VoidType(), [place, flag, flag, flag])
        declare: Any = cgutils.get_or_insert_function
        prefetch = declare(builder.module, kind, "llvm.prefetch.p0")
        # read access, keep in all cache levels, data cache
        builder.call(prefetch, [line, flag(0), flag(3), flag(1)])
        return context.get_dummy_value()

    return types.void(words, types.intp), build


prefetch: Any = intrinsic(_make_prefetch)
"""Prefetch the cache line of `words[index]`, where `words` is uint64[n]."""


@njit(**NO_REFCOUNT)
def gather_rows(rows_RP: Any, picked_R: Any, out_RP: Any) -> None:
    """Copy the picked rows (int64) of a contiguous uint64 array to `out_RP`, in picked order."""
    count, width = len(picked_R), rows_RP.shape[1]
    words = rows_RP.reshape(-1)
    for row in range(count):
        ahead = picked_R[min(row + PREFETCH_ROWS, count - 1)] * width
        for first in range(0, width, CACHE_LINE_WORDS):
            prefetch(words, ahead + first)
        source = picked_R[row]
        for word in range(width):
            out_RP[row, word] = rows_RP[source, word]


@njit(**NO_REFCOUNT)
def _take_columns(
    numbers_RC: Any, first: Any, picked_K: Any, begin: Any, end: Any, out_CK: Any
) -> None:
    """Copy the columns from `first` on of the picked rows `begin` to `end` - 1 to `out_CK`."""
    numbers, width = numbers_RC.reshape(-1), U(numbers_RC.shape[1])
    for column in range(len(out_CK)):
        out, number = out_CK[column], U(first + column)
        for row in range(U(begin), U(end)):  # signed indices are several times slower
            out[row] = numbers[U(picked_K[row]) * width + number]


@njit(**NO_REFCOUNT)
def _gather_columns(views: Any, picked_K: Any, outs: Any) -> None:
    """Copy the picked records (int64) to columns: `outs`, uint64, uint32, uint16 and uint8 [C, K].

    `views` are the records viewed as arrays of these four types, [R, .]. The next tile of records
    is prefetched while a tile is copied.
    """
    eights, fours, twos, ones = views
    out8_CK, out4_CK, out2_CK, out1_CK = outs
    count, words, width = len(picked_K), eights.reshape(-1), eights.shape[1]
    first4 = 2 * len(out8_CK)
    first2 = 2 * (first4 + len(out4_CK))
    first1 = 2 * (first2 + len(out2_CK))
    prefetched = 0
    for begin in range(0, count, TILE_ROWS):
        end = min(begin + TILE_ROWS, count)
        while prefetched < min(end + TILE_ROWS, count):
            for word in range(0, width, CACHE_LINE_WORDS):
                prefetch(words, picked_K[prefetched] * width + word)
            prefetched += 1
        _take_columns(eights, 0, picked_K, begin, end, out8_CK)
        _take_columns(fours, first4, picked_K, begin, end, out4_CK)
        _take_columns(twos, first2, picked_K, begin, end, out2_CK)
        _take_columns(ones, first1, picked_K, begin, end, out1_CK)


class Records:
    """Rows stored as records, so that reading a random row costs one cache miss."""

    def __init__(self, records_R: NDArray[Any]) -> None:
        """Wrap records of whole words: columns in the order of VALUE_SIZES, then PADDING."""
        dtypes = {name: records_R.dtype[name] for name in records_R.dtype.names or ()}
        dtypes.pop(PADDING, None)
        self.records_R = records_R
        self.fields = [
            [field for field in dtypes.items() if field[1].itemsize == width]
            for width in VALUE_SIZES
        ]
        assert list(chain(*self.fields)) == list(dtypes.items()), "wider columns must come first"
        self.views = tuple(
            records_R.view(f"u{width}").reshape(len(records_R), -1) for width in VALUE_SIZES
        )

    def take(self, picked_K: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Return the columns of the picked rows; columns of one width share one array."""
        outs = tuple(
            np.empty((len(fields), len(picked_K)), dtype=f"u{width}")
            for fields, width in zip(self.fields, VALUE_SIZES, strict=True)
        )
        _gather_columns(self.views, picked_K, outs)
        taken: dict[str, NDArray[Any]] = {}
        for fields, columns in zip(self.fields, outs, strict=True):
            for column, (name, dtype) in enumerate(fields):
                values = columns[column]
                # a view costs more than copying a few rows: make none that is not needed
                taken[name] = values.view(dtype) if dtype.kind != "u" else values
        return taken


def make_record_type(dtypes: Mapping[str, np.dtype[Any]]) -> np.dtype[Any]:
    """Return the dtype of records for `Records` with these columns."""
    fields = [
        (name, dtype)
        for width in VALUE_SIZES
        for name, dtype in dtypes.items()
        if dtype.itemsize == width
    ]
    size = sum(dtype.itemsize for _, dtype in fields)
    return np.dtype([*fields, (PADDING, f"V{-size % 8}")] if size % 8 else fields)
