"""Encode the pieces of a position in four words: bit k of word n is bit n of square k's code.

The code of a square is the number of its plane (0..11) plus one, or 0 if the square is empty.
"""

from typing import Any

from numba import njit

from engine.kernels import NO_REFCOUNT

CODE_BITS = 4
"""Number of bits of a square's code, and of words that hold the pieces."""


@njit(**NO_REFCOUNT, inline="always")
def piece_codes(board: Any) -> Any:
    """Return the four words (uint64) that encode the pieces of a position or of planes.

    Both begin with the twelve bitboards of the pieces.
    """
    p1, p2, p3, p4, p5, p6 = board[0], board[1], board[2], board[3], board[4], board[5]
    p7, p8, p9, p10, p11, p12 = board[6], board[7], board[8], board[9], board[10], board[11]
    return (
        p1 | p3 | p5 | p7 | p9 | p11,
        p2 | p3 | p6 | p7 | p10 | p11,
        p4 | p5 | p6 | p7 | p12,
        p8 | p9 | p10 | p11 | p12,
    )
