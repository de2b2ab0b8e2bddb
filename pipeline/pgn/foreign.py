"""Characters of movetext that are not ASCII: translated where their meaning is certain.

Figurines become letters, no-break and other spaces blanks, typographic dashes hyphens, a half
`1/2`, and signs of evaluation `!`, which is ignored. Zero-width characters between tokens
are dropped. Everything else stays: the game is then dropped for an unreadable move. Comments are
not changed.
"""

import re
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from engine.kernels import BORROWING
from pipeline.pgn.lines import LOOK, last_brace

DASHES = dict.fromkeys(map(ord, "‐‑‒–—―−﹘﹣－"), "-")
_SPACES = dict.fromkeys(
    [0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000], " "
)
_OTHERS = {ord("×"): "x"}
_TABLE = DASHES | _SPACES | _OTHERS
_SIGN = re.compile("[±∓⩲⩱∞□⨀⟳⇆⇄‼⁇⁉⁈†‡](?![A-Za-z0-9♔-♟])")
_ELLIPSIS = re.compile(r"(?<=[\d.])…|…(?=\s)")
# single bytes of Latin-1 and CP1252, as `surrogateescape` decodes them
_BYTES = {
    0xDC00 + byte: char
    for byte, char in zip(b"\xa0\xbd\xb1\xd7\x96\x97\x85", " ½±x--.", strict=True)
}

_PIECES = str.maketrans("♔♕♖♗♘♚♛♜♝♞", 2 * "KQRBN")
_PIECE = re.compile("([♔-♘♚-♞])[\ufe0e\ufe0f]?")
_PAWN = re.compile("(?:(?<=[\\s.{}()])|\\A)[♙♟][\ufe0e\ufe0f]?(?=[a-h])")
_HALVES = re.compile("½ ?[-:] ?½")
_HALF = re.compile(r"(?:(?<=\s)|\A)½(?=\s|\Z)")
_ZERO_WIDTH = "[\u00ad\u200b-\u200f\u2060\ufeff]+"
_BETWEEN = re.compile(rf"(?:(?<=[\s.{{}}()])|\A){_ZERO_WIDTH}|{_ZERO_WIDTH}(?=[\s!?+#$(){{}};]|\Z)")

_NUMBER = re.compile(rb"(?<=\d\.) (?=[A-Za-z])")
_COMMENTS = re.compile(rb"(\{[^}]*(?:\}|\Z)|;[^\r\n]*|(?<![^\r\n])%[^\r\n]*)")


@njit(**BORROWING)
def _first_foreign(text: Any, at: Any, end: Any) -> Any:
    """Return the first byte from `at` on that is not ASCII, or `end`."""
    while at + LOOK <= end:
        seen, first = np.uint8(0), np.uint64(at)
        for offset in range(LOOK):
            seen |= text[first + np.uint64(offset)]
        if seen >= 128:
            break
        at += LOOK
    while at < end and text[at] < 128:
        at += 1
    return at


@njit(**BORROWING)
def _has_line_comment(text: Any, begin: Any, end: Any) -> Any:
    """Return whether a `;`, or a `%` that begins a line, is between two bytes of movetext."""
    for at in range(begin, end):
        if text[at] == 59:
            return True
        if text[at] == 37 and (at == begin or text[at - 1] == 10 or text[at - 1] == 13):
            return True
    return False


@njit(**BORROWING)
def _mark_foreign(text: Any, movetext: Any, bounds: Any, marks: Any) -> None:
    """Write to `marks` (bool[G]) which games have a byte outside braces that is not ASCII.

    A brace in a comment to the end of a line opens nothing, so a game with one is marked too.
    """
    for game in range(len(movetext)):
        begin, end = movetext[game], bounds[game + 1]
        at, marks[game] = _first_foreign(text, begin, end), False
        while at < end and not marks[game]:
            opened = last_brace(text, begin, at) == 123
            marks[game] = not opened or _has_line_comment(text, begin, at)
            while at < end and text[at] != 125:
                at += 1
            at = _first_foreign(text, at, end)


def translate_movetext(
    text: NDArray[np.uint8], movetext: NDArray[np.int64], bounds: NDArray[np.int64]
) -> NDArray[np.uint8]:
    """Return the text with translated movetext, each game as long as before; the same array where
    nothing is foreign.

    Game G is `text[bounds[G]:bounds[G + 1]]`, and its movetext begins at `movetext[G]`.
    """
    marks = np.empty(len(movetext), dtype=np.bool_)
    _mark_foreign(text, movetext, bounds, marks)
    if not marks.any():
        return text
    edited = bytearray(text)
    for game in np.flatnonzero(marks).tolist():
        first, last = int(movetext[game]), int(bounds[game + 1])
        edited[first:last] = _translate(bytes(edited[first:last]))
    return np.frombuffer(bytes(edited), dtype=np.uint8)


def _translate(movetext: bytes) -> bytes:
    """Return one game's movetext in ASCII outside comments where that is certain, padded with
    blanks.
    """
    parts = _COMMENTS.split(movetext)  # movetext, comment, movetext, ...
    parts[::2] = [part if part.isascii() else _translate_part(part) for part in parts[::2]]
    new = b"".join(parts).rstrip()
    if len(new) > len(movetext):  # a half at the end of a file has no room to grow: `1. e4` shrinks
        parts[::2] = [_NUMBER.sub(b"", part) for part in parts[::2]]
        new = b"".join(parts).rstrip()
    return new.ljust(len(movetext)) if len(new) <= len(movetext) else movetext


def _translate_part(part: bytes) -> bytes:
    """Return movetext between two comments in ASCII where that is certain."""
    text = part.decode("utf-8", "surrogateescape").translate(_BYTES).translate(_TABLE)
    text = _ELLIPSIS.sub("...", _SIGN.sub("!", text))
    text = _PAWN.sub("", _PIECE.sub(lambda found: found[1].translate(_PIECES), text))
    text = _BETWEEN.sub("", _HALF.sub("1/2", _HALVES.sub("1/2", text)))
    return text.encode("utf-8", "surrogateescape")
