"""Compiled readers of PGN comments, with their clocks and evaluations, and of variations.

Every function takes the text (uint8), the byte to begin at and the byte the game ends at, and never
reads past that.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from engine.kernels import BORROWING

NO_EVAL, NO_CLOCK = -32768, 65535
MATE = 32000
"""Centipawns of a forced mate; evals are clipped to it."""


@njit(**BORROWING)
def is_space(char: Any) -> Any:
    """Return whether a byte is white space to Python, line ends included."""
    return 9 <= char <= 13 or 28 <= char <= 32


@njit(**BORROWING)
def skip_digits(text: Any, at: Any, end: Any) -> Any:
    """Return the first byte from `at` on that is not a digit, or `end`."""
    while at < end and 48 <= text[at] <= 57:
        at += 1
    return at


@njit(**BORROWING)
def skip_variation(text: Any, at: Any, end: Any) -> Any:
    """Return the byte after the `)` that closes the `(` at `at`; -1 where none does, or for a
    comment that never ends.
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
        # ; or % at the start of a line
        elif char == 59 or (char == 37 and (text[at - 1] == 10 or text[at - 1] == 13)):
            while at < end and text[at] != 10 and text[at] != 13:
                at += 1
        elif char == 40:
            depth += 1
        elif char == 41:
            depth -= 1
            if depth == 0:
                return at + 1
        at += 1
    return -1


@njit(**BORROWING)
def _skip_spaces(text: Any, at: Any, end: Any) -> Any:
    """Return the first byte from `at` on that is not white space, or `end`."""
    while at < end and is_space(text[at]):
        at += 1
    return at


@njit(**BORROWING)
def _read_eval(text: Any, at: Any, end: Any) -> Any:
    """Read ` 0.31]`, ` 0.31,22]`, ` 0.31/22]` or ` #-3]` after `[%eval`; return (White's centipawns
    or NO_EVAL, next byte).

    Centipawns are clipped to +-MATE; the depth is not read.
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
    # the depth
    if at + 1 < end and (text[at] == 44 or text[at] == 47) and 48 <= text[at + 1] <= 57:
        at = skip_digits(text, at + 1, end)
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
    """Read ` H:MM:SS]` after `[%clk`, fractions dropped; return (seconds up to 65534 or NO_CLOCK,
    byte after it).
    """
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
        at = skip_digits(text, at + 1, end)
    if not spaced or colons != 2 or digits == 0 or at >= end or text[at] != 93:
        return NO_CLOCK, at
    return min(total + part, NO_CLOCK - 1), at


@njit(**BORROWING)
def read_comment(text: Any, at: Any, end: Any) -> Any:
    """Read from `{` to its `}`: return (byte after it, eval, clock), the first of each; -1 for a
    comment that never ends.

    A brace that opens another comment in it shows that it was not closed, and holds moves of the
    game.
    """
    value, clock = NO_EVAL, NO_CLOCK
    at += 1
    while at < end:
        char = text[at]
        at += 1
        if char == 125 or char == 123:
            return (at if char == 125 else -1), value, clock
        if char == 91 and at + 5 < end and text[at] == 37:  # [%
            if text[at + 1] == 99 and text[at + 2] == 108 and text[at + 3] == 107:
                found, at = _read_clock(text, at + 4, end)
                clock = found if clock == NO_CLOCK else clock
            elif (
                text[at + 1] == 101
                and text[at + 2] == 118
                and text[at + 3] == 97
                and text[at + 4] == 108
            ):
                found, at = _read_eval(text, at + 5, end)
                value = found if value == NO_EVAL else value
    return -1, value, clock


_SLASH = 2


def _board_bytes() -> NDArray[np.uint8]:
    """Return 1 for the bytes of a FEN's squares and of a break inside it, _SLASH for a slash, 0 for
    others, uint8[256].
    """
    table = np.zeros(256, dtype=np.uint8)
    table[[ord(char) for char in "pnbrqkPNBRQK12345678\\\r\n"]] = 1
    table[ord("/")] = _SLASH
    return table


_BOARD_BYTES = _board_bytes()
_USUAL = np.frombuffer(b"rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR", dtype=np.uint8)


@njit(**BORROWING)
def holds_board(text: Any, at: Any, end: Any) -> Any:
    """Return whether `text[at:end]` has the squares of a FEN other than the usual start: a run with
    seven slashes.
    """
    begin, slashes = at, 0
    while at <= end:
        kind = _BOARD_BYTES[text[at]] if at < end else 0
        if kind == 0:
            if slashes >= 7:
                usual = at - begin == len(_USUAL)
                for offset in range(len(_USUAL) if usual else 0):
                    usual &= text[begin + offset] == _USUAL[offset]
                if not usual:
                    return True
            begin, slashes = at + 1, 0
        else:
            slashes += kind == _SLASH
        at += 1
    return False
