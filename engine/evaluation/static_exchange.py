"""Static exchange evaluation (SEE): the gain of a capture sequence on one square.

The sides take turns, and each captures with its least valuable piece. Pins are ignored, and pawns
do not promote inside an exchange. A *board* is words 0..11 of a position.
"""

from typing import Any

import numpy as np
from numba import njit

from engine.board.bitboard import EMPTY, U, bit, king_attacks, knight_attacks
from engine.board.movegen import pawn_attacks_down, pawn_attacks_up, sliders_to
from engine.board.position import BISHOP, KING, KNIGHT, PAWN, QUEEN, ROOK
from engine.kernels import BORROWING

WORTH = np.array([100, 100, 320, 320, 330, 330, 500, 500, 950, 950, 0, 0], dtype=np.int64)
"""Exchange value of the piece of each word, centipawns; a king is never captured."""
MAX_EXCHANGE = 32
"""Maximum number of captures on one square: the length of the scratch array."""


@njit(**BORROWING)
def attackers(board: Any, square: Any, occupied: Any) -> Any:
    """Return both sides' pieces that attack bit index `square` (uint64), uint64."""
    target = bit(square)
    found = pawn_attacks_down(target) & board[PAWN]
    found |= pawn_attacks_up(target) & board[PAWN + 1]
    found |= knight_attacks(target) & (board[KNIGHT] | board[KNIGHT + 1])
    found |= king_attacks(target) & (board[KING] | board[KING + 1])
    queens = board[QUEEN] | board[QUEEN + 1]
    straight, diagonal = board[ROOK] | board[ROOK + 1], board[BISHOP] | board[BISHOP + 1]
    return (found | sliders_to(target, occupied, straight | queens, diagonal | queens)) & occupied


@njit(**BORROWING, inline="always")
def _least_valuable(board: Any, reach: Any, side: Any) -> Any:
    """Return the word (without the side) of the least valuable piece in `reach`; -1 for none."""
    for word in range(0, 12, 2):
        if reach & board[word + side] != EMPTY:
            return word
    return -1


@njit(**BORROWING)
def see(board: Any, square: Any, victim: Any, side: Any, occupied: Any, gains: Any) -> Any:
    """Return the gain of `side` by capturing first on a square, int64 centipawns, 0 or more.

    `victim` is the value of the piece there; `gains` is scratch, int64[MAX_EXCHANGE].
    """
    reach = attackers(board, square, occupied)
    queens = board[QUEEN] | board[QUEEN + 1]
    straight = board[ROOK] | board[ROOK + 1] | queens
    diagonal = board[BISHOP] | board[BISHOP + 1] | queens
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
        if word not in (KNIGHT, KING):  # it may have stood in front of a slider
            reach |= sliders_to(bit(square), occupied, straight, diagonal)
        reach &= occupied
        side ^= 1
    while depth > 1:
        depth -= 1
        gains[depth - 1] = min(gains[depth - 1], -gains[depth])
    return max(gains[0], np.int64(0)) if depth else np.int64(0)
