"""Parse FENs in compiled code, as `engine.board.position.from_fen` does, for millions of rows.

This parser accepts only FENs as programs write them: four or six fields, separated by one space.
For text that a person typed, use `from_fen`, which is more lenient and explains errors. A test
compares the two.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from engine.board.bitboard import EMPTY, FILE_A, ONE, RANK_1, RANK_8, U, bit, popcount
from engine.board.movegen import attacked_by, pawn_attacks_up
from engine.board.position import (
    CASTLING,
    COUNTERS,
    EN_PASSANT,
    KING,
    MOVER,
    PAWN,
    ROOK,
    WORDS,
    mirror,
    occupied_squares,
)
from engine.kernels import BORROWING

VALID, MALFORMED, UNPLAYABLE, CHESS960 = range(4)
"""Results of `read_fen`. CHESS960: the castling rights exist only in Chess960."""

_SPACE, _DIGIT_0, _DASH = 32, 48, 45
_FILE_E = FILE_A << U(4)
_ENDS = FILE_A | FILE_A << U(7)

_DIGIT, _SLASH = 1 << 4, -1 << 16
"""Flags of a digit and a slash in _BOARD_CHARS; a slash sets all bits from 16 on."""


def _board_chars() -> NDArray[np.int64]:
    """Return a table of the characters of a FEN's board field, int64[256].

    Bits 0 to 3: the word in which the character sets a square; COUNTERS, which is overwritten
    later, unless it is a piece. Bits 8 to 15: the number of squares, 255 if the character is
    invalid. The other bits are flags.
    """
    table = np.full(256, 255 << 8 | COUNTERS, dtype=np.int64)
    for word, letter in enumerate("PpNnBbRrQqKk"):
        table[ord(letter)] = 1 << 8 | word
    for digit in range(1, 9):
        table[_DIGIT_0 + digit] = digit << 8 | _DIGIT | COUNTERS
    table[ord("/")] = _SLASH | COUNTERS
    return table


_BOARD_CHARS = _board_chars()


@njit(**BORROWING)
def _read_board(text: Any, at: Any, end: Any, position: Any) -> Any:
    """Read the board field; return the index after it, or -1 if it is malformed.

    No branch depends on a character: the processor would mispredict one in three.
    """
    square, row_end, before, wrong, left = 0, 8, 0, 0, 0
    while at < end:
        byte = text[U(at)]  # a signed index would cost a comparison with zero
        if byte == _SPACE:
            break
        char = _BOARD_CHARS[byte]
        is_slash = char >> 16  # all ones or zero
        position[U(char & 15)] |= bit(square & 63)
        wrong |= (is_slash & (square ^ row_end)) | (char & before & _DIGIT)
        square += (char >> 8) & 255
        row_end += is_slash & 8
        left |= row_end - square
        before = char
        at += 1
    return at if wrong == 0 and left >= 0 and square == 64 and row_end == 64 else -1


@njit(**BORROWING)
def _find_rook(position: Any, side: Any, back: Any, char: Any) -> Any:
    """Return the rook on the rank `back` for a lower-case castling letter, or EMPTY."""
    king, rooks = position[KING + side] & back, position[ROOK + side] & back
    if popcount(king) != ONE:
        return EMPTY
    if char == 107:  # k: the outermost rook east of the king
        rooks &= ~(king | (king - ONE))
        rook = EMPTY
        while rooks != EMPTY:
            rook = rooks & ~(rooks - ONE)
            rooks ^= rook
        return rook
    if char == 113:  # q
        rooks &= king - ONE
        return rooks & ~(rooks - ONE)
    return rooks & (FILE_A << U(char - 97))


@njit(**BORROWING)
def _read_castling(text: Any, at: Any, end: Any, position: Any) -> Any:
    """Read the castling rights; return (index after them, VALID, MALFORMED or CHESS960)."""
    if at < end and text[at] == _DASH:
        return at + 1, VALID
    first, white, black, result = at, 0, 0, VALID
    while at < end and text[at] != _SPACE:
        char = int(text[at])
        side = 1 if char >= 97 else 0
        char |= 32
        if (
            not (97 <= char <= 104 or char == 107 or char == 113)
            or text[at] < 65
            or (side == 0 and black > 0)
        ):
            return at, MALFORMED
        white, black = white + 1 - side, black + side
        back = RANK_8 if side else RANK_1
        rook = _find_rook(position, side, back, char)
        if rook != EMPTY:
            if position[KING + side] & _FILE_E == EMPTY or rook & _ENDS == EMPTY:
                result = CHESS960
            position[CASTLING] |= rook
        at += 1
    return at, (result if at > first and white <= 2 and black <= 2 else MALFORMED)


@njit(**BORROWING)
def _read_en_passant(text: Any, at: Any, end: Any, black: Any, position: Any) -> Any:
    """Read the en-passant square; return the index after it, or -1 if it is malformed.

    A square that no double push can have left is ignored.
    """
    if at < end and text[at] == _DASH:
        return at + 1
    if at + 1 >= end or not 97 <= text[at] <= 104 or (text[at + 1] != 51 and text[at + 1] != 54):
        return -1
    file, sixth = U(text[at]) - U(97), text[at + 1] == 54
    if sixth != black:
        pawn, behind = (file + U(24), file + U(8)) if sixth else (file + U(32), file + U(48))
        target = file + U(16) if sixth else file + U(40)
        pushed = position[PAWN + 1] if sixth else position[PAWN]
        if (
            pushed & bit(pawn) != EMPTY
            and occupied_squares(position) & (bit(target) | bit(behind)) == EMPTY
        ):
            position[EN_PASSANT] = bit(target)
    return at + 2


@njit(**BORROWING)
def _read_counter(text: Any, at: Any, end: Any) -> Any:
    """Read a space and up to four digits; return (number, index after them or -1)."""
    if at >= end or text[at] != _SPACE:
        return 0, -1
    at += 1
    first, number = at, 0
    while at < end and at < first + 4 and 48 <= text[at] <= 57:
        number = number * 10 + int(text[at]) - _DIGIT_0
        at += 1
    return number, (at if at > first else -1)


@njit(**BORROWING)
def read_fen(text: Any, at: Any, end: Any, position: Any) -> Any:
    """Read a FEN into `position` (uint64[16]); return VALID or an error code.

    The FEN is `text[at:end]` (uint8). The number of legal moves is not checked (MAX_MOVES). Missing
    counters are read as halfmove clock 0 and move number 1.
    """
    for word in range(WORDS):
        position[word] = U(0)
    at = _read_board(text, at, end, position)
    if at < 0 or at + 2 >= end or text[at] != _SPACE or text[at + 2] != _SPACE:
        return MALFORMED
    black = text[at + 1] == 98
    if not black and text[at + 1] != 119:
        return MALFORMED
    at, rights = _read_castling(text, at + 3, end, position)
    if rights == MALFORMED or at >= end or text[at] != _SPACE:
        return MALFORMED
    at = _read_en_passant(text, at + 1, end, black, position)
    if at < 0:
        return MALFORMED
    halfmove, fullmove = 0, 1
    if at < end:
        halfmove, at = _read_counter(text, at, end)
        if at >= 0:
            fullmove, at = _read_counter(text, at, end)
        if at != end:
            return MALFORMED
    ply = min(2 * (max(fullmove, 1) - 1) + black, 0xFFFF)
    position[COUNTERS] = U(halfmove) | U(ply) << U(16)
    if black:
        mirror(position)
    return rights if _is_playable(position) else UNPLAYABLE


@njit(**BORROWING)
def _is_playable(position: Any) -> Any:
    """Return whether kings and pawns are valid and the opponent is not in check."""
    if popcount(position[KING]) != ONE or popcount(position[KING + 1]) != ONE:
        return False
    if (position[PAWN] | position[PAWN + 1]) & (RANK_1 | RANK_8) != EMPTY:
        return False
    pawns, occupied = pawn_attacks_up(position[PAWN]), occupied_squares(position)
    attacked = attacked_by(position, MOVER, pawns, occupied)
    return attacked & position[KING + 1] == EMPTY
