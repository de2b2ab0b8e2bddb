"""The lines of PGN text, compiled: where they end, and the blanks in them.

Every function takes the text (uint8), the byte to begin at and the byte the text ends at, and never
reads past that.
"""

from typing import Any

import numpy as np
from numba import njit

from engine.kernels import BORROWING
from pipeline.pgn.comments import is_space

LOOK = 64
"""Bytes that are compared at a time: the compiler makes vector instructions of a loop over them
without break and negative indices."""
_NONE = np.uint8(LOOK)


@njit(**BORROWING)
def line_stop(text: Any, at: Any, end: Any, other: Any) -> Any:
    """Return the first byte from `at` on that is LF, CR or `other`, or `end`."""
    other = np.uint8(other)
    while at + LOOK <= end:
        found, first = _NONE, np.uint64(at)
        for offset in range(LOOK):
            char = text[first + np.uint64(offset)]
            stops = (char == 10) | (char == 13) | (char == other)
            found = min(found, np.uint8(offset) if stops else _NONE)
        if found < _NONE:
            return at + np.int64(found)
        at += LOOK
    while at < end and text[at] != 10 and text[at] != 13 and text[at] != other:
        at += 1
    return at


@njit(**BORROWING)
def last_brace(text: Any, at: Any, end: Any) -> Any:
    """Return the last brace of `text[at:end]`, 0 for none."""
    while at + LOOK <= end:
        found, first = False, np.uint64(end - LOOK)
        for offset in range(LOOK):
            char = text[first + np.uint64(offset)]
            found |= (char == 123) | (char == 125)
        if found:
            break
        end -= LOOK
    while end > at:
        end -= 1
        if text[end] == 123 or text[end] == 125:
            return int(text[end])
    return 0


@njit(**BORROWING)
def next_line(text: Any, stop: Any, end: Any) -> Any:
    """Return the byte after the line end (LF, CR LF or CR alone) at `stop`, or `end`."""
    if stop + 1 < end and text[stop] == 13 and text[stop + 1] == 10:
        stop += 1
    return min(stop + 1, end)


@njit(**BORROWING)
def line_end(text: Any, at: Any, end: Any) -> Any:
    """Return the byte after the line end that follows `at`, or `end`."""
    return next_line(text, line_stop(text, at, end, 10), end)


@njit(**BORROWING)
def is_line_end(text: Any, at: Any, end: Any) -> Any:
    """Return whether the line ends at `at`."""
    return at >= end or text[at] == 10 or text[at] == 13


@njit(**BORROWING)
def skip_marks(text: Any, at: Any, end: Any) -> Any:
    """Return the first byte from `at` on that begins no UTF-8 byte-order mark: joined files have
    one each.
    """
    while at + 3 <= end and text[at] == 0xEF and text[at + 1] == 0xBB and text[at + 2] == 0xBF:
        at += 3
    return at


@njit(**BORROWING)
def skip_blanks(text: Any, at: Any, end: Any) -> Any:
    """Return the first byte from `at` on that ends the line or is visible: no-break and zero-width
    spaces are skipped too.
    """
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
            or (char == 0xE2 and text[at + 1] == 0x80 and text[at + 2] <= 0x8F)
            or (char == 0xE2 and text[at + 1] == 0x80 and text[at + 2] == 0xAF)
            or (char == 0xE2 and text[at + 1] == 0x81 and 0x9F <= text[at + 2] <= 0xA4)
            or (char == 0xE3 and text[at + 1] == 0x80 and text[at + 2] == 0x80)
        ):
            at += 3
        else:
            break
    return at
