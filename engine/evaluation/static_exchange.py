"""Static exchange evaluation (SEE): the gain of a capture sequence on one square.

The sides take turns, and each captures with its least valuable piece. Pins are ignored, and pawns
do not promote during an exchange. A *board* is words 0..11 of a position.

Attacks along files and diagonals are computed by subtraction, o ^ (o - 2r) for the occupied squares
o and the slider r: first downwards, then upwards on the board mirrored top to bottom ("hyperbola
quintessence", Aleks Peshkov). Attacks along ranks are looked up in a table.
"""

from typing import Any

import numpy as np
from numba import njit

from engine.board.bitboard import (
    EMPTY,
    NOT_FILE_A,
    NOT_FILE_H,
    U,
    bit,
    flip,
    king_attacks,
    knight_attacks,
)
from engine.board.position import BISHOP, KING, KNIGHT, PAWN, QUEEN, ROOK
from engine.kernels import NO_REFCOUNT

EXCHANGE_VALUES = np.array([100, 100, 320, 320, 330, 330, 500, 500, 950, 950, 0, 0], dtype=np.int64)
"""Value of the piece of each word in an exchange, in centipawns; a king is never captured."""
MAX_EXCHANGE = 32
"""Maximum number of captures on one square: the length of scratch arrays."""


def _make_line_masks(file: int, rank: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]]:
    """Return, for each square, the other squares of its line along +-(file, rank), uint64[64]."""
    boards = [0] * 64
    for square in range(64):
        for sign in (1, -1):
            row, col = square // 8 - sign * rank, square % 8 + sign * file
            while 0 <= row < 8 and 0 <= col < 8:
                boards[square] |= 1 << (8 * row + col)
                row, col = row - sign * rank, col + sign * file
    return np.array(boards, dtype=np.uint64)


def _make_rank_attacks() -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]]:
    """Return the attacks along row 0, uint64[8, 64], by column and occupied inner squares."""
    table = np.zeros((8, 64), dtype=np.uint64)
    for col in range(8):
        for inner in range(64):
            attacks = 0
            for step in (1, -1):
                reached = col + step
                while 0 <= reached < 8:
                    attacks |= 1 << reached
                    if (inner << 1) >> reached & 1:
                        break
                    reached += step
            table[col, inner] = attacks
    return table


_FILE_MASKS = _make_line_masks(0, 1)
_RISING_MASKS = _make_line_masks(1, 1)
_FALLING_MASKS = _make_line_masks(1, -1)
_RANK_ATTACKS = _make_rank_attacks()


@njit(**NO_REFCOUNT, inline="always")
def _line_attacks(start: Any, line: Any, occupied: Any) -> Any:
    """Return the attacks from `start` along a line that is not a rank, in both directions."""
    blockers = occupied & line
    up = blockers - (start << U(1))
    down = flip(flip(blockers) - (flip(start) << U(1)))
    return (up ^ down) & line


@njit(**NO_REFCOUNT)
def straight_attacks(square: Any, occupied: Any) -> Any:
    """Return the squares a rook on bit index `square` (uint64) attacks, uint64."""
    row = square & U(56)
    inner = (occupied >> (row + U(1))) & U(63)
    return _line_attacks(bit(square), _FILE_MASKS[square], occupied) | (
        _RANK_ATTACKS[square & U(7), inner] << row
    )


@njit(**NO_REFCOUNT)
def diagonal_attacks(square: Any, occupied: Any) -> Any:
    """Return the squares a bishop on bit index `square` (uint64) attacks, uint64."""
    start = bit(square)
    return _line_attacks(start, _RISING_MASKS[square], occupied) | _line_attacks(
        start, _FALLING_MASKS[square], occupied
    )


@njit(**NO_REFCOUNT)
def attackers(board: Any, square: Any, occupied: Any) -> Any:
    """Return the pieces of both sides that attack bit index `square` (uint64), uint64."""
    target = bit(square)
    east, west = target & NOT_FILE_A, target & NOT_FILE_H
    pieces = ((east << U(7)) | (west << U(9))) & board[PAWN]
    pieces |= ((east >> U(9)) | (west >> U(7))) & board[PAWN + 1]
    pieces |= knight_attacks(target) & (board[KNIGHT] | board[KNIGHT + 1])
    pieces |= king_attacks(target) & (board[KING] | board[KING + 1])
    queens = board[QUEEN] | board[QUEEN + 1]
    pieces |= diagonal_attacks(square, occupied) & (board[BISHOP] | board[BISHOP + 1] | queens)
    pieces |= straight_attacks(square, occupied) & (board[ROOK] | board[ROOK + 1] | queens)
    return pieces & occupied


@njit(**NO_REFCOUNT, inline="always")
def _least_valuable(board: Any, reach: Any, side: Any) -> Any:
    """Return the mover's word of the least valuable kind of `side` in `reach`; -1 for none."""
    for word in range(0, 12, 2):
        if reach & board[word + side] != EMPTY:
            return word
    return -1


@njit(**NO_REFCOUNT)
def see(board: Any, square: Any, victim: Any, side: Any, occupied: Any, gains: Any) -> Any:
    """Return the gain of `side` if it begins an exchange on a square, int64 centipawns, 0 or more.

    `square` is a bit index (uint64), and `victim` the value of the piece there. `gains` is scratch
    memory, int64[MAX_EXCHANGE].
    """
    reach = attackers(board, square, occupied)
    queens = board[QUEEN] | board[QUEEN + 1]
    diagonal = board[BISHOP] | board[BISHOP + 1] | queens
    straight = board[ROOK] | board[ROOK + 1] | queens
    depth = 0
    standing = np.int64(victim)
    while depth < MAX_EXCHANGE:
        word = _least_valuable(board, reach, side)
        if word < 0 or (word == KING and _least_valuable(board, reach, side ^ 1) >= 0):
            break  # no capture left, or the king would step into an attack
        gains[depth] = standing - (gains[depth - 1] if depth else np.int64(0))
        standing = EXCHANGE_VALUES[word]
        depth += 1
        mine = reach & board[word + side]
        occupied ^= mine & (~mine + U(1))
        if word in (PAWN, BISHOP, QUEEN):
            reach |= diagonal_attacks(square, occupied) & diagonal
        if word in (ROOK, QUEEN):
            reach |= straight_attacks(square, occupied) & straight
        reach &= occupied
        side ^= 1
    while depth > 1:
        depth -= 1
        gains[depth - 1] = min(gains[depth - 1], -gains[depth])
    return max(gains[0], np.int64(0)) if depth else np.int64(0)
