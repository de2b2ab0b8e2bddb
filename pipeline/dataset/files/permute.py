"""Packed rows from shuffled places, compiled: what a shuffle costs is waiting for memory.

Axes: R rows, P planes.
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
