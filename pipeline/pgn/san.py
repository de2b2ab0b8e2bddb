"""The tokens of PGN movetext, compiled: SAN, comments with clocks and evals, variations, results.

Every function takes the text (uint8), the byte to begin at and the byte the game ends at, and never reads past that. The
grammar is that of python-chess's reader; squares are in the mover's view.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from engine.board.bitboard import EMPTY, FILE_A, RANK_1, RANK_8, U, bit, lowest
from engine.board.movegen import MOVE_PLANES, legal_planes
from engine.board.movers import legal_movers
from engine.board.position import BISHOP, KING, KNIGHT, PAWN, QUEEN, ROOK, TURN
from engine.encoding.planes import ILLEGAL_TYPE, type_table
from engine.kernels import BORROWING

NO_EVAL, NO_CLOCK = -32768, 65535
MATE = 32000
"""Centipawns of a forced mate; evals are clipped to it."""
UNKNOWN_RESULT = 2

NO_MOVE, NULL, AMBIGUOUS, ILLEGAL = -4, -3, -2, -1
"""Kinds that `read_move` returns besides move types."""

ANY = -1
"""The piece of `e2e4` and `g1f3`, which name none."""

_TYPES = type_table()  # numba freezes module tables into the machine code


@njit(**BORROWING)
def is_space(char: Any) -> Any:
    """Return whether a byte is white space to Python, line ends included."""
    return 9 <= char <= 13 or 28 <= char <= 32


@njit(**BORROWING)
def _legal_sources(position: Any, planes: Any, word: Any, target: Any, sources: Any) -> Any:
    """Return the pieces of a word, on `sources`, that have a legal move to `target`, uint64."""
    legal_planes(position, planes)
    found, movers = EMPTY, position[word] & sources
    while movers != EMPTY:
        source = lowest(movers)
        movers &= movers - U(1)
        kind = _TYPES[source, target]
        if kind != ILLEGAL_TYPE:
            found |= planes[MOVE_PLANES + kind] & bit(source)
    return found


@njit(**BORROWING)
def _find_move(position: Any, planes: Any, word: Any, target: Any, sources: Any) -> Any:
    """Return (kind, source) of the one legal move to `target` from `sources`; ILLEGAL for none, AMBIGUOUS for several.

    `planes` is scratch, uint64[77].
    """
    movers = legal_movers(position, word, bit(target), sources)
    if movers == EMPTY:  # castling, en passant, or no move
        movers = _legal_sources(position, planes, word, target, sources)
        if movers == EMPTY:
            return ILLEGAL, U(0)
    source = lowest(movers)
    return (AMBIGUOUS if movers & (movers - U(1)) != EMPTY else int(_TYPES[source, target])), source


def _letter_table(letters: str, values: Sequence[int], other: int) -> NDArray[np.int64]:
    """Return a table of 256 bytes: the value of each letter, `other` elsewhere."""
    table = np.full(256, other, dtype=np.int64)
    table[[ord(letter) for letter in letters]] = values
    return table


_WORDS = _letter_table("NBRQK", (KNIGHT, BISHOP, ROOK, QUEEN, KING), -1)
"""Word of the mover's pieces for a SAN letter, -1 for none."""
_PROMOTIONS = _letter_table("NBRQKnbrqk", 2 * (2, 3, 4, 5, 6), 0)
"""python-chess piece type of a promotion letter, 0 for none; a king (6) is never legal."""


@njit(**BORROWING)
def _castling_length(text: Any, at: Any, end: Any) -> Any:
    """Return the length of the castling at `at`: 3 for O-O, 5 for O-O-O (zeros too), 0 for neither."""
    letter = text[at]
    if at + 3 > end or text[at + 1] != 45 or text[at + 2] != letter:
        return 0
    if at + 5 <= end and text[at + 3] == 45 and text[at + 4] == letter:
        return 5
    return 3


@njit(**BORROWING)
def _is_null_move(text: Any, at: Any, end: Any) -> Any:
    """Return whether a null move begins at `at`: `--`, `Z0`, `0000` or `@@@@`."""
    char = text[at]
    following = text[at + 1] if at + 1 < end else 0
    if (char == 45 and following == 45) or (char == 90 and following == 48):
        return True
    if (char != 48 and char != 64) or at + 4 > end:
        return False
    return following == char and text[at + 2] == char and text[at + 3] == char


@njit(**BORROWING)
def _is_square(text: Any, at: Any, end: Any) -> Any:
    """Return whether a square such as `e4` stands at `at`."""
    return at + 2 <= end and 97 <= text[at] <= 104 and 49 <= text[at + 1] <= 56


@njit(**BORROWING)
def _read_san(text: Any, at: Any, end: Any, black: Any) -> Any:
    """Read `[NBRQK]?[a-h]?[1-8]?[-x]?[a-h][1-8](=?[nbrqkNBRQK])?`.

    Returns (word, mask of from-squares, target or -1, promotion, next byte), squares in the mover's view. The word is ANY
    for `e2e4` and `g1f3`: two whole squares and no letter, as UCI writes moves.
    """
    word = _WORDS[text[at]]
    at += word >= 0
    word = max(word, 0)
    from_file, from_rank, target = -1, -1, at
    if target < end and 97 <= text[target] <= 104:
        from_file = int(text[target]) - 97
        target += 1
    if target < end and 49 <= text[target] <= 56:
        from_rank = int(text[target]) - 49
        target += 1
    if target < end and (text[target] == 120 or text[target] == 45):  # x -
        target += 1
    if not _is_square(text, target, end):  # then there is no from-square
        from_file, from_rank, target = -1, -1, at
        if not _is_square(text, target, end):
            return word, EMPTY, -1, 0, at
    file, rank, at = int(text[target]) - 97, int(text[target + 1]) - 49, target + 2
    sources = ~EMPTY
    if from_file >= 0:
        sources &= FILE_A << U(from_file)
    elif word == PAWN:
        sources &= FILE_A << U(file)
    if from_rank >= 0:
        sources &= RANK_8 << U(8 * (from_rank if black else 7 - from_rank))
    if word == PAWN and from_file >= 0 and from_rank >= 0:
        word = ANY
    promotion = 0
    letter = at + (at < end and text[at] == 61)  # =
    if letter < end and _PROMOTIONS[text[letter]] > 0:  # after a piece's move too, which is then illegal: `Ra7k`
        promotion = _PROMOTIONS[text[letter]]
        at = letter + 1
    return word, sources, 8 * (rank if black else 7 - rank) + file, promotion, at


@njit(**BORROWING)
def _skip_variation(text: Any, at: Any, end: Any) -> Any:
    """Return the byte after the `)` that closes the `(` at `at`, `end` if none does; -1 for a comment that never ends."""
    depth = 0
    while at < end:
        char = text[at]
        if char == 123:  # {
            while at < end and text[at] != 125:
                at += 1
            if at == end:
                return -1
        elif char == 59 or (char == 37 and (text[at - 1] == 10 or text[at - 1] == 13)):  # ; or % at the start of a line
            while at < end and text[at] != 10 and text[at] != 13:
                at += 1
        elif char == 40:
            depth += 1
        elif char == 41:
            depth -= 1
            if depth == 0:
                return at + 1
        at += 1
    return end


@njit(**BORROWING)
def _skip_spaces(text: Any, at: Any, end: Any) -> Any:
    """Return the first byte from `at` on that is not white space, or `end`."""
    while at < end and is_space(text[at]):
        at += 1
    return at


@njit(**BORROWING)
def _skip_digits(text: Any, at: Any, end: Any) -> Any:
    """Return the first byte from `at` on that is not a digit, or `end`."""
    while at < end and 48 <= text[at] <= 57:
        at += 1
    return at


@njit(**BORROWING)
def _read_eval(text: Any, at: Any, end: Any) -> Any:
    """Read ` 0.31]`, ` -0.31,22]` or ` #-3]` after `[%eval`; return (White's centipawns or NO_EVAL, byte after it).

    Centipawns are clipped to +-MATE.
    """
    begin = at
    at = _skip_spaces(text, at, end)
    spaced = at > begin
    mate = at < end and text[at] == 35
    at += mate
    negative = at < end and text[at] == 45
    at += negative or (at < end and text[at] == 43)
    value, digits, decimals = 0, 0, -1
    while at < end:
        char = text[at]
        if char == 46 and decimals < 0 and not mate:
            decimals = 0
        elif 48 <= char <= 57:
            digits += 1
            if decimals < 2 and value < 1_000_000:
                value = value * 10 + int(char) - 48
                decimals += decimals >= 0
        else:
            break
        at += 1
    if at + 1 < end and text[at] == 44 and 48 <= text[at + 1] <= 57:  # the depth
        at = _skip_digits(text, at + 1, end)
    if not spaced or digits == 0 or at >= end or text[at] != 93:
        return NO_EVAL, at
    if mate:
        return (-MATE if negative or value == 0 else MATE), at  # #0: White is mated
    for _ in range(2 - max(decimals, 0)):
        value *= 10
    value = min(value, MATE)
    return (-value if negative else value), at


@njit(**BORROWING)
def _read_clock(text: Any, at: Any, end: Any) -> Any:
    """Read ` H:MM:SS]` after `[%clk`, fractions dropped; return (seconds up to 65534 or NO_CLOCK, byte after it)."""
    begin = at
    at = _skip_spaces(text, at, end)
    spaced = at > begin
    total, part, digits, colons = 0, 0, 0, 0
    while at < end and (48 <= text[at] <= 57 or (text[at] == 58 and digits > 0)):
        if text[at] == 58:
            total, part, digits, colons = min((total + part) * 60, 100_000_000), 0, 0, colons + 1
        else:
            part, digits = min(part * 10 + int(text[at]) - 48, 100_000), digits + 1
        at += 1
    if at < end and text[at] == 46 and digits > 0:
        at = _skip_digits(text, at + 1, end)
    if not spaced or colons != 2 or digits == 0 or at >= end or text[at] != 93:
        return NO_CLOCK, at
    return min(total + part, NO_CLOCK - 1), at


@njit(**BORROWING)
def read_comment(text: Any, at: Any, end: Any) -> Any:
    """Read from `{` to its `}`: return (byte after it, eval, clock), the first of each; -1 for a comment that never ends."""
    value, clock = NO_EVAL, NO_CLOCK
    at += 1
    while at < end:
        char = text[at]
        at += 1
        if char == 125:
            return at, value, clock
        if char == 91 and at + 5 < end and text[at] == 37:  # [%
            if text[at + 1] == 99 and text[at + 2] == 108 and text[at + 3] == 107:
                found, at = _read_clock(text, at + 4, end)
                clock = found if clock == NO_CLOCK else clock
            elif text[at + 1] == 101 and text[at + 2] == 118 and text[at + 3] == 97 and text[at + 4] == 108:
                found, at = _read_eval(text, at + 5, end)
                value = found if value == NO_EVAL else value
    return -1, value, clock


@njit(**BORROWING)
def read_result(text: Any, at: Any, end: Any) -> Any:
    """Return White's result where `1-0`, `0-1` or `1/2-1/2` begins at `at`, UNKNOWN_RESULT elsewhere."""
    if at + 3 <= end and text[at + 1] == 45:
        if text[at] == 49 and text[at + 2] == 48:
            return 1
        if text[at] == 48 and text[at + 2] == 49:
            return -1
    if at + 7 <= end and text[at] == 49 and text[at + 1] == 47 and text[at + 2] == 50 and text[at + 3] == 45:
        return 0 if text[at + 4] == 49 and text[at + 5] == 47 and text[at + 6] == 50 else UNKNOWN_RESULT
    return UNKNOWN_RESULT


@njit(**BORROWING)
def read_move(text: Any, at: Any, end: Any, position: Any, planes: Any) -> Any:
    """Read a SAN at `at`: return (kind, source, target, promotion, next byte).

    Kind is a move type, or ILLEGAL, AMBIGUOUS, NULL (a null move), NO_MOVE (no move begins here). `planes` is scratch,
    uint64[77].
    """
    char = text[at]
    if char == 79 or char == 48:  # O 0
        length = _castling_length(text, at, end)
        if length > 0:
            target = U(62) if length == 3 else U(58)
            kind, source = _find_move(position, planes, KING, target, RANK_1)
            return kind if kind > 7 or kind < 0 else ILLEGAL, source, target, 0, at + length
    if _is_null_move(text, at, end):
        return NULL, U(0), U(0), 0, at + 2
    drop = at + (_WORDS[char] >= 0 or char == 80)
    if drop < end and text[drop] == 64 and _is_square(text, drop + 1, end):
        return ILLEGAL, U(0), U(0), 0, drop  # as in crazyhouse: N@f3
    word, sources, square, promotion, after = _read_san(text, at, end, position[TURN] != EMPTY)
    if square < 0:
        return NO_MOVE, U(0), U(0), 0, at + 1
    spelled = word
    if word == ANY:
        word = PAWN
        for piece in (KNIGHT, BISHOP, ROOK, QUEEN, KING):
            if position[piece] & sources != EMPTY:
                word = piece
    kind, source = _find_move(position, planes, word, U(square), sources)
    if spelled == KING and kind > 7:  # castling is O-O or e1g1, never Kg1
        kind = ILLEGAL
    promotes = word == PAWN and square < 8
    if kind >= 0 and (promotes != (promotion > 0) or promotion == 6):
        kind = ILLEGAL
    return kind, source, U(square), promotion, after


_SKIPPED, _BEGINS, _DIGIT, _NAG, _VARIATION, _LINE_COMMENT, _ESCAPE = range(7)


def _byte_kinds() -> NDArray[np.uint8]:
    """Return the kind of each byte between moves, uint8[256]; a-h BKNOPQR Z - @ begin a move, { a comment, * a result."""
    kinds = np.full(256, _SKIPPED, dtype=np.uint8)
    kinds[[ord(char) for char in "abcdefghBKNOPQRZ-@{*"]] = _BEGINS
    kinds[48:58] = _DIGIT
    for char, kind in zip("$(;%", (_NAG, _VARIATION, _LINE_COMMENT, _ESCAPE), strict=True):
        kinds[ord(char)] = kind
    return kinds


_BYTES = _byte_kinds()


@njit(**BORROWING)
def next_token(text: Any, at: Any, end: Any, line_start: Any, moved: Any) -> Any:
    """Skip what is neither move, comment nor result: return the byte where the next of these begins, or `end`.

    Returns -1 for a variation with a comment that never ends.
    `moved`: whether a move was read; before the first one a parenthesis opens no variation. Digits before a pawn's move are
    its number (`1e4`), where python-chess reads a rank.
    """
    while at < end:
        char = text[at]
        kind = _BYTES[char]
        if kind == _SKIPPED:
            at += 1
        elif kind == _BEGINS:
            return at
        elif kind == _DIGIT:
            if char == 48 and (_castling_length(text, at, end) > 0 or _is_null_move(text, at, end)):
                return at
            if read_result(text, at, end) != UNKNOWN_RESULT:
                return at
            at += 1
        elif kind == _NAG:
            at = _skip_digits(text, at + 1, end)
        elif kind == _VARIATION:
            at = _skip_variation(text, at, end) if moved else at + 1
            if at < 0:
                return at
        elif kind == _ESCAPE and not (at == line_start or text[at - 1] == 10 or text[at - 1] == 13):
            at += 1  # % has a meaning at the start of a line only
        else:
            while at < end and text[at] != 10 and text[at] != 13:
                at += 1
    return end
