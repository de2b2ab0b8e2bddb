"""Vectors of eight bitboards, one per direction, to compute moves in all directions at once.

`Lanes` is a Numba type for compiled code only: an LLVM vector of eight uint64. It fits in one
register with AVX-512 and takes several elsewhere. Lane i belongs to direction i (N NE E SE S SW W
NW) or to knight step i. Move planes are distance-major, so the lanes of one distance are eight
consecutive planes in memory.

A step is a rotation and a mask, so all directions use the same instruction. Lanes support `&`, `|`
and `~`. All values are unsigned, as in engine/board/bitboard.py.
"""

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic, lower_builtin, models, register_model, type_callable

from engine.board.bitboard import (
    ALL_SQUARES,
    DIRECTIONS,
    KNIGHT_STEPS,
    NOT_A,
    NOT_AB,
    NOT_GH,
    NOT_H,
)
from engine.kernels import make_intrinsic

WIDTH = 8
_WORD = ir.IntType(64)
_VECTOR = ir.VectorType(_WORD, WIDTH)
_INDEX = ir.IntType(32)


class LanesType(types.Type):
    """The type of eight bitboards in compiled code."""


LANES = LanesType("Lanes")


@register_model(LanesType)
class _LanesModel(models.PrimitiveModel):
    """Represents a value of the type as an LLVM vector."""

    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _VECTOR)  # type: ignore[no-untyped-call]


def turns(steps: tuple[tuple[int, int], ...]) -> list[int]:
    """Return the left rotation, in bits, of each (file, rank) step."""
    return [(file - 8 * rank) % 64 for file, rank in steps]


def _landing(steps: tuple[tuple[int, int], ...]) -> list[int]:
    """Return the squares that each step can land on without wrapping around the edge."""
    files = {-2: NOT_GH, -1: NOT_H, 0: ALL_SQUARES, 1: NOT_A, 2: NOT_AB}
    rows = {
        rank: sum(0xFF << 8 * row for row in range(8) if 0 <= row + rank < 8)
        for rank in range(-2, 3)
    }
    return [int(files[file]) & rows[rank] for file, rank in steps]


def _constant(values: list[int]) -> Any:
    return ir.Constant(_VECTOR, values)


_ZEROS = _constant([0] * WIDTH)
_ONES = _constant([int(ALL_SQUARES)] * WIDTH)


def _call(builder: Any, name: str, result: Any, *values: Any) -> Any:
    """Call LLVM's intrinsic `name` on vectors (llvmlite has no names for these)."""
    kind = ir.FunctionType(result, [_VECTOR] * len(values))
    declare: Any = cgutils.get_or_insert_function
    return builder.call(declare(builder.module, kind, name), values)


def _rotate(builder: Any, name: str, lanes: Any, amounts: Any) -> Any:
    """Rotate each lane by its own amount: `name` is fshl (to the left) or fshr."""
    return _call(builder, f"llvm.{name}.v8i64", _VECTOR, lanes, lanes, amounts)


def _broadcast(builder: Any, words: tuple[Any, ...], order: list[int]) -> Any:
    """Make lanes from one or two words, repeated in an order."""
    lanes = ir.Constant(_VECTOR, ir.Undefined)
    for place, word in enumerate(words):
        lanes = builder.insert_element(lanes, word, ir.Constant(_INDEX, place))
    return _shuffle(builder, lanes, order)


def _shuffle(builder: Any, lanes: Any, order: list[int]) -> Any:
    return builder.shuffle_vector(lanes, lanes, ir.Constant(ir.VectorType(_INDEX, WIDTH), order))


def _stepper(steps: tuple[tuple[int, int], ...], name: str) -> Any:
    """Make the intrinsic that takes a step in every lane (fshl), or takes it back (fshr)."""
    amounts, landing = _constant(turns(steps)), _constant(_landing(steps))

    def build(builder: Any, lanes: Any) -> Any:
        moved = _rotate(builder, name, lanes, amounts)
        return builder.and_(moved, landing) if name == "fshl" else moved

    return make_intrinsic(LANES(LANES), build)


def _back(builder: Any, lanes: Any, distance: Any) -> Any:
    distances = _broadcast(builder, (distance,), [0] * WIDTH)
    return _rotate(builder, "fshr", lanes, builder.mul(distances, _constant(turns(DIRECTIONS))))


everywhere = make_intrinsic(
    LANES(types.uint64), lambda builder, word: _broadcast(builder, (word,), [0] * WIDTH)
)
"""Copy a board to all lanes, uint64 -> Lanes."""
alternate = make_intrinsic(
    LANES(types.uint64, types.uint64),
    lambda builder, *words: _broadcast(builder, words, [0, 1] * 4),
)
"""Put one board in the lanes of straight directions and another in those of diagonals, (uint64,
uint64) -> Lanes."""
step = _stepper(DIRECTIONS, "fshl")
"""Move each lane one step in its direction; drop bits that leave the board, Lanes -> Lanes."""
knight_step = _stepper(KNIGHT_STEPS, "fshl")
"""Move each lane by its knight step, Lanes -> Lanes."""
knight_step_back = _stepper(KNIGHT_STEPS, "fshr")
"""Undo the knight step of each lane, Lanes -> Lanes."""
steps_back = make_intrinsic(LANES(LANES, types.uint64), _back)
"""Undo a number of steps (uint64) of each lane, (Lanes, steps) -> Lanes."""
any_lane = make_intrinsic(
    types.uint64(LANES),
    lambda builder, lanes: _call(builder, "llvm.vector.reduce.or.v8i64", _WORD, lanes),
)
"""Combine all lanes by OR, Lanes -> uint64."""
both_ways = make_intrinsic(
    LANES(LANES),
    lambda builder, lanes: builder.or_(lanes, _shuffle(builder, lanes, [4, 5, 6, 7, 0, 1, 2, 3])),
)
"""Combine each lane with the lane of the opposite direction by OR, Lanes -> Lanes."""
where = make_intrinsic(
    LANES(LANES, LANES),
    lambda builder, test, lanes: builder.select(
        builder.icmp_unsigned("!=", test, _ZEROS), lanes, _ZEROS
    ),
)
"""Clear each lane for which `test` is zero, (test, Lanes) -> Lanes."""
lane = make_intrinsic(
    types.uint64(LANES, types.int32),
    lambda builder, lanes, index: builder.extract_element(lanes, index),
)
"""Extract one lane, (Lanes, index) -> uint64."""


def _store(typing_context: Any, boards: Any, first: Any, lanes: Any) -> Any:
    """Write eight lanes to contiguous `boards` (uint64[n]) from index `first`; unchecked."""
    if not isinstance(boards, types.Array) or boards.layout != "C" or boards.dtype != types.uint64:
        raise TypingError(f"lanes can be stored only in a contiguous uint64[n], not in {boards}")

    def build(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        data = context.make_array(boards)(context, builder, values[0]).data
        place = builder.bitcast(builder.gep(data, [values[1]]), _VECTOR.as_pointer())
        builder.store(values[2], place, align=8)
        return context.get_dummy_value()

    return types.void(boards, types.intp, LANES), build


store: Any = intrinsic(_store)


def _operator(operation: Callable[..., Any], build: Callable[..., Any]) -> None:
    """Register a Python operator on Lanes for compiled code."""
    count = 1 if operation is operator.invert else 2
    typed: Any = type_callable(operation)
    lowered: Any = lower_builtin(operation, *[LANES] * count)  # type: ignore[no-untyped-call]

    @typed
    def type_of(context: Any) -> Any:
        return lambda *kinds: LANES if all(kind == LANES for kind in kinds) else None

    @lowered
    def lower(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return build(builder, *values)


_operator(operator.and_, lambda builder, first, second: builder.and_(first, second))
_operator(operator.or_, lambda builder, first, second: builder.or_(first, second))
_operator(operator.invert, lambda builder, lanes: builder.xor(lanes, _ONES))
