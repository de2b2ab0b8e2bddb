"""Detect the end of a game by the rules; insufficient material follows python-chess."""

from typing import Any

from numba import njit

from engine.board.bitboard import EMPTY, U, popcount
from engine.board.movegen import has_no_moves
from engine.board.position import BISHOP, COUNTERS, HALFMOVE_MASK, KNIGHT, PAWN, QUEEN, ROOK
from engine.kernels import BORROWING

ONGOING = -1
MATE, STALEMATE, MATERIAL, REPETITION, FIFTY = range(5)
"""Mate, no legal move, insufficient material for either side, third occurrence, fifty moves."""

ENDINGS = {
    MATE: "checkmate",
    STALEMATE: "stalemate",
    MATERIAL: "material",
    REPETITION: "repetition",
    FIFTY: "fifty moves",
}
"""Names of these endings in game records."""

FIFTY_MOVES = 100
"""Half-moves without a capture or pawn move after which a game is drawn. Here the draw is
automatic; under the rules a player has to claim it."""

_LIGHT = U(0xAA55_AA55_AA55_AA55)


@njit(**BORROWING)
def has_insufficient_material(position: Any) -> Any:
    """Return whether neither side can mate: bare kings, one minor piece, or same-color bishops."""
    bishops = position[BISHOP] | position[BISHOP + 1]
    knights = position[KNIGHT] | position[KNIGHT + 1]
    for word in (PAWN, ROOK, QUEEN):
        if position[word] | position[word + 1] != EMPTY:
            return False
    if knights != EMPTY:
        return popcount(knights | bishops) == U(1)
    return bishops & _LIGHT == EMPTY or bishops & ~_LIGHT == EMPTY


@njit(**BORROWING)
def ending_of_position(position: Any, planes: Any, checkers: Any) -> Any:
    """Return how the game has ended in a position (uint64[16]), or ONGOING.

    The caller checks repetition, which needs the game's history. `planes` (uint64[77]) and
    `checkers` are the results of `legal_planes`. If several rules apply, the order is that of
    python-chess: mate or stalemate, material, fifty moves, then repetition.
    """
    if has_no_moves(planes):
        return MATE if checkers > 0 else STALEMATE
    if has_insufficient_material(position):
        return MATERIAL
    if position[COUNTERS] & HALFMOVE_MASK >= U(FIFTY_MOVES):
        return FIFTY
    return ONGOING
