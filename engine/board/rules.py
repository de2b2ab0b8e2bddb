"""How the rules of chess end a game; python-chess's `is_insufficient_material` is the oracle of what cannot be won."""

from typing import Any

from numba import njit

from engine.board.bitboard import EMPTY, U, popcount
from engine.board.position import BISHOP, KNIGHT, PAWN, QUEEN, ROOK

GOES_ON = -1
MATE, STALEMATE, MATERIAL, REPETITION, FIFTY = range(5)
"""How the rules end a game: the side to move is mated; it cannot move; nobody can mate; third occurrence; fifty moves."""

FIFTY_MOVES = 100
"""Half-moves without capture or pawn move after which a game is drawn (the players may claim it; ours always do)."""

_LIGHT = U(0xAA55_AA55_AA55_AA55)


@njit(cache=True, nogil=True)
def insufficient(position: Any) -> Any:
    """Tell whether neither side can mate: bare kings, one minor piece, or bishops on squares of one colour only."""
    bishops = position[BISHOP] | position[BISHOP + 1]
    knights = position[KNIGHT] | position[KNIGHT + 1]
    for word in (PAWN, ROOK, QUEEN):
        if position[word] | position[word + 1] != EMPTY:
            return False
    if knights != EMPTY:
        return popcount(knights | bishops) == U(1)
    return bishops & _LIGHT == EMPTY or bishops & ~_LIGHT == EMPTY
