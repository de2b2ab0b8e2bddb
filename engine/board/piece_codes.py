"""Encode the pieces of a position in four words: word n holds bit n of each square's code.

Codes are 1 to 12 in the order of planes 0..11, and 0 for an empty square.
"""

from typing import Any

from numba import njit

from engine.kernels import BORROWING

CODE_BITS = 4
"""Number of words that hold the pieces."""


@njit(**BORROWING, inline="always")
def piece_codes(board: Any) -> Any:
    """Return the four words (uint64) that encode twelve piece bitboards.

    `board` is a position or planes, which begin with these bitboards.
    """
    p1, p2, p3, p4, p5, p6 = board[0], board[1], board[2], board[3], board[4], board[5]
    p7, p8, p9, p10, p11, p12 = board[6], board[7], board[8], board[9], board[10], board[11]
    return (
        p1 | p3 | p5 | p7 | p9 | p11,
        p2 | p3 | p6 | p7 | p10 | p11,
        p4 | p5 | p6 | p7 | p12,
        p8 | p9 | p10 | p11 | p12,
    )
