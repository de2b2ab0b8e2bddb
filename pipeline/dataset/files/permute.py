"""Packed rows from shuffled places, compiled: what a shuffle costs is waiting for memory.

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

AHEAD = 6
"""Rows that are asked of memory before they are copied."""
LINE_WORDS = 8
"""uint64 words of a cache line."""
WIDTHS = (8, 4, 2, 1)
"""Bytes of a value of a record's columns, the wider ones first."""
UNUSED = "unused"
"""Name of what fills a record up to whole words."""


def _prefetch_line(typing_context: Any, words: Any, index: Any) -> Any:
    """Ask memory for the cache line of `words[index]` (uint64[n]), with no effect but time."""

    def build(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        place, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        data = context.make_array(signature.args[0])(context, builder, values[0]).data
        line = builder.bitcast(builder.gep(data, [values[1]]), place)
        kind = ir.FunctionType(ir.VoidType(), [place, flag, flag, flag])
        declare: Any = cgutils.get_or_insert_function
        prefetch = declare(builder.module, kind, "llvm.prefetch.p0")
        builder.call(prefetch, [line, flag(0), flag(3), flag(1)])  # to read, to stay in all caches, data
        return context.get_dummy_value()

    return types.void(words, types.intp), build


prefetch: Any = intrinsic(_prefetch_line)


@njit(cache=True, nogil=True)
def gather_rows(rows_RP: Any, picked_R: Any, out_RP: Any) -> None:
    """Copy the picked rows (int64) of `rows_RP` (contiguous uint64) one behind the other into `out_RP`."""
    count, width = len(picked_R), rows_RP.shape[1]
    words = rows_RP.reshape(-1)
    for row in range(count):
        coming = picked_R[min(row + AHEAD, count - 1)] * width
        for first in range(0, width, LINE_WORDS):
            prefetch(words, coming + first)
        source = picked_R[row]
        for word in range(width):
            out_RP[row, word] = rows_RP[source, word]


@njit(cache=True, nogil=True)
def _gather_columns(views: Any, picked_K: Any, outs: Any) -> None:
    """Copy the picked records (int64) to columns: `outs`, uint64, uint32, uint16 and uint8 [C, K].

    `views` are the records as contiguous numbers of the same widths, [R, .]; a record begins with the columns of `outs`.
    """
    eights, fours, twos, ones = views
    out8_CK, out4_CK, out2_CK, out1_CK = outs
    count, words = len(picked_K), eights.reshape(-1)
    first4 = 2 * len(out8_CK)
    first2 = 2 * (first4 + len(out4_CK))
    first1 = 2 * (first2 + len(out2_CK))
    for row in range(count):
        prefetch(words, picked_K[min(row + AHEAD, count - 1)] * eights.shape[1])
        source = picked_K[row]
        for column in range(len(out8_CK)):
            out8_CK[column, row] = eights[source, column]
        for column in range(len(out4_CK)):
            out4_CK[column, row] = fours[source, first4 + column]
        for column in range(len(out2_CK)):
            out2_CK[column, row] = twos[source, first2 + column]
        for column in range(len(out1_CK)):
            out1_CK[column, row] = ones[source, first1 + column]


class Records:
    """Rows whose columns of numbers lie together, so that a row picked at random is one wait for memory."""

    def __init__(self, records_R: NDArray[Any]) -> None:
        """Use records of whole words, their columns by WIDTHS, and perhaps UNUSED behind them."""
        kinds = {name: kind for name, (kind, *_) in (records_R.dtype.fields or {}).items() if name != UNUSED}
        self.records_R = records_R
        self.fields = [[one for one in kinds.items() if one[1].itemsize == width] for width in WIDTHS]
        assert [name for some in self.fields for name, _ in some] == list(kinds), "wider columns are the first"
        self.views = tuple(records_R.view(f"u{width}").reshape(len(records_R), -1) for width in WIDTHS)

    def take(self, picked_K: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Copy the columns of some rows; those of one width lie in one array."""
        outs = tuple(
            np.empty((len(some), len(picked_K)), dtype=f"u{width}")
            for some, width in zip(self.fields, WIDTHS, strict=True)
        )
        _gather_columns(self.views, picked_K, outs)
        taken: dict[str, NDArray[Any]] = {}
        for some, columns in zip(self.fields, outs, strict=True):
            for (name, kind), column in zip(some, columns, strict=True):
                taken[name] = column.view(kind)
        return taken


def record_type(kinds: Mapping[str, np.dtype[Any]]) -> np.dtype[Any]:
    """Return the type of records of these columns for `Records`."""
    fields = [(name, kind) for width in WIDTHS for name, kind in kinds.items() if kind.itemsize == width]
    size = sum(kind.itemsize for _, kind in fields)
    return np.dtype([*fields, (UNUSED, f"V{-size % 8}")] if size % 8 else fields)
