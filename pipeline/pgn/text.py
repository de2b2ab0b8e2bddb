"""Scan PGN text, in compiled code: lines, blanks, comments, variations, non-ASCII characters.

Each kernel takes the text (uint8), the offset `at` of the first byte to read and the offset `end`
to stop before; it never reads past `end`. The bytes that a kernel returns are offsets too.

`translate_movetext` replaces non-ASCII characters that have a clear meaning: figurines by letters,
Unicode spaces by blanks, typographic dashes by hyphens, `½` by `1/2`, and evaluation signs by `!`,
which is ignored. It drops zero-width characters between tokens and leaves comments unchanged. A
game with any other non-ASCII character among its moves is dropped later.
"""

import re
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from engine.kernels import NO_REFCOUNT

NO_EVAL, NO_CLOCK = -32768, 65535
"""Values of a row without an evaluation, and without a clock."""
MATE = 32000
"""Centipawns that stand for a forced mate; evaluations are clipped to ±MATE."""


@njit(**NO_REFCOUNT)
def is_space(char: Any) -> Any:
    """Return whether a byte is white space in Python, which includes line ends."""
    return 9 <= char <= 13 or 28 <= char <= 32


@njit(**NO_REFCOUNT)
def skip_spaces(text: Any, at: Any, end: Any) -> Any:
    """Return the first byte from `at` on that is not white space, or `end`."""
    while at < end and is_space(text[at]):
        at += 1
    return at


@njit(**NO_REFCOUNT)
def trim_end(text: Any, at: Any, end: Any) -> Any:
    """Return the end of `text[at:end]` without trailing white space."""
    while end > at and is_space(text[end - 1]):
        end -= 1
    return end


# ---------------------------------------------------------------- lines

VECTOR_BYTES = 64
"""Bytes compared at a time. The compiler vectorizes a loop only if its length is fixed, and if it
has no `break` and no index that may be negative."""
_NOT_FOUND = np.uint8(VECTOR_BYTES)
LINE_FEED, SEMICOLON, CLOSING_BRACKET = (np.uint8(char) for char in b"\n;]")
"""Arguments of `find_line_stop`. They are typed, since Numba compiles a kernel once more for each
literal argument."""


@njit(**NO_REFCOUNT)
def find_line_stop(text: Any, at: Any, end: Any, other: Any) -> Any:
    """Return the offset of the first LF, CR or `other` (uint8) from `at` on, or `end`."""
    while at + VECTOR_BYTES <= end:
        found, first = _NOT_FOUND, np.uint64(at)
        for offset in range(VECTOR_BYTES):
            char = text[first + np.uint64(offset)]
            stops = (char == 10) | (char == 13) | (char == other)
            found = min(found, np.uint8(offset) if stops else _NOT_FOUND)
        if found < _NOT_FOUND:
            return at + np.int64(found)
        at += VECTOR_BYTES
    while at < end and text[at] != 10 and text[at] != 13 and text[at] != other:
        at += 1
    return at


@njit(**NO_REFCOUNT)
def find_last_brace(text: Any, at: Any, end: Any) -> Any:
    """Return the last brace in `text[at:end]`, as its ASCII code; 0 if there is none."""
    while at + VECTOR_BYTES <= end:
        found, first = False, np.uint64(end - VECTOR_BYTES)
        for offset in range(VECTOR_BYTES):
            char = text[first + np.uint64(offset)]
            found |= (char == 123) | (char == 125)
        if found:
            break
        end -= VECTOR_BYTES
    while end > at:
        end -= 1
        if text[end] == 123 or text[end] == 125:
            return int(text[end])
    return 0


@njit(**NO_REFCOUNT)
def skip_line_break(text: Any, stop: Any, end: Any) -> Any:
    """Return the byte after the line break (LF, CR LF or CR alone) at `stop`, or `end`."""
    if stop + 1 < end and text[stop] == 13 and text[stop + 1] == 10:
        stop += 1
    return min(stop + 1, end)


@njit(**NO_REFCOUNT)
def skip_line(text: Any, at: Any, end: Any) -> Any:
    """Return the start of the next line, or `end`."""
    return skip_line_break(text, find_line_stop(text, at, end, LINE_FEED), end)


@njit(**NO_REFCOUNT)
def is_at_line_end(text: Any, at: Any, end: Any) -> Any:
    """Return whether a line break or the end of the text is at `at`."""
    return at >= end or text[at] == 10 or text[at] == 13


@njit(**NO_REFCOUNT)
def skip_byte_order_marks(text: Any, at: Any, end: Any) -> Any:
    """Return the byte after any UTF-8 byte-order marks, which concatenated files contain."""
    while at + 3 <= end and text[at] == 0xEF and text[at + 1] == 0xBB and text[at + 2] == 0xBF:
        at += 3
    return at


@njit(**NO_REFCOUNT)
def skip_blanks(text: Any, at: Any, end: Any) -> Any:
    """Return the byte after ASCII and Unicode blanks, also zero-width ones, but not line ends."""
    while at < end:
        char = text[at]
        if char < 128:
            if char == 10 or char == 13 or not is_space(char):
                break
            at += 1
        elif char == 0xA0:  # Latin-1
            at += 1
        elif char == 0xC2 and at + 1 < end and (text[at + 1] == 0xA0 or text[at + 1] == 0xAD):
            at += 2
        elif at + 2 >= end:
            break
        elif (
            (char == 0xEF and text[at + 1] == 0xBB and text[at + 2] == 0xBF)
            or (char == 0xE2 and text[at + 1] == 0x80 and 0x80 <= text[at + 2] <= 0x8F)
            or (char == 0xE2 and text[at + 1] == 0x80 and text[at + 2] == 0xAF)
            or (char == 0xE2 and text[at + 1] == 0x81 and 0x9F <= text[at + 2] <= 0xA4)
            or (char == 0xE3 and text[at + 1] == 0x80 and text[at + 2] == 0x80)
        ):
            at += 3
        else:
            break
    return at


# ---------------------------------------------------------------- comments and variations


@njit(**NO_REFCOUNT)
def skip_digits(text: Any, at: Any, end: Any) -> Any:
    """Return the first byte from `at` on that is not a digit, or `end`."""
    while at < end and 48 <= text[at] <= 57:
        at += 1
    return at


@njit(**NO_REFCOUNT)
def skip_variation(text: Any, at: Any, end: Any) -> Any:
    """Return the offset just past the variation that begins at `at`; -1 if it is unterminated.

    It is, if a parenthesis or a brace comment in it is not closed, or such a comment contains `{`.
    """
    depth = 0
    while at < end:
        char = text[at]
        if char == 123:  # {
            at += 1
            while at < end and text[at] != 125 and text[at] != 123:
                at += 1
            if at == end or text[at] == 123:
                return -1
        # the rest of the line is a comment: after `;`, or if the line begins with `%`
        elif char == 59 or (char == 37 and (text[at - 1] == 10 or text[at - 1] == 13)):
            at = find_line_stop(text, at, end, LINE_FEED)
        elif char == 40:
            depth += 1
        elif char == 41:
            depth -= 1
            if depth == 0:
                return at + 1
        at += 1
    return -1


@njit(**NO_REFCOUNT)
def _read_eval(text: Any, at: Any, end: Any) -> Any:
    """Read ` 0.31]`, ` 0.31,22]`, ` 0.31/22]` or ` #-3]` after `[%eval`.

    Returns (White's centipawns, clipped to ±MATE, or NO_EVAL; next byte). The search depth after
    the comma or slash is ignored.
    """
    begin = at
    at = skip_spaces(text, at, end)
    has_space = at > begin
    is_mate = at < end and text[at] == 35
    at += is_mate
    is_negative = at < end and text[at] == 45
    at += is_negative or (at < end and text[at] == 43)
    value, digits, decimals = 0, 0, -1
    while at < end:
        char = text[at]
        if char == 46 and decimals < 0 and not is_mate:
            decimals = 0
        elif 48 <= char <= 57:
            digits += 1
            if decimals < 2 and value < 1_000_000:
                value = value * 10 + int(char) - 48
                decimals += decimals >= 0
        else:
            break
        at += 1
    # skip the depth
    if at + 1 < end and (text[at] == 44 or text[at] == 47) and 48 <= text[at + 1] <= 57:
        at = skip_digits(text, at + 1, end)
    if not has_space or digits == 0 or at >= end or text[at] != 93:
        return NO_EVAL, at
    if is_mate:
        return (-MATE if is_negative or value == 0 else MATE), at  # `#0`: White is mated
    for _ in range(2 - max(decimals, 0)):
        value *= 10
    value = min(value, MATE)
    return (-value if is_negative else value), at


@njit(**NO_REFCOUNT)
def _read_clock(text: Any, at: Any, end: Any) -> Any:
    """Read ` H:MM:SS]` after `[%clk`; return (seconds up to 65534 or NO_CLOCK, next byte)."""
    begin = at
    at = skip_spaces(text, at, end)
    has_space = at > begin
    total, field, digits, colons = 0, 0, 0, 0
    while at < end and (48 <= text[at] <= 57 or (text[at] == 58 and digits > 0)):
        if text[at] == 58:
            total, field, digits, colons = min((total + field) * 60, 100_000_000), 0, 0, colons + 1
        else:
            field, digits = min(field * 10 + int(text[at]) - 48, 100_000), digits + 1
        at += 1
    if at < end and text[at] == 46 and digits > 0:
        at = skip_digits(text, at + 1, end)
    if not has_space or colons != 2 or digits == 0 or at >= end or text[at] != 93:
        return NO_CLOCK, at
    return min(total + field, NO_CLOCK - 1), at


_CLOCK_WORD, _EVAL_WORD = (np.frombuffer(word, dtype=np.uint8) for word in (b"clk", b"eval"))


@njit(**NO_REFCOUNT)
def has_word_at(text: Any, at: Any, word: Any) -> Any:
    """Return whether `word` (uint8) is at `at`. Bounds are not checked."""
    offset = 0
    while offset < len(word) and text[at + offset] == word[offset]:
        offset += 1
    return offset == len(word)


@njit(**NO_REFCOUNT)
def read_comment(text: Any, at: Any, end: Any) -> Any:
    """Read the comment that begins at `at`; return (byte after it, eval, clock).

    The eval and the clock are the first ones in the comment. The byte is -1 if the comment is not
    closed. A comment that contains `{` counts as not closed: it has probably swallowed moves.
    """
    value, clock = NO_EVAL, NO_CLOCK
    at += 1
    while at < end:
        char = text[at]
        at += 1
        if char == 125 or char == 123:
            return (at if char == 125 else -1), value, clock
        if char == 91 and at + 5 < end and text[at] == 37:  # [%
            if has_word_at(text, at + 1, _CLOCK_WORD):
                found, at = _read_clock(text, at + 4, end)
                clock = found if clock == NO_CLOCK else clock
            elif has_word_at(text, at + 1, _EVAL_WORD):
                found, at = _read_eval(text, at + 5, end)
                value = found if value == NO_EVAL else value
    return -1, value, clock


_SLASH_CLASS = 2


def _classify_board_bytes() -> NDArray[np.uint8]:
    """Return the class of each byte, uint8[256].

    The class is _SLASH_CLASS for `/`, 1 for the other characters of a FEN's board, and 0 for the
    rest. Backslashes and line breaks, which may interrupt a FEN, have class 1.
    """
    table = np.zeros(256, dtype=np.uint8)
    table[[ord(char) for char in "pnbrqkPNBRQK12345678\\\r\n"]] = 1
    table[ord("/")] = _SLASH_CLASS
    return table


_BOARD_CLASSES = _classify_board_bytes()
_STANDARD_BOARD = np.frombuffer(b"rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR", dtype=np.uint8)


@njit(**NO_REFCOUNT)
def has_board(text: Any, at: Any, end: Any) -> Any:
    """Return whether the text contains a FEN's board other than the standard starting position.

    Any run of board characters with at least seven slashes counts as a board.
    """
    begin, slashes = at, 0
    while at <= end:
        kind = _BOARD_CLASSES[text[at]] if at < end else 0
        if kind == 0:
            is_standard = at - begin == len(_STANDARD_BOARD) and has_word_at(
                text, begin, _STANDARD_BOARD
            )
            if slashes >= 7 and not is_standard:
                return True
            begin, slashes = at + 1, 0
        else:
            slashes += kind == _SLASH_CLASS
        at += 1
    return False


# ---------------------------------------------------------------- non-ASCII characters

DASHES = dict.fromkeys(map(ord, "‐‑‒–—―−﹘﹣－"), "-")
_SPACES = dict.fromkeys(
    [0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000], " "
)
_CAPTURE_SIGNS = {ord("×"): "x"}
_TRANSLATIONS = DASHES | _SPACES | _CAPTURE_SIGNS
_EVALUATION_SIGN = re.compile("[±∓⩲⩱∞□⨀⟳⇆⇄‼⁇⁉⁈†‡](?![A-Za-z0-9♔-♟])")
_ELLIPSIS = re.compile(r"(?<=[\d.])…|…(?=\s)")
# keys: bytes of Latin-1 and CP1252, as Python's error handler `surrogateescape` decodes them
_LATIN_1_BYTES = {
    0xDC00 + byte: char
    for byte, char in zip(b"\xa0\xbd\xb1\xd7\x96\x97\x85", " ½±x--.", strict=True)
}

_FIGURINE_LETTERS = str.maketrans("♔♕♖♗♘♚♛♜♝♞", 2 * "KQRBN")
_PIECE_FIGURINE = re.compile("([♔-♘♚-♞])[\ufe0e\ufe0f]?")
_PAWN_FIGURINE = re.compile("(?:(?<=[\\s.{}()])|\\A)[♙♟][\ufe0e\ufe0f]?(?=[a-h])")
_DRAW_IN_HALVES = re.compile("½ ?[-:] ?½")
_LONE_HALF = re.compile(r"(?:(?<=\s)|\A)½(?=\s|\Z)")
_ZERO_WIDTH = "[\u00ad\u200b-\u200f\u2060\ufeff]+"
_ZERO_WIDTH_BETWEEN_TOKENS = re.compile(
    rf"(?:(?<=[\s.{{}}()])|\A){_ZERO_WIDTH}|{_ZERO_WIDTH}(?=[\s!?+#$(){{}};]|\Z)"
)

_SPACE_AFTER_NUMBER = re.compile(rb"(?<=\d\.) (?=[A-Za-z])")
_COMMENTS = re.compile(rb"(\{[^}]*(?:\}|\Z)|;[^\r\n]*|(?<![^\r\n])%[^\r\n]*)")


def translate_movetext(
    text: NDArray[np.uint8], movetext: NDArray[np.int64], bounds: NDArray[np.int64]
) -> NDArray[np.uint8]:
    """Return the text with the movetext translated to ASCII where its meaning is clear.

    `bounds` is int64[G + 1]: game `g` is `text[bounds[g]:bounds[g + 1]]`. Its movetext begins at
    `movetext[g]` and keeps its length.
    """
    non_ascii = np.flatnonzero(text >= 128)
    non_ascii = non_ascii[non_ascii >= bounds[0]]  # leave out text before the first game
    games = np.searchsorted(bounds, non_ascii, side="right") - 1
    games = np.unique(games[non_ascii >= movetext[games]])
    if not len(games):
        return text
    edited = bytearray(text)
    for game in games.tolist():
        first, last = int(movetext[game]), int(bounds[game + 1])
        edited[first:last] = _translate_game(bytes(edited[first:last]))
    return np.frombuffer(bytes(edited), dtype=np.uint8)


def _translate_game(movetext: bytes) -> bytes:
    """Translate movetext outside comments and pad it; return it unchanged if it would grow."""
    parts = _COMMENTS.split(movetext)  # movetext, comment, movetext, ...
    if all(part.isascii() for part in parts[::2]):
        return movetext
    parts[::2] = [part if part.isascii() else _translate_part(part) for part in parts[::2]]
    translated = b"".join(parts).rstrip()
    if len(translated) > len(movetext):  # `½` grew to `1/2`: shorten `1. e4` to `1.e4`
        parts[::2] = [_SPACE_AFTER_NUMBER.sub(b"", part) for part in parts[::2]]
        translated = b"".join(parts).rstrip()
    return translated.ljust(len(movetext)) if len(translated) <= len(movetext) else movetext


def _translate_part(part: bytes) -> bytes:
    """Translate the movetext between two comments to ASCII where the meaning is clear."""
    text = part.decode("utf-8", "surrogateescape")
    text = text.translate(_LATIN_1_BYTES).translate(_TRANSLATIONS)
    text = _EVALUATION_SIGN.sub("!", text)
    text = _ELLIPSIS.sub("...", text)
    text = _PIECE_FIGURINE.sub(lambda found: found[1].translate(_FIGURINE_LETTERS), text)
    text = _PAWN_FIGURINE.sub("", text)
    text = _DRAW_IN_HALVES.sub("1/2", text)
    text = _LONE_HALF.sub("1/2", text)
    text = _ZERO_WIDTH_BETWEEN_TOKENS.sub("", text)
    return text.encode("utf-8", "surrogateescape")
