"""Gather rows in shuffled order, compiled. A shuffle's cost is memory latency, so rows are
prefetched before they are copied.

Axes: R rows, P planes, K picked rows, C columns.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from engine.board.bitboard import U
from engine.kernels import BORROWING

AHEAD = 16
"""Rows to prefetch ahead of the copy."""
TILE_ROWS = 256
"""Records that are split into columns together: with the next tile 32 kB, which fit into the
first-level cache."""
LINE_WORDS = 8
"""uint64 words of a cache line."""
WIDTHS = (8, 4, 2, 1)
"""Sizes in bytes of a record's values, widest first."""
UNUSED = "unused"
"""Name of the padding that fills a record up to whole words."""


def _prefetch_line(typing_context: Any, words: Any, index: Any) -> Any:
    """Prefetch the cache line of `words[index]` (uint64[n])."""

    def build(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        place, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        data = context.make_array(signature.args[0])(context, builder, values[0]).data
        line = builder.bitcast(builder.gep(data, [values[1]]), place)
        kind = ir.FunctionType(ir.VoidType(), [place, flag, flag, flag])
        declare: Any = cgutils.get_or_insert_function
        prefetch = declare(builder.module, kind, "llvm.prefetch.p0")
        # to read, to stay in all caches, data
        builder.call(prefetch, [line, flag(0), flag(3), flag(1)])
        return context.get_dummy_value()

    return types.void(words, types.intp), build


prefetch: Any = intrinsic(_prefetch_line)


@njit(**BORROWING)
def gather_rows(rows_RP: Any, picked_R: Any, out_RP: Any) -> None:
    """Copy the picked rows (int64) of `rows_RP` (contiguous uint64) to `out_RP`, in the order of
    `picked_R`.
    """
    count, width = len(picked_R), rows_RP.shape[1]
    words = rows_RP.reshape(-1)
    for row in range(count):
        coming = picked_R[min(row + AHEAD, count - 1)] * width
        for first in range(0, width, LINE_WORDS):
            prefetch(words, coming + first)
        source = picked_R[row]
        for word in range(width):
            out_RP[row, word] = rows_RP[source, word]


@njit(**BORROWING)
def _take_columns(
    numbers_RC: Any, first: Any, picked_K: Any, begin: Any, end: Any, out_CK: Any
) -> None:
    """Copy the picked records' numbers, from number `first` on, to `out_CK`, for the picks `begin`
    to `end`.
    """
    numbers, width = numbers_RC.reshape(-1), U(numbers_RC.shape[1])
    for column in range(len(out_CK)):
        out, number = out_CK[column], U(first + column)
        for row in range(U(begin), U(end)):  # signed indices take several times as long
            out[row] = numbers[U(picked_K[row]) * width + number]


@njit(**BORROWING)
def _gather_columns(views: Any, picked_K: Any, outs: Any) -> None:
    """Copy the picked records (int64) to columns: `outs`, uint64, uint32, uint16 and uint8 [C, K].

    `views` are the records as contiguous numbers of the same widths, [R, .]; a record begins with
    the columns of `outs`. The next tile of records is prefetched while the columns of a tile are
    copied.
    """
    eights, fours, twos, ones = views
    out8_CK, out4_CK, out2_CK, out1_CK = outs
    count, words, width = len(picked_K), eights.reshape(-1), eights.shape[1]
    first4 = 2 * len(out8_CK)
    first2 = 2 * (first4 + len(out4_CK))
    first1 = 2 * (first2 + len(out2_CK))
    asked = 0
    for begin in range(0, count, TILE_ROWS):
        end = min(begin + TILE_ROWS, count)
        while asked < min(end + TILE_ROWS, count):
            for word in range(0, width, LINE_WORDS):
                prefetch(words, picked_K[asked] * width + word)
            asked += 1
        _take_columns(eights, 0, picked_K, begin, end, out8_CK)
        _take_columns(fours, first4, picked_K, begin, end, out4_CK)
        _take_columns(twos, first2, picked_K, begin, end, out2_CK)
        _take_columns(ones, first1, picked_K, begin, end, out1_CK)


class Records:
    """Rows stored as records, so that a row picked at random costs one cache miss."""

    def __init__(self, records_R: NDArray[Any]) -> None:
        """Use records of whole words: columns ordered by WIDTHS, then the padding UNUSED."""
        kinds = {
            name: kind
            for name, (kind, *_) in (records_R.dtype.fields or {}).items()
            if name != UNUSED
        }
        self.records_R = records_R
        self.fields = [
            [one for one in kinds.items() if one[1].itemsize == width] for width in WIDTHS
        ]
        assert [name for some in self.fields for name, _ in some] == list(kinds), (
            "wider columns are the first"
        )
        self.views = tuple(
            records_R.view(f"u{width}").reshape(len(records_R), -1) for width in WIDTHS
        )

    def take(self, picked_K: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Return the columns of the picked rows; columns of one width share one array."""
        outs = tuple(
            np.empty((len(some), len(picked_K)), dtype=f"u{width}")
            for some, width in zip(self.fields, WIDTHS, strict=True)
        )
        _gather_columns(self.views, picked_K, outs)
        taken: dict[str, NDArray[Any]] = {}
        for some, columns in zip(self.fields, outs, strict=True):
            for column, (name, kind) in enumerate(some):
                values = columns[column]
                # a view costs more than a few rows
                taken[name] = values.view(kind) if kind.kind != "u" else values
        return taken


def record_type(kinds: Mapping[str, np.dtype[Any]]) -> np.dtype[Any]:
    """Return the record type of these columns for `Records`."""
    fields = [
        (name, kind) for width in WIDTHS for name, kind in kinds.items() if kind.itemsize == width
    ]
    size = sum(kind.itemsize for _, kind in fields)
    return np.dtype([*fields, (UNUSED, f"V{-size % 8}")] if size % 8 else fields)
