"""Packed rows from shuffled places, compiled: what a shuffle costs is waiting for memory.

Axes: R rows, P planes, K picked rows, C columns.
"""

from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

AHEAD = 6
"""Rows that are asked of memory before they are copied."""
LINE_WORDS = 8
"""uint64 words of a cache line."""
WIDTHS = (4, 2, 1)
"""Bytes of a value of a record's columns, the wider ones first."""


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
def gather_columns(
    fours_RC: Any, twos_RC: Any, ones_RC: Any, picked_K: Any, out4_CK: Any, out2_CK: Any, out1_CK: Any
) -> None:
    """Copy the picked records (int64) to columns: the same records as contiguous uint32, uint16 and uint8 [R, .].

    A record holds its columns by WIDTHS; as many of each as the outputs have, uint32, uint16 and uint8 [C, K].
    """
    count, words = len(picked_K), fours_RC.reshape(-1)
    wide, middle, narrow = len(out4_CK), len(out2_CK), len(out1_CK)
    for row in range(count):
        prefetch(words, picked_K[min(row + AHEAD, count - 1)] * fours_RC.shape[1])
        source = picked_K[row]
        for column in range(wide):
            out4_CK[column, row] = fours_RC[source, column]
        for column in range(middle):
            out2_CK[column, row] = twos_RC[source, 2 * wide + column]
        for column in range(narrow):
            out1_CK[column, row] = ones_RC[source, 4 * wide + 2 * middle + column]
