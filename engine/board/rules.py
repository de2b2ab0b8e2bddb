"""Detect the end of a game by the rules; insufficient material follows python-chess."""

from typing import Any

from numba import njit

from engine.board.bitboard import EMPTY, U, popcount
from engine.board.movegen import has_no_legal_move
from engine.board.position import BISHOP, COUNTERS, HALFMOVE_MASK, KNIGHT, PAWN, QUEEN, ROOK
from engine.kernels import NO_REFCOUNT

ONGOING = -1
MATE, STALEMATE, INSUFFICIENT_MATERIAL, REPETITION, FIFTY_MOVES = range(5)
"""How a game ends by the rules; REPETITION is the third occurrence of a position."""

ENDINGS = {
    MATE: "checkmate",
    STALEMATE: "stalemate",
    INSUFFICIENT_MATERIAL: "material",
    REPETITION: "repetition",
    FIFTY_MOVES: "fifty moves",
}
"""Names of the endings in game records."""

FIFTY_MOVES_PLIES = 100
"""Half-moves without a capture or pawn move after which a game is drawn. The draw is automatic
here; under the rules of chess, a player has to claim it."""

_LIGHT_SQUARES = U(0xAA55_AA55_AA55_AA55)


@njit(**NO_REFCOUNT)
def has_insufficient_material(position: Any) -> Any:
    """Return whether neither side can mate: bare kings, one minor piece, or same-color bishops."""
    bishops = position[BISHOP] | position[BISHOP + 1]
    knights = position[KNIGHT] | position[KNIGHT + 1]
    for word in (PAWN, ROOK, QUEEN):
        if position[word] | position[word + 1] != EMPTY:
            return False
    if knights != EMPTY:
        return popcount(knights | bishops) == U(1)
    return bishops & _LIGHT_SQUARES == EMPTY or bishops & ~_LIGHT_SQUARES == EMPTY


@njit(**NO_REFCOUNT)
def find_ending(position: Any, planes: Any, checkers: Any) -> Any:
    """Return how the game has ended in a position (uint64[16]), or ONGOING.

    `planes` (uint64[77]) and `checkers` are the results of `legal_planes`. If several rules apply,
    the first counts, in the order of python-chess: mate or stalemate, insufficient material, fifty
    moves, then repetition. The caller checks repetition, which needs the game's history.
    """
    if has_no_legal_move(planes):
        return MATE if checkers > 0 else STALEMATE
    if has_insufficient_material(position):
        return INSUFFICIENT_MATERIAL
    if position[COUNTERS] & HALFMOVE_MASK >= U(FIFTY_MOVES_PLIES):
        return FIFTY_MOVES
    return ONGOING
