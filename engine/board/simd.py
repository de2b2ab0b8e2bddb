"""Vectors of eight bitboards, one per direction, to compute moves in all directions at once.

`Lanes` is a Numba type for compiled code only: an LLVM vector of eight uint64. With AVX-512, it
fits in one register; other processors use several. Lane i belongs to direction i (N NE E SE S SW W
NW) or to knight step i. Move planes are distance-major, so the lanes of one distance are eight
consecutive planes in memory.

A step is a rotation and a mask, so all directions use the same instructions. Lanes support `&`,
`|` and `~`. All values are unsigned, as in engine/board/bitboard.py.
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
    NOT_FILE_A,
    NOT_FILE_H,
    NOT_FILES_AB,
    NOT_FILES_GH,
)
from engine.kernels import make_intrinsic

LANE_COUNT = 8
_UINT64 = ir.IntType(64)
_VECTOR = ir.VectorType(_UINT64, LANE_COUNT)
_INT32 = ir.IntType(32)


class LanesType(types.Type):
    """Numba's type of eight bitboards."""


LANES = LanesType("Lanes")


@register_model(LanesType)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _VECTOR)  # type: ignore[no-untyped-call]


def rotations(steps: tuple[tuple[int, int], ...]) -> list[int]:
    """Return the left rotation, in bits, of each (file, rank) step."""
    return [(file - 8 * rank) % 64 for file, rank in steps]


def _find_landing_squares(steps: tuple[tuple[int, int], ...]) -> list[int]:
    """Return a board for each step: the squares on which it can land without wrapping around."""
    files = {-2: NOT_FILES_GH, -1: NOT_FILE_H, 0: ALL_SQUARES, 1: NOT_FILE_A, 2: NOT_FILES_AB}
    rows = {
        rank: sum(0xFF << 8 * row for row in range(8) if 0 <= row + rank < 8)
        for rank in range(-2, 3)
    }
    return [int(files[file]) & rows[rank] for file, rank in steps]


def _make_constant(values: list[int]) -> Any:
    return ir.Constant(_VECTOR, values)


_ZEROS = _make_constant([0] * LANE_COUNT)
_ONES = _make_constant([int(ALL_SQUARES)] * LANE_COUNT)


def _call_intrinsic(builder: Any, name: str, result: Any, *values: Any) -> Any:
    """Call the LLVM intrinsic `name`, for which llvmlite has no method, on vectors."""
    kind = ir.FunctionType(result, [_VECTOR] * len(values))
    declare: Any = cgutils.get_or_insert_function
    return builder.call(declare(builder.module, kind, name), values)


def _rotate(builder: Any, name: str, lanes: Any, amounts: Any) -> Any:
    """Rotate each lane by its own amount; `name` is fshl (to the left) or fshr (to the right)."""
    return _call_intrinsic(builder, f"llvm.{name}.v8i64", _VECTOR, lanes, lanes, amounts)


def _broadcast(builder: Any, words: tuple[Any, ...], order: list[int]) -> Any:
    """Fill the lanes with one or two words; `order` has the index of the word for each lane."""
    lanes = ir.Constant(_VECTOR, ir.Undefined)
    for index, word in enumerate(words):
        lanes = builder.insert_element(lanes, word, ir.Constant(_INT32, index))
    return _shuffle(builder, lanes, order)


def _shuffle(builder: Any, lanes: Any, order: list[int]) -> Any:
    return builder.shuffle_vector(
        lanes, lanes, ir.Constant(ir.VectorType(_INT32, LANE_COUNT), order)
    )


def _make_step(steps: tuple[tuple[int, int], ...], name: str) -> Any:
    """Make a function that steps in every lane (`name` is fshl), or undoes the step (fshr)."""
    amounts, landing = (
        _make_constant(rotations(steps)),
        _make_constant(_find_landing_squares(steps)),
    )

    def build(builder: Any, lanes: Any) -> Any:
        moved = _rotate(builder, name, lanes, amounts)
        return builder.and_(moved, landing) if name == "fshl" else moved

    return make_intrinsic(LANES(LANES), build)


def _emit_steps_back(builder: Any, lanes: Any, distance: Any) -> Any:
    distances = _broadcast(builder, (distance,), [0] * LANE_COUNT)
    return _rotate(
        builder, "fshr", lanes, builder.mul(distances, _make_constant(rotations(DIRECTIONS)))
    )


broadcast = make_intrinsic(
    LANES(types.uint64), lambda builder, word: _broadcast(builder, (word,), [0] * LANE_COUNT)
)
"""Copy a board to all lanes, uint64 -> Lanes."""
alternate_lanes = make_intrinsic(
    LANES(types.uint64, types.uint64),
    lambda builder, *words: _broadcast(builder, words, [0, 1] * 4),
)
"""Put the first board in the lanes of straight directions and the second in those of diagonals,
(uint64, uint64) -> Lanes."""
step = _make_step(DIRECTIONS, "fshl")
"""Move each lane one step in its direction, and drop what leaves the board, Lanes -> Lanes."""
knight_step = _make_step(KNIGHT_STEPS, "fshl")
"""Move each lane by its knight step, Lanes -> Lanes."""
knight_step_back = _make_step(KNIGHT_STEPS, "fshr")
"""Undo the knight step of each lane, Lanes -> Lanes."""
steps_back = make_intrinsic(LANES(LANES, types.uint64), _emit_steps_back)
"""Undo a number of steps in each lane, (Lanes, uint64) -> Lanes."""
or_lanes = make_intrinsic(
    types.uint64(LANES),
    lambda builder, lanes: _call_intrinsic(builder, "llvm.vector.reduce.or.v8i64", _UINT64, lanes),
)
"""Combine all lanes by OR, Lanes -> uint64."""
or_opposite_lanes = make_intrinsic(
    LANES(LANES),
    lambda builder, lanes: builder.or_(lanes, _shuffle(builder, lanes, [4, 5, 6, 7, 0, 1, 2, 3])),
)
"""Combine each lane with the lane of the opposite direction by OR, Lanes -> Lanes."""
keep_where = make_intrinsic(
    LANES(LANES, LANES),
    lambda builder, test, lanes: builder.select(
        builder.icmp_unsigned("!=", test, _ZEROS), lanes, _ZEROS
    ),
)
"""Clear each lane of the second argument that is zero in the first, (Lanes, Lanes) -> Lanes."""
get_lane = make_intrinsic(
    types.uint64(LANES, types.int32),
    lambda builder, lanes, index: builder.extract_element(lanes, index),
)
"""Extract a lane by its index, (Lanes, int32) -> uint64."""


def _type_store(typing_context: Any, boards: Any, first: Any, lanes: Any) -> Any:
    """Type and emit `store_lanes`: write to `boards` (uint64[n]) from index `first`, unchecked."""
    if not isinstance(boards, types.Array) or boards.layout != "C" or boards.dtype != types.uint64:
        raise TypingError(f"lanes can only be stored in a contiguous uint64[n], not in {boards}")

    def build(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        data = context.make_array(boards)(context, builder, values[0]).data
        target = builder.bitcast(builder.gep(data, [values[1]]), _VECTOR.as_pointer())
        builder.store(values[2], target, align=8)
        return context.get_dummy_value()

    return types.void(boards, types.intp, LANES), build


store_lanes: Any = intrinsic(_type_store)
"""Write eight lanes to consecutive boards, (uint64[n], first index, Lanes) -> None."""


def _register_operator(operation: Callable[..., Any], build: Callable[..., Any]) -> None:
    """Register a Python operator on Lanes that `build` translates to LLVM instructions."""
    count = 1 if operation is operator.invert else 2
    typed: Any = type_callable(operation)
    lowered: Any = lower_builtin(operation, *[LANES] * count)  # type: ignore[no-untyped-call]

    @typed
    def type_of(context: Any) -> Any:
        return lambda *kinds: LANES if all(kind == LANES for kind in kinds) else None

    @lowered
    def lower(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return build(builder, *values)


_register_operator(operator.and_, lambda builder, first, second: builder.and_(first, second))
_register_operator(operator.or_, lambda builder, first, second: builder.or_(first, second))
_register_operator(operator.invert, lambda builder, lanes: builder.xor(lanes, _ONES))
