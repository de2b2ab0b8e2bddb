"""Planes to columns and back, compiled; apart from what reads and writes files, so that an edit there compiles nothing.

`join_streams` is of format version 2; the others are what version 3 is written and read by.

Axes: R rows, P planes, S streams of bytes, C words of a stream (eight rows each) or columns, W words of a row.
"""

from typing import Any

import numpy as np
from numba import njit

from engine.board.bitboard import ALL, EMPTY, ONE, U, popcount
from engine.board.movegen import MOVE_PLANES, TYPES, legal_planes
from engine.board.piece_codes import CODE_BITS, piece_codes
from engine.board.position import CASTLING, EN_PASSANT, KING, MAX_MOVES, TURN, WORDS
from engine.kernels import BORROWING

ROWS_OF_WORD = 8
"""Rows whose bytes of one stream are one word."""
TILE_WORDS = 8
"""Words of each stream that are brought together at a time: a cache line of each, and 64 rows, 39 kB, to write them to."""

_BYTES, _PAIRS, _FOURS = U(0x00FF00FF00FF00FF), U(0x0000FFFF0000FFFF), U(0x00000000FFFFFFFF)


@njit(**BORROWING, inline="always")
def _swapped(one: Any, other: Any, by: Any, mask: Any) -> Any:
    """Swap the upper parts of `one` with the lower ones of `other` (Hacker's Delight, 7-3)."""
    crossed = ((one >> by) ^ other) & mask
    return one ^ (crossed << by), other ^ crossed


@njit(**BORROWING)
def join_streams(streams_SC: Any, out_RP: Any) -> None:
    """Bring the bytes of a page's streams, uint64[8 * P, C], together as rows: `out_RP`, uint64[8 * C, P]."""
    for first in range(0, streams_SC.shape[1], TILE_WORDS):
        last = min(first + TILE_WORDS, streams_SC.shape[1])
        for plane in range(out_RP.shape[1]):
            for word in range(first, last):
                a, b = streams_SC[8 * plane, word], streams_SC[8 * plane + 1, word]
                c, d = streams_SC[8 * plane + 2, word], streams_SC[8 * plane + 3, word]
                e, f = streams_SC[8 * plane + 4, word], streams_SC[8 * plane + 5, word]
                g, h = streams_SC[8 * plane + 6, word], streams_SC[8 * plane + 7, word]
                a, b = _swapped(a, b, U(8), _BYTES)
                c, d = _swapped(c, d, U(8), _BYTES)
                e, f = _swapped(e, f, U(8), _BYTES)
                g, h = _swapped(g, h, U(8), _BYTES)
                a, c = _swapped(a, c, U(16), _PAIRS)
                b, d = _swapped(b, d, U(16), _PAIRS)
                e, g = _swapped(e, g, U(16), _PAIRS)
                f, h = _swapped(f, h, U(16), _PAIRS)
                a, e = _swapped(a, e, U(32), _FOURS)
                b, f = _swapped(b, f, U(32), _FOURS)
                c, g = _swapped(c, g, U(32), _FOURS)
                d, h = _swapped(d, h, U(32), _FOURS)
                row = ROWS_OF_WORD * word
                out_RP[row, plane], out_RP[row + 1, plane] = a, b
                out_RP[row + 2, plane], out_RP[row + 3, plane] = c, d
                out_RP[row + 4, plane], out_RP[row + 5, plane] = e, f
                out_RP[row + 6, plane], out_RP[row + 7, plane] = g, h


# ---------------------------------------------------------------- planes as columns

PIECES, WIDTHS = 13, (8, 8, 8, 8, 24, 8)
"""Planes that are a column each, and the planes of the columns of moves. The loops below have the numbers written out: with
widths that are known when they are compiled they take a sixth of the time (docs/log.md)."""
_ROW = PIECES + sum(WIDTHS)
assert _ROW == MOVE_PLANES + TYPES


@njit(**BORROWING)
def split_planes(rows_RP: Any, pieces_CR: Any, groups: Any) -> None:
    """Copy rows of planes, uint64[R, 77], to columns: planes 0..12 to `pieces_CR`, uint64[13, R].

    The move planes go to `groups`, a tuple of uint64[R, W] with the W of WIDTHS. All arrays are contiguous.
    """
    words = rows_RP.reshape(-1)
    a, b, c, d, e, f = groups
    a, b, c, d, e, f = a.reshape(-1), b.reshape(-1), c.reshape(-1), d.reshape(-1), e.reshape(-1), f.reshape(-1)
    for row in range(len(rows_RP)):
        at, narrow, wide = row * _ROW, 8 * row, 24 * row
        for plane in range(PIECES):
            pieces_CR[plane, row] = words[at + plane]
        for plane in range(8):
            a[narrow + plane] = words[at + 13 + plane]
        for plane in range(8):
            b[narrow + plane] = words[at + 21 + plane]
        for plane in range(8):
            c[narrow + plane] = words[at + 29 + plane]
        for plane in range(8):
            d[narrow + plane] = words[at + 37 + plane]
        for plane in range(24):
            e[wide + plane] = words[at + 45 + plane]
        for plane in range(8):
            f[narrow + plane] = words[at + 69 + plane]


@njit(**BORROWING)
def join_planes(pieces_CR: Any, groups: Any, out_RP: Any) -> None:
    """Write the planes, contiguous uint64[R, 77], of columns as `split_planes` makes them."""
    words = out_RP.reshape(-1)
    a, b, c, d, e, f = groups
    a, b, c, d, e, f = a.reshape(-1), b.reshape(-1), c.reshape(-1), d.reshape(-1), e.reshape(-1), f.reshape(-1)
    for row in range(len(out_RP)):
        at, narrow, wide = row * _ROW, 8 * row, 24 * row
        for plane in range(PIECES):
            words[at + plane] = pieces_CR[plane, row]
        for plane in range(8):
            words[at + 13 + plane] = a[narrow + plane]
        for plane in range(8):
            words[at + 21 + plane] = b[narrow + plane]
        for plane in range(8):
            words[at + 29 + plane] = c[narrow + plane]
        for plane in range(8):
            words[at + 37 + plane] = d[narrow + plane]
        for plane in range(24):
            words[at + 45 + plane] = e[wide + plane]
        for plane in range(8):
            words[at + 69 + plane] = f[narrow + plane]


# ---------------------------------------------------------------- positions

BOARDS = CODE_BITS
"""Words of a packed position that hold its pieces (engine.board.piece_codes)."""
PACKED = BOARDS + 1
"""Words of a packed position; the last is turn (1: Black is to move) | castling << 8 | en-passant file << 16."""

WELL, NO_KINGS, MANY_MOVES, ILLEGAL_LABEL = range(4)
"""What may be wrong with a packed position."""


@njit(**BORROWING)
def pack_positions(rows_RP: Any, castling_R: Any, ep_file_R: Any, out_RW: Any) -> None:
    """Pack rows of planes, with their castling rights and en-passant files (uint8[R]), to `out_RW`, uint64[R, PACKED]."""
    for row in range(len(rows_RP)):
        planes = rows_RP[row]
        out_RW[row, 0], out_RW[row, 1], out_RW[row, 2], out_RW[row, 3] = piece_codes(planes)
        out_RW[row, 4] = planes[TURN] & U(1) | U(castling_R[row]) << U(8) | U(ep_file_R[row]) << U(16)


@njit(**BORROWING)
def pack_columns(boards: Any, black_R: Any, castling_R: Any, ep_file_R: Any, out_RW: Any) -> Any:
    """Pack the columns of a compact shard to `out_RW`: four uint64[R]; turn (0 or 1), castling and en-passant file, uint8[R].

    Returns the first row (int64) that has a piece code beyond 12; -1 for none.
    """
    a, b, c, d = boards
    for row in range(U(len(out_RW))):
        if d[row] & c[row] & (b[row] | a[row]) != EMPTY:
            return np.int64(row)
        out_RW[row, 0], out_RW[row, 1], out_RW[row, 2], out_RW[row, 3] = a[row], b[row], c[row], d[row]
        out_RW[row, 4] = U(black_R[row]) | U(castling_R[row]) << U(8) | U(ep_file_R[row]) << U(16)
    return np.int64(-1)


@njit(**BORROWING)
def _set_up(packed_W: Any, position: Any) -> None:
    """Write the words of a position (uint64[16], counters left as they are) that a packed one stands for."""
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
    """Write the planes uint64[R, 77] of packed positions: all bits that ingest would store. `position` is scratch, uint64[16].

    Returns the first row (int64) that no row of a shard is, and why; (-1, WELL) for none. Labels (uint16) are held against the
    legal moves, where there are any. Rows from that one on are not written.
    """
    for row in range(len(packed_RW)):
        _set_up(packed_RW[row], position)
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
    return np.int64(-1), WELL


TILE_ROWS = 64
"""Rows whose planes are made before they are split: 39 kB, which a processor's nearest memory holds."""


@njit(cache=True, nogil=True)
def split_positions(packed_RW: Any, pieces_CR: Any, groups: Any) -> None:
    """Write the planes of packed positions, all of them well, to columns as `split_planes` does."""
    scratch = np.empty((TILE_ROWS, _ROW), dtype=np.uint64)
    none, position = np.empty(0, dtype=np.uint16), np.zeros(WORDS, dtype=np.uint64)
    a, b, c, d, e, f = groups
    for first in range(0, len(packed_RW), TILE_ROWS):
        last = min(first + TILE_ROWS, len(packed_RW))
        unpack_positions(packed_RW[first:last], none, position, scratch)
        tile = a[first:last], b[first:last], c[first:last], d[first:last], e[first:last], f[first:last]
        split_planes(scratch[: last - first], pieces_CR[:, first:last], tile)


@njit(**BORROWING)
def set_up_positions(packed_RW: Any, positions_RW: Any) -> None:
    """Write the positions (uint64[R, 16], counters 0) of packed ones."""
    for row in range(len(packed_RW)):
        _set_up(packed_RW[row], positions_RW[row])
