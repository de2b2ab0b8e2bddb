"""Tokenize PGN movetext, in compiled code: moves, move numbers, marks, results.

Each kernel takes the text (uint8), the offset `at` of the first byte to read and the offset `end`
of the end of the game; it never reads past `end`. The bytes that a kernel returns are offsets too.

Moves are read as in python-chess, and squares are in the mover's view. Unlike python-chess, the
tokenizer never skips unknown bytes. A piece word is the index of a bitboard of a position
(engine/board/position.py).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from engine.board.bitboard import EMPTY, FILE_A, RANK_1, RANK_8, U, bit, lowest_square
from engine.board.movegen import MOVE_PLANES, legal_planes
from engine.board.movers import legal_movers
from engine.board.position import BISHOP, KING, KNIGHT, PAWN, QUEEN, ROOK, TURN
from engine.encoding.planes import NO_MOVE_TYPE, type_table
from engine.kernels import NO_REFCOUNT
from pipeline.pgn.text import LINE_FEED, find_line_stop, skip_digits, skip_variation

UNKNOWN_RESULT = 2
"""Result of a game that states none; the others are White's 1, 0 and -1."""

NO_MOVE, NULL, AMBIGUOUS, ILLEGAL = -4, -3, -2, -1
"""Kinds that `read_move` returns instead of a move type."""

ANY_PIECE = -1
"""Piece word of a move that names no piece, such as `e2e4` or `g1f3`."""

_MOVE_TYPES = type_table()  # global, so that Numba compiles it in as a constant


@njit(**NO_REFCOUNT)
def _find_sources(position: Any, planes: Any, word: Any, target: Any, sources: Any) -> Any:
    """Return a bitboard of the `word` pieces on `sources` that can legally move to `target`."""
    legal_planes(position, planes)
    found, movers = EMPTY, position[word] & sources
    while movers != EMPTY:
        source = lowest_square(movers)
        movers &= movers - U(1)
        kind = _MOVE_TYPES[source, target]
        if kind != NO_MOVE_TYPE:
            found |= planes[MOVE_PLANES + kind] & bit(source)
    return found


@njit(**NO_REFCOUNT)
def _find_move(position: Any, planes: Any, word: Any, target: Any, sources: Any) -> Any:
    """Return (kind, source) of the only legal move to `target` of a `word` piece on `sources`.

    The kind is the move's type, ILLEGAL if there is no such move, or AMBIGUOUS if there are
    several. `planes` is scratch memory, uint64[77].
    """
    movers = legal_movers(position, word, bit(target), sources)
    if movers == EMPTY:  # castling, en passant, or no move
        movers = _find_sources(position, planes, word, target, sources)
        if movers == EMPTY:
            return ILLEGAL, U(0)
    source = lowest_square(movers)
    is_ambiguous = movers & (movers - U(1)) != EMPTY
    return (AMBIGUOUS if is_ambiguous else int(_MOVE_TYPES[source, target])), source


def _build_letter_table(letters: str, values: Sequence[int], other: int) -> NDArray[np.int64]:
    """Return a table of 256 values, indexed by byte: `values` for `letters`, else `other`."""
    table = np.full(256, other, dtype=np.int64)
    table[[ord(letter) for letter in letters]] = values
    return table


_PIECE_WORDS = _build_letter_table("NBRQK", (KNIGHT, BISHOP, ROOK, QUEEN, KING), -1)
"""Piece word of each letter of SAN, -1 for other bytes."""
PROMOTION_PIECES = _build_letter_table("NBRQKnbrqk", 2 * (2, 3, 4, 5, 6), 0)
"""Piece type (as in python-chess) of each promotion letter, 0 for other bytes; 6, the king, is
illegal."""


@njit(**NO_REFCOUNT)
def _measure_castling(text: Any, at: Any, end: Any) -> Any:
    """Return the length of O-O, O-O-O, 0-0 or 0-0-0, given `O` or `0` at `at`; 0 for other text."""
    letter = text[at]
    if at + 3 > end or text[at + 1] != 45 or text[at + 2] != letter:
        return 0
    if at + 5 <= end and text[at + 3] == 45 and text[at + 4] == letter:
        return 5
    return 3


@njit(**NO_REFCOUNT)
def _is_null_move(text: Any, at: Any, end: Any) -> Any:
    """Return whether a null move begins at `at`: `--`, `Z0`, `0000` or `@@@@`."""
    char = text[at]
    following = text[at + 1] if at + 1 < end else 0
    if (char == 45 and following == 45) or (char == 90 and following == 48):
        return True
    if (char != 48 and char != 64) or at + 4 > end:
        return False
    return following == char and text[at + 2] == char and text[at + 3] == char


@njit(**NO_REFCOUNT)
def _is_square(text: Any, at: Any, end: Any) -> Any:
    return at + 2 <= end and 97 <= text[at] <= 104 and 49 <= text[at + 1] <= 56


@njit(**NO_REFCOUNT)
def _read_san(text: Any, at: Any, end: Any, black: Any) -> Any:
    """Read a move of the form `[NBRQK]?[a-h]?[1-8]?[-x]?[a-h][1-8](=?[nbrqkNBRQK])?`.

    Returns (piece word, bitboard of possible from-squares, target or -1, promotion, next byte), in
    the mover's view. `black` says whether Black moves. The piece word is ANY_PIECE for two squares
    without a letter, as in UCI.
    """
    word = _PIECE_WORDS[text[at]]
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
    if not _is_square(text, target, end):  # no from-square
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
        word = ANY_PIECE
    promotion = 0
    letter = at + (at < end and text[at] == 61)  # =
    # read it after moves of other pieces too (`Ra7k`), which are then illegal
    if letter < end and PROMOTION_PIECES[text[letter]] > 0:
        promotion = PROMOTION_PIECES[text[letter]]
        at = letter + 1
    return word, sources, 8 * (rank if black else 7 - rank) + file, promotion, at


@njit(**NO_REFCOUNT)
def _read_points(text: Any, at: Any, end: Any) -> Any:
    """Read `1`, `0`, `1/2` or `0.5`; return (twice the points, length), or (-9, 0) if absent."""
    if at < end and (text[at] == 48 or text[at] == 49):
        if at + 3 <= end and text[at] == 49 and text[at + 1] == 47 and text[at + 2] == 50:
            return 1, 3
        decimal = at + 3 <= end and (text[at + 1] == 46 or text[at + 1] == 44)  # . ,
        if decimal and text[at] == 48 and text[at + 2] == 53:
            return 1, 3
        return (2 if text[at] == 49 else 0), 1
    return -9, 0


@njit(**NO_REFCOUNT)
def read_result(text: Any, at: Any, end: Any) -> Any:
    """Read `1-0`, `0-1` or `1/2-1/2` at `at`; return (White's result, length in bytes).

    `1:0`, `1/2` and `0.5-0.5` are accepted too. Anything else, such as the castling `0-0`, gives
    (UNKNOWN_RESULT, 0).
    """
    points, length = _read_points(text, at, end)
    if length == 0:
        return UNKNOWN_RESULT, 0
    after = at + length
    if after < end and (text[after] == 45 or text[after] == 58):  # - :
        black_points, black_length = _read_points(text, after + 1, end)
        after += 1 + black_length
        if points + black_points != 2:
            return UNKNOWN_RESULT, 0
    elif points != 1 or text[at] == 48:  # `1/2` alone is a draw
        return UNKNOWN_RESULT, 0
    if after < end and 47 <= text[after] <= 57:  # a slash or a digit
        return UNKNOWN_RESULT, 0
    return points - 1, after - at


@njit(**NO_REFCOUNT)
def read_move(text: Any, at: Any, end: Any, position: Any, planes: Any) -> Any:
    """Read the move at `at`; return (kind, source, target, promotion, next byte).

    The kind is a move type, ILLEGAL, AMBIGUOUS, NULL (a null move) or NO_MOVE (not a move). The
    other values describe a move only if it is legal. `planes` is scratch memory, uint64[77].
    """
    char = text[at]
    if char == 79 or char == 48:  # O 0
        length = _measure_castling(text, at, end)
        if length > 0:
            target = U(62) if length == 3 else U(58)
            kind, source = _find_move(position, planes, np.int64(KING), target, RANK_1)
            return kind if kind > 7 or kind < 0 else ILLEGAL, source, target, 0, at + length
    if _is_null_move(text, at, end):
        return NULL, U(0), U(0), 0, at + 2
    sign = at + (_PIECE_WORDS[char] >= 0 or char == 80)
    if sign < end and text[sign] == 64 and _is_square(text, sign + 1, end):
        return ILLEGAL, U(0), U(0), 0, sign  # a piece dropped in crazyhouse: N@f3
    word, sources, square, promotion, after = _read_san(text, at, end, position[TURN] != EMPTY)
    if square < 0:
        return NO_MOVE, U(0), U(0), 0, at + 1
    written_word = word
    if word == ANY_PIECE:
        word = PAWN
        for piece in (KNIGHT, BISHOP, ROOK, QUEEN, KING):
            if position[piece] & sources != EMPTY:
                word = piece
    kind, source = _find_move(position, planes, word, U(square), sources)
    # `bc4` may be a capture by a pawn or a move of a bishop written in lower case
    is_lower_b = kind >= 0 and char == 98 and word == PAWN and after == at + 3
    if is_lower_b and legal_movers(position, np.int64(BISHOP), bit(U(square)), ~EMPTY) != EMPTY:
        kind = AMBIGUOUS
    if written_word == KING and kind > 7:  # castling is O-O or e1g1, never Kg1
        kind = ILLEGAL
    promotes = word == PAWN and square < 8
    if kind >= 0 and (promotes != (promotion > 0) or promotion == 6):
        kind = ILLEGAL
    return kind, source, U(square), promotion, after


_SKIPPED, _BEGINS_TOKEN, _DIGIT, _NAG, _VARIATION, _LINE_COMMENT, _ESCAPE, _MARK, _OTHER = range(9)


def _classify_bytes() -> NDArray[np.uint8]:
    """Return the kind of each byte that may begin a token, uint8[256].

    White space, dots and annotation signs such as `!` are skipped. `@` and the letters of moves
    begin a move, `{` a comment, and `*` is a result. `-` and `/` are part of marks such as `+/-`.
    """
    kinds = np.full(256, _OTHER, dtype=np.uint8)
    kinds[[9, 10, 11, 12, 13, 28, 29, 30, 31, 32, *(ord(char) for char in ".!?+#=")]] = _SKIPPED
    kinds[[ord(char) for char in "abcdefghBKNOPQRZ@{*"]] = _BEGINS_TOKEN
    kinds[48:58] = _DIGIT
    for char, kind in zip(
        "$(;%-/", (_NAG, _VARIATION, _LINE_COMMENT, _ESCAPE, _MARK, _MARK), strict=True
    ):
        kinds[ord(char)] = kind
    return kinds


_BYTE_KINDS = _classify_bytes()
_MOVE_SUFFIXES = ("e.p.", "ep", "mate", "ch")
_MOVE_SUFFIX_BYTES = np.array(
    [list(word.encode().ljust(4, b"\0")) for word in _MOVE_SUFFIXES], dtype=np.uint8
)

UNCLOSED_TOKEN, UNREADABLE_TOKEN = -1, -2
"""Values that `find_next_token` returns instead of an offset."""


@njit(**NO_REFCOUNT)
def measure_suffix(text: Any, at: Any, end: Any) -> Any:
    """Return the length of the move suffix at `at`, such as `e.p.`; 0 if there is none."""
    for number in range(len(_MOVE_SUFFIX_BYTES)):
        suffix, length = _MOVE_SUFFIX_BYTES[number], 0
        while length < 4 and at + length < end and text[at + length] == suffix[length]:
            length += 1
        if length == 4 or suffix[length] == 0:
            after = text[at + length] | 32 if at + length < end else 32
            return 0 if 97 <= after <= 122 or after >= 128 or 48 <= after <= 57 else length
    return 0


@njit(**NO_REFCOUNT)
def _skip_mark(text: Any, at: Any, end: Any, begin: Any) -> Any:
    """Return the byte after a mark such as `+-` or `-/+`, whose first `-` or `/` is at `at`.

    Returns -1 for a run of `-` and `/` without a `+` or `=`, which is no mark.
    """
    is_mark = at > begin and (text[at - 1] == 43 or text[at - 1] == 61)  # + =
    while at < end and (text[at] == 43 or text[at] == 61 or text[at] == 45 or text[at] == 47):
        is_mark = is_mark or text[at] == 43 or text[at] == 61
        at += 1
    return at if is_mark else -1


# inlined because it runs once per token: a call with an array would cost more than the work itself
@njit(**NO_REFCOUNT, forceinline=True)
def _skip_move_number(text: Any, at: Any, end: Any, begin: Any, ply: Any, numbered: Any) -> Any:
    """Return the byte after the move number at `at`; -1 if it is wrong or part of a word.

    `numbered` says whether it must be the next move's number, as in games that have no FEN.
    """
    value, before = 0, text[at - 1] if at > begin else 32
    while at < end and 48 <= text[at] <= 57:
        value = min(value * 10 + int(text[at]) - 48, 1_000_000)
        at += 1
    # do not read `Rf13` as `Rf1`
    if (at >= end or text[at] != 46) and (before | 32 >= 97 or 48 <= before <= 57):
        return -1
    if not numbered:
        return at
    if value != ply // 2 + 1:
        return -1
    is_black = at + 3 <= end and text[at] == 46 and text[at + 1] == 46 and text[at + 2] == 46
    return -1 if is_black and ply % 2 == 0 else at


@njit(**NO_REFCOUNT, forceinline=True)
def find_next_token(text: Any, at: Any, end: Any, begin: Any, ply: Any, numbered: Any) -> Any:
    """Return the first byte of the next move, comment or result, or `end`.

    Returns UNCLOSED_TOKEN for a variation that never ends, and UNREADABLE_TOKEN for unknown bytes,
    a wrong move number or a variation before the first move. `begin` is the first byte of the
    movetext, `ply` the number of moves read so far; for `numbered` see `_skip_move_number`. Digits
    before a pawn's move are its number (`1e4`), whereas python-chess reads them as a rank.
    """
    while at < end:
        char = text[at]
        kind = _BYTE_KINDS[char]
        if kind == _SKIPPED:
            at += 1
        elif kind == _BEGINS_TOKEN:
            return at
        elif kind == _DIGIT:
            is_castling = char == 48 and _measure_castling(text, at, end) > 0
            if is_castling or (char == 48 and _is_null_move(text, at, end)):
                return at
            if char <= 49 and read_result(text, at, end)[1] > 0:
                return at
            at = _skip_move_number(text, at, end, begin, ply, numbered)
        elif kind == _NAG:
            after = skip_digits(text, at + 1, end)
            at = after if after > at + 1 else UNREADABLE_TOKEN
        elif kind == _VARIATION:
            if ply == 0:
                return UNREADABLE_TOKEN  # a variation before the first move
            at = skip_variation(text, at, end)
            if at < 0:
                return UNCLOSED_TOKEN
        elif kind == _MARK:
            after = _skip_mark(text, at, end, begin)
            if after < 0 and _is_null_move(text, at, end):
                return at
            at = after
        elif kind == _LINE_COMMENT or (
            # `%` begins a comment only at the start of a line
            kind == _ESCAPE and (at == begin or text[at - 1] == 10 or text[at - 1] == 13)
        ):
            at = find_line_stop(text, at, end, LINE_FEED)
        else:
            length = measure_suffix(text, at, end)
            at = at + length if length > 0 else UNREADABLE_TOKEN
        if at < 0:
            return UNREADABLE_TOKEN
    return end
