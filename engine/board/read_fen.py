"""Parse FENs in compiled code, as `engine.board.position.from_fen` does, for millions of rows.

This parser accepts FENs only as programs write them: four or six fields, separated by one space.
For text that a person typed, use `from_fen`, which is more lenient and explains errors. A test
compares the results of both.
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
from engine.kernels import NO_REFCOUNT

VALID, MALFORMED, UNPLAYABLE, CHESS960 = range(4)
"""Results of `read_fen`; CHESS960 means that the castling rights exist only in Chess960."""

_SPACE, _DASH, _DIGIT_0, _DIGIT_3, _DIGIT_6, _DIGIT_9 = (ord(char) for char in " -0369")
_UPPER_A, _LOWER_A, _LOWER_B, _LOWER_H = (ord(char) for char in "Aabh")
_LOWER_K, _LOWER_Q, _LOWER_W = (ord(char) for char in "kqw")
_LOWER_CASE = 32
"""Bit that turns an upper-case letter into lower case."""
_FILE_E = FILE_A << U(4)
_ROOK_FILES = FILE_A | FILE_A << U(7)
"""Files on which rooks start, except in Chess960."""

_DIGIT_FLAG, _SLASH_BITS = 1 << 4, -1 << 16
"""Marks of a digit and a slash in _BOARD_CHARS; a slash sets all bits from 16 on."""


def _make_board_chars() -> NDArray[np.int64]:
    """Return what each character of a FEN's board field means, int64[256].

    Bits 0 to 3 are the word of the position in which a piece's square is set. Characters that are
    not pieces set it in COUNTERS, which is overwritten later. Bits 8 to 15 are the number of
    squares, or 255 if the character is invalid. The other bits mark digits and slashes.
    """
    table = np.full(256, 255 << 8 | COUNTERS, dtype=np.int64)
    for word, letter in enumerate("PpNnBbRrQqKk"):
        table[ord(letter)] = 1 << 8 | word
    for digit in range(1, 9):
        table[_DIGIT_0 + digit] = digit << 8 | _DIGIT_FLAG | COUNTERS
    table[ord("/")] = _SLASH_BITS | COUNTERS
    return table


_BOARD_CHARS = _make_board_chars()


@njit(**NO_REFCOUNT)
def _read_board(text: Any, index: Any, end: Any, position: Any) -> Any:
    """Read the board field; return the index after it, or -1 if it is malformed.

    No branch depends on a character, because the processor would mispredict a third of them.
    """
    square, row_end, previous, wrong, left = 0, 8, 0, 0, 0
    while index < end:
        byte = text[U(index)]  # unsigned, because Numba would compare a signed one with 0
        if byte == _SPACE:
            break
        char = _BOARD_CHARS[byte]
        is_slash = char >> 16  # all ones or zero
        position[U(char & 15)] |= bit(square & 63)
        wrong |= (is_slash & (square ^ row_end)) | (char & previous & _DIGIT_FLAG)
        square += (char >> 8) & 255
        row_end += is_slash & 8
        left |= row_end - square
        previous = char
        index += 1
    return index if wrong == 0 and left >= 0 and square == 64 and row_end == 64 else -1


@njit(**NO_REFCOUNT)
def _find_rook(position: Any, side: Any, back: Any, char: Any) -> Any:
    """Return the rook on the rank `back` that a lower-case castling letter means, or EMPTY."""
    king, rooks = position[KING + side] & back, position[ROOK + side] & back
    if popcount(king) != ONE:
        return EMPTY
    if char == _LOWER_K:  # the outermost rook east of the king
        rooks &= ~(king | (king - ONE))
        rook = EMPTY
        while rooks != EMPTY:
            rook = rooks & ~(rooks - ONE)
            rooks ^= rook
        return rook
    if char == _LOWER_Q:
        rooks &= king - ONE
        return rooks & ~(rooks - ONE)
    return rooks & (FILE_A << U(char - _LOWER_A))


@njit(**NO_REFCOUNT)
def _read_castling(text: Any, index: Any, end: Any, position: Any) -> Any:
    """Read the castling rights; return (index after them, one of VALID, MALFORMED, CHESS960)."""
    if index < end and text[index] == _DASH:
        return index + 1, VALID
    first, white, black, result = index, 0, 0, VALID
    while index < end and text[index] != _SPACE:
        char = int(text[index])
        side = 1 if char >= _LOWER_A else 0
        char |= _LOWER_CASE
        is_known = _LOWER_A <= char <= _LOWER_H or char in (_LOWER_K, _LOWER_Q)
        if not is_known or text[index] < _UPPER_A or (side == 0 and black > 0):
            return index, MALFORMED
        white, black = white + 1 - side, black + side
        back = RANK_8 if side else RANK_1
        rook = _find_rook(position, side, back, char)
        if rook != EMPTY:
            if position[KING + side] & _FILE_E == EMPTY or rook & _ROOK_FILES == EMPTY:
                result = CHESS960
            position[CASTLING] |= rook
        index += 1
    return index, (result if index > first and white <= 2 and black <= 2 else MALFORMED)


@njit(**NO_REFCOUNT)
def _read_en_passant(text: Any, index: Any, end: Any, black: Any, position: Any) -> Any:
    """Read the en-passant square; return the index after it, or -1 if it is malformed.

    A square is ignored if no pawn can have just passed it.
    """
    if index < end and text[index] == _DASH:
        return index + 1
    if index + 1 >= end or not _LOWER_A <= text[index] <= _LOWER_H:
        return -1
    if text[index + 1] != _DIGIT_3 and text[index + 1] != _DIGIT_6:
        return -1
    file, sixth = U(text[index]) - U(_LOWER_A), text[index + 1] == _DIGIT_6
    if sixth != black:
        pawn, behind = (file + U(24), file + U(8)) if sixth else (file + U(32), file + U(48))
        target = file + U(16) if sixth else file + U(40)
        pushed = position[PAWN + 1] if sixth else position[PAWN]
        if (
            pushed & bit(pawn) != EMPTY
            and occupied_squares(position) & (bit(target) | bit(behind)) == EMPTY
        ):
            position[EN_PASSANT] = bit(target)
    return index + 2


@njit(**NO_REFCOUNT)
def _read_counter(text: Any, index: Any, end: Any) -> Any:
    """Read a space and up to four digits; return (number, index after them or -1)."""
    if index >= end or text[index] != _SPACE:
        return 0, -1
    index += 1
    first, number = index, 0
    while index < end and index < first + 4 and _DIGIT_0 <= text[index] <= _DIGIT_9:
        number = number * 10 + int(text[index]) - _DIGIT_0
        index += 1
    return number, (index if index > first else -1)


@njit(**NO_REFCOUNT)
def read_fen(text: Any, index: Any, end: Any, position: Any) -> Any:
    """Read the FEN `text[index:end]` (uint8) into `position` (uint64[16]); return a result code.

    Without counters, the halfmove clock is 0 and the move number 1. The caller checks that the
    position has at most MAX_MOVES legal moves.
    """
    for word in range(WORDS):
        position[word] = U(0)
    index = _read_board(text, index, end, position)
    if index < 0 or index + 2 >= end or text[index] != _SPACE or text[index + 2] != _SPACE:
        return MALFORMED
    black = text[index + 1] == _LOWER_B
    if not black and text[index + 1] != _LOWER_W:
        return MALFORMED
    index, rights = _read_castling(text, index + 3, end, position)
    if rights == MALFORMED or index >= end or text[index] != _SPACE:
        return MALFORMED
    index = _read_en_passant(text, index + 1, end, black, position)
    if index < 0:
        return MALFORMED
    halfmove, fullmove = 0, 1
    if index < end:
        halfmove, index = _read_counter(text, index, end)
        if index >= 0:
            fullmove, index = _read_counter(text, index, end)
        if index != end:
            return MALFORMED
    ply = min(2 * (max(fullmove, 1) - 1) + black, 0xFFFF)
    position[COUNTERS] = U(halfmove) | U(ply) << U(16)
    if black:
        mirror(position)
    return rights if _is_playable(position) else UNPLAYABLE


@njit(**NO_REFCOUNT)
def _is_playable(position: Any) -> Any:
    """Return whether kings and pawns are valid and the side not to move is not in check."""
    if popcount(position[KING]) != ONE or popcount(position[KING + 1]) != ONE:
        return False
    if (position[PAWN] | position[PAWN + 1]) & (RANK_1 | RANK_8) != EMPTY:
        return False
    pawns, occupied = pawn_attacks_up(position[PAWN]), occupied_squares(position)
    attacked = attacked_by(position, MOVER, pawns, occupied)
    return attacked & position[KING + 1] == EMPTY
