"""Compute attack planes: the squares that each side's pieces of a kind attack.

A convolutional network needs several layers to follow a line across the board; an attack plane
shows it at once. Attack planes are computed from the piece planes of each batch, and not stored.

Axes: B rows, P planes.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from engine.board.bitboard import EMPTY
from engine.board.movegen import attacked_by, pawn_attacks_down, pawn_attacks_up
from engine.board.position import PAWN, TURN, WORDS, occupied_squares
from engine.encoding.planes import PIECE_PLANES, check_planes
from engine.kernels import NO_REFCOUNT


@njit(**NO_REFCOUNT)
def _write_attacks(planes_BP: Any, one_kind: Any, attacks_BP: Any) -> None:
    """Write the attacks of all rows; `one_kind` is scratch, uint64[16], all zeros."""
    for row in range(len(planes_BP)):
        occupied = occupied_squares(planes_BP[row])
        attacks_BP[row, PAWN] = pawn_attacks_up(planes_BP[row, PAWN])
        attacks_BP[row, PAWN + 1] = pawn_attacks_down(planes_BP[row, PAWN + 1])
        for word in range(PAWN + 2, TURN):
            one_kind[word] = planes_BP[row, word]
            attacks_BP[row, word] = attacked_by(one_kind, word % 2, EMPTY, occupied)
            one_kind[word] = EMPTY


def attack_planes(planes_BP: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the squares attacked by the pieces of each piece plane, uint64[B, 12].

    Attacked squares may be occupied, and pins are ignored. Raises PlanesError for invalid planes.
    """
    planes_BP = check_planes(planes_BP)
    attacks_BP = np.empty((len(planes_BP), PIECE_PLANES), dtype=np.uint64)
    _write_attacks(planes_BP, np.zeros(WORDS, dtype=np.uint64), attacks_BP)
    return attacks_BP
