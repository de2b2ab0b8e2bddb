"""Static exchange evaluation (SEE): the gain on a square if both sides capture with their least valuable piece.

A *board* here is twelve uint64 words in the mover's view, as words 0..11 of a position or of planes. Pins are ignored, and
pawns do not promote inside an exchange.
"""

from typing import Any

import numpy as np
from numba import njit

from engine.board.bitboard import EMPTY, U, bit, king_attacks, knight_attacks
from engine.board.movegen import pawns_down, pawns_up
from engine.board.movers import sliders_to
from engine.board.position import BISHOP, KING, KNIGHT, PAWN, QUEEN, ROOK
from engine.kernels import BORROWING

WORTH = np.array([100, 100, 320, 320, 330, 330, 500, 500, 950, 950, 0, 0], dtype=np.int64)
"""Centipawns of the piece of each word in an exchange; a king is never won."""
MAX_EXCHANGE = 32
"""Most captures on one square: the length of the scratch array."""


@njit(**BORROWING)
def attackers(board: Any, square: Any, occupied: Any) -> Any:
    """Return the pieces of both sides that attack bit index `square` (uint64) when the board holds `occupied`, uint64."""
    target = bit(square)
    queens = board[QUEEN] | board[QUEEN + 1]
    straight, diagonal = board[ROOK] | board[ROOK + 1] | queens, board[BISHOP] | board[BISHOP + 1] | queens
    found = (pawns_down(target) & board[PAWN]) | (pawns_up(target) & board[PAWN + 1])
    found |= knight_attacks(target) & (board[KNIGHT] | board[KNIGHT + 1])
    found |= king_attacks(target) & (board[KING] | board[KING + 1])
    return (found | sliders_to(target, occupied, straight, diagonal)) & occupied


@njit(**BORROWING, inline="always")
def _least_valuable(board: Any, reach: Any, side: Any) -> Any:
    """Return the word index (without the side) of the least valuable piece of `side` in `reach`; -1 for none."""
    for word in range(0, 12, 2):
        if reach & board[word + side] != EMPTY:
            return word
    return -1


@njit(**BORROWING)
def see(board: Any, square: Any, victim: Any, side: Any, occupied: Any, gains: Any) -> Any:
    """Return the centipawns (int64, >= 0) that `side` (0 mover, 1 opponent) wins by capturing first on `square` (SEE).

    `victim` is the worth of the piece there; `gains` is scratch, int64[MAX_EXCHANGE].
    """
    reach = attackers(board, square, occupied)
    queens = board[QUEEN] | board[QUEEN + 1]
    straight, diagonal = board[ROOK] | board[ROOK + 1] | queens, board[BISHOP] | board[BISHOP + 1] | queens
    depth = 0
    standing = np.int64(victim)
    while depth < MAX_EXCHANGE:
        word = _least_valuable(board, reach, side)
        if word < 0 or (word == KING and _least_valuable(board, reach, side ^ 1) >= 0):
            break  # no capture left, or the king would step into an attack
        gains[depth] = standing - (gains[depth - 1] if depth else np.int64(0))
        standing = WORTH[word]
        depth += 1
        mine = reach & board[word + side]
        occupied ^= mine & (~mine + U(1))
        if word not in (KNIGHT, KING):  # a slider behind it may see the square now
            reach |= sliders_to(bit(square), occupied, straight, diagonal)
        reach &= occupied
        side ^= 1
    while depth > 1:
        depth -= 1
        gains[depth - 1] = min(gains[depth - 1], -gains[depth])
    return max(gains[0], np.int64(0)) if depth else np.int64(0)
