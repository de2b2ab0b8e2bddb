"""Bitboards: 64 squares as the bits of one uint64, seen by the side to move.

The whole project uses this bit order: bit k is row k // 8, column k % 8. Row 0 is the mover's
eighth rank, and column 0 is the a-file. With White to move:

      a  b  c  d  e  f  g  h
  8   0  1  2  3  4  5  6  7      N  = -8   NE = -7
  7   8  9 10 11 12 13 14 15      E  = +1   SE = +9
  6  16 17 18 19 20 21 22 23      S  = +8   SW = +7
  ...                             W  = -1   NW = -9
  1  56 57 58 59 60 61 62 63

With Black to move, the board is mirrored top to bottom (files stay), so the mover's pawns always
move up, to lower bits.

All values are unsigned 64-bit. Numba converts a mix of signed and unsigned 64-bit integers to int64
(or float64 where branches meet), so every constant and shift count is `np.uint64`.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types

from engine.kernels import NO_REFCOUNT, make_intrinsic

U = np.uint64
"""Type of boards, masks and shift counts."""

EMPTY = U(0)
ALL_SQUARES = U(0xFFFF_FFFF_FFFF_FFFF)
ONE = U(1)
FILE_A = U(0x0101_0101_0101_0101)
FILE_H = U(0x8080_8080_8080_8080)
RANK_1 = U(0xFF00_0000_0000_0000)
"""The mover's first rank, row 7."""
RANK_2 = U(0x00FF_0000_0000_0000)
RANK_3 = U(0x0000_FF00_0000_0000)
RANK_8 = U(0x0000_0000_0000_00FF)
"""The mover's eighth rank, row 0, where the mover's pawns promote."""

# Squares where a step to the east or west can land. Without these masks, a shift would wrap around
# the edge of the board.
NOT_FILE_A = U(~int(FILE_A) & int(ALL_SQUARES))
NOT_FILE_H = U(~int(FILE_H) & int(ALL_SQUARES))
NOT_FILES_AB = U(~(int(FILE_A) | int(FILE_A) << 1) & int(ALL_SQUARES))
NOT_FILES_GH = U(~(int(FILE_H) | int(FILE_H) >> 1) & int(ALL_SQUARES))

DIRECTIONS = ((0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1), (-1, 0), (-1, 1))
"""(file, rank) steps in the order of the move types: N NE E SE S SW W NW. The mover's pawns move
north."""
KNIGHT_STEPS = ((1, 2), (2, 1), (2, -1), (1, -2), (-1, -2), (-2, -1), (-2, 1), (-1, 2))
"""(file, rank) steps in the order of move types 56..63."""


_UINT64_FUNCTION = types.uint64(types.uint64)
popcount = make_intrinsic(_UINT64_FUNCTION, lambda builder, board: builder.ctpop(board))
"""Count the set bits, uint64 -> uint64, in compiled code."""
lowest_square = make_intrinsic(
    _UINT64_FUNCTION, lambda builder, board: builder.cttz(board, ir.Constant(ir.IntType(1), 0))
)
"""Return the index of the lowest set bit, uint64 -> uint64, in compiled code; 64 for an empty
board."""
flip = make_intrinsic(_UINT64_FUNCTION, lambda builder, board: builder.bswap(board))
"""Mirror a board top to bottom, uint64 -> uint64, in compiled code: a byte swap."""


@njit(**NO_REFCOUNT, inline="always")
def bit(square: Any) -> Any:
    """Return the bitboard with only `square` set, uint64."""
    return ONE << U(square)


@njit(**NO_REFCOUNT)
def knight_attacks(board: Any) -> Any:
    """Return the squares attacked by knights on the squares of `board`, uint64."""
    one_west = (board >> U(1)) & NOT_FILE_H
    two_west = (board >> U(2)) & NOT_FILES_GH
    one_east = (board << U(1)) & NOT_FILE_A
    two_east = (board << U(2)) & NOT_FILES_AB
    near = one_west | one_east
    far = two_west | two_east
    return (near << U(16)) | (near >> U(16)) | (far << U(8)) | (far >> U(8))


@njit(**NO_REFCOUNT)
def king_attacks(board: Any) -> Any:
    """Return the squares adjacent to the squares of `board`, uint64."""
    row = board | ((board << U(1)) & NOT_FILE_A) | ((board >> U(1)) & NOT_FILE_H)
    return (row | (row << U(8)) | (row >> U(8))) & ~board
