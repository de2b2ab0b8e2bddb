"""Pack positions and compute their planes, compiled. This module reads no files, so an edit of the readers recompiles nothing.

Axes: R rows, W words of a packed position.
"""

from typing import Any

import numpy as np
from numba import njit

from engine.board.bitboard import ALL, EMPTY, ONE, U, popcount
from engine.board.movegen import MOVE_PLANES, TYPES, legal_planes
from engine.board.piece_codes import CODE_BITS, piece_codes
from engine.board.position import CASTLING, EN_PASSANT, KING, MAX_MOVES, TURN
from engine.kernels import BORROWING

BOARDS = CODE_BITS
"""Words of a packed position that hold its pieces (engine/board/piece_codes.py)."""
PACKED = BOARDS + 1
"""Words of a packed position; the last is turn (1 for Black) | castling << 8 | en-passant file << 16."""

VALID, NO_KINGS, MANY_MOVES, ILLEGAL_LABEL = range(4)
"""Results of checking a packed position."""


@njit(**BORROWING)
def pack_positions(rows_RP: Any, castling_R: Any, ep_file_R: Any, out_RW: Any) -> None:
    """Pack planes, castling rights and en-passant files (uint8[R]) into `out_RW`, uint64[R, PACKED]."""
    for row in range(len(rows_RP)):
        planes = rows_RP[row]
        out_RW[row, 0], out_RW[row, 1], out_RW[row, 2], out_RW[row, 3] = piece_codes(planes)
        out_RW[row, 4] = planes[TURN] & U(1) | U(castling_R[row]) << U(8) | U(ep_file_R[row]) << U(16)


@njit(**BORROWING)
def pack_columns(boards: Any, black_R: Any, castling_R: Any, ep_file_R: Any, out_RW: Any) -> Any:
    """Pack a compact shard's columns into `out_RW`: four uint64[R]; turn (0 or 1), castling and en-passant file, uint8[R].

    Return the first row (int64) with a piece code above 12, or -1.
    """
    a, b, c, d = boards
    for row in range(U(len(out_RW))):
        if d[row] & c[row] & (b[row] | a[row]) != EMPTY:
            return np.int64(row)
        out_RW[row, 0], out_RW[row, 1], out_RW[row, 2], out_RW[row, 3] = a[row], b[row], c[row], d[row]
        out_RW[row, 4] = U(black_R[row]) | U(castling_R[row]) << U(8) | U(ep_file_R[row]) << U(16)
    return np.int64(-1)


@njit(**BORROWING)
def _unpack_one(packed_W: Any, position: Any) -> None:
    """Unpack one packed position to a position, uint64[16]; its counters are left as they are."""
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
    state = packed_W[4]
    position[TURN] = ALL if state & U(1) else EMPTY
    rights = state >> U(8)
    position[CASTLING] = (
        (rights & U(1)) << U(63)
        | ((rights >> U(1)) & U(1)) << U(56)
        | ((rights >> U(2)) & U(1)) << U(7)
        | ((rights >> U(3)) & U(1))
    )
    file = (state >> U(16)) & U(255)
    position[EN_PASSANT] = U(1) << (U(16) + file) if file < U(8) else EMPTY


@njit(**BORROWING)
def unpack_positions(packed_RW: Any, labels_R: Any, position: Any, out_RP: Any) -> Any:
    """Write the planes, uint64[R, 77], of packed positions. `position` is scratch space, uint64[16].

    Return the first invalid row (int64) and what is wrong with it, or (-1, VALID); rows from there on are not written.
    Labels (uint16), unless the array is empty, must be legal moves.
    """
    for row in range(len(packed_RW)):
        _unpack_one(packed_RW[row], position)
        if popcount(position[KING]) != ONE or popcount(position[KING + 1]) != ONE:
            return np.int64(row), NO_KINGS
        planes = out_RP[row]
        legal_planes(position, planes)
        moves = U(0)
        for index in range(MOVE_PLANES, MOVE_PLANES + TYPES):
            moves += popcount(planes[index])
        if moves > U(MAX_MOVES):
            return np.int64(row), MANY_MOVES
        if len(labels_R):
            label = U(labels_R[row])
            if label >= U(64 * TYPES) or (planes[U(MOVE_PLANES) + (label >> U(6))] >> (label & U(63))) & ONE == EMPTY:
                return np.int64(row), ILLEGAL_LABEL
    return np.int64(-1), VALID


@njit(**BORROWING)
def unpack_to_positions(packed_RW: Any, positions_RW: Any) -> None:
    """Unpack positions to uint64[R, 16], with counters 0."""
    for row in range(len(packed_RW)):
        _unpack_one(packed_RW[row], positions_RW[row])
