"""Find the games in PGN text: a compiled scan over the lines of a stream, block by block.

A game begins
    at the first tag with a value in quotes after movetext and a blank line
    at `[Event` after tags and a blank line
    at a tag after a line of movetext that ends in a result, even without a blank line
    at `[Event` after movetext that had no tags, even without a blank line
    at movetext without tags after a result and a blank line
    at the number `1.` after movetext that had no tags and a blank line

A result ends a game only after moves. A result right after the tags does not: the following text
belongs to the same game, which is later dropped. Movetext without tags that has a line with a
bracket continues into the following text, since the bracket may mark a position. Otherwise a blank
line does not end a game without a result. A comment may contain blank lines and tags. A tag in a
comment begins a game only if the comment was never closed: the next brace opens another comment, or
there is no next brace. UTF-8 byte-order marks at the start of any line are ignored, since
concatenated files have one each.
"""

from typing import Any

import numpy as np
from numba import njit

from engine.kernels import BORROWING
from pipeline.pgn.san import read_result
from pipeline.pgn.tags import has_quoted_value, is_event, is_tag, plain_close, tags_end
from pipeline.pgn.text import (
    SEMICOLON,
    is_line_end,
    is_space,
    last_brace,
    line_end,
    line_stop,
    next_line,
    skip_blanks,
    skip_marks,
    trim_end,
)

BETWEEN, HEADERS, GAP, MOVETEXT, PAUSE, COMMENT = range(6)
"""States of the splitter: between games, in tags, after the tags and a blank line, in movetext,
after movetext without a result and a blank line, in a comment."""
_STATE, _BEGUN, _FINISHED, _CANDIDATE, _UNTAGGED, _MOVED = range(6)

MAX_GAME_BYTES = 1 << 24
"""Maximum bytes of a game. Longer ones are cut, so an unclosed comment takes bounded memory."""


class Splitter:
    """State of `split` between two blocks of a stream."""

    def __init__(self) -> None:
        self.state = np.array([BETWEEN, 0, 0, -1, 0, 0], dtype=np.int64)
        """State; first byte of the open game; whether the previous line ended in a result; first
        tag in the open comment or -1; whether the open game has no tags; whether it has moves."""

    def resume(self, scanned: int) -> int:
        """Return the first byte where `split` may start a game if it resumes at `scanned`."""
        candidate = int(self.state[_CANDIDATE])
        return scanned if candidate < 0 else min(candidate, scanned)

    def drop(self, count: int) -> None:
        """Shift the stored offsets after the first `count` bytes of the text were dropped."""
        self.state[_BEGUN] -= count
        self.state[_CANDIDATE] = max(self.state[_CANDIDATE] - count, -1)


@njit(**BORROWING)
def _ends_in_result(text: Any, at: Any, end: Any) -> Any:
    """Return whether the last word of the line `text[at:end]` is a result or `*`."""
    end = trim_end(text, at, end)
    if end > at and text[end - 1] == 42:  # *
        return True
    if end > at and text[end - 1] == 0xBD:  # a half, in UTF-8 or Latin-1
        return end - 2 < at or text[end - 2] == 0xC2 or text[end - 2] < 128
    word = end
    while word > at and end - word < 8 and not is_space(text[word - 1]):
        word -= 1
    return end > word and read_result(text, word, end)[1] == end - word


@njit(**BORROWING)
def _walk_moves(text: Any, at: Any, end: Any, commented: Any) -> Any:
    """Scan a line of moves; return (next line, whether in a comment, whether a result ends it)."""
    stop = line_stop(text, at, end, SEMICOLON)
    if stop < end and text[stop] == 59:
        following, commented = _walk_bytes(text, at, end, commented)
        return following, commented, False  # the last word may belong to a ; comment
    brace = last_brace(text, at, stop)  # comments do not nest
    commented = brace == 123 or (commented and brace == 0)
    following = next_line(text, stop, end)
    return following, commented, not commented and _ends_in_result(text, at, following)


@njit(**BORROWING)
def _walk_bytes(text: Any, at: Any, end: Any, commented: Any) -> Any:
    """Scan a line with a semicolon; return the first two values of `_walk_moves`."""
    while at < end:
        char = text[at]
        if char == 10 or char == 13:
            return line_end(text, at, end), commented
        if commented:
            commented = char != 125
        elif char == 123:
            commented = True
        elif char == 59:
            return line_end(text, at, end), False
        at += 1
    return end, commented


@njit(**BORROWING)
def _first_brace(text: Any, at: Any, end: Any) -> Any:
    """Return the first brace of `text[at:end]` as a byte, 0 if there is none."""
    while at < end:
        if text[at] == 123 or text[at] == 125:
            return int(text[at])
        at += 1
    return 0


@njit(**BORROWING)
def _has_moves(text: Any, at: Any, end: Any) -> Any:
    """Return whether a line of movetext contains more than comments and results."""
    commented = False
    while at < end:
        char = text[at]
        if commented or char == 123:
            commented = char != 125
            at += 1
        elif is_space(char) or char == 42:  # *
            at += 1
        elif char == 0xC2 and at + 1 < end and text[at + 1] == 0xBD:  # a half
            at += 2
        else:
            length = read_result(text, at, end)[1]
            if length == 0:
                return char != 45  # the dash between two halves
            at += length
    return False


@njit(**BORROWING)
def _is_first_number(text: Any, at: Any, end: Any) -> Any:
    """Return whether `1.` is at `at`, and not `1...`."""
    if at + 2 > end or text[at] != 49 or text[at + 1] != 46:
        return False
    at = skip_blanks(text, at + 2, end)
    return at >= end or text[at] != 46


@njit(**BORROWING)
def _may_begin(
    text: Any, at: Any, end: Any, mode: Any, finished: Any, moved: Any, untagged: Any
) -> Any:
    """Return whether a tag at `at` after movetext may begin a game.

    It may after moves and their result, after a blank line if its value is quoted, and if it is
    `Event` after a blank line, a result, or movetext without tags.
    """
    if is_event(text, at, end):
        return mode == PAUSE or (mode == MOVETEXT and (finished or untagged))
    if mode == PAUSE:
        return has_quoted_value(text, at, end)
    return mode == MOVETEXT and finished and moved


@njit(**BORROWING)
def split(text: Any, at: Any, end: Any, final: Any, state: Any, starts: Any) -> Any:
    """Write the offsets of the games in `text[at:end]` to `starts` (int64); return their number.

    The text consists of whole lines. `state` (int64[6]) is the Splitter's; `final`: whether this is
    the last block. `starts` needs one entry per two bytes from `Splitter.resume` on, since no game
    is shorter. Bounds are not checked.
    """
    count = 0
    mode, begun, candidate = state[_STATE], state[_BEGUN], state[_CANDIDATE]
    finished, untagged, moved = state[_FINISHED] != 0, state[_UNTAGGED] != 0, state[_MOVED] != 0
    while at < end or (final and candidate >= 0):
        if candidate >= 0 and (at >= end or at - begun > MAX_GAME_BYTES):
            at, mode, candidate = candidate, BETWEEN, -1  # the comment was never closed
        at = skip_marks(text, at, end)
        if at == end:
            continue  # handle an unclosed comment at the end first
        first = skip_blanks(text, at, end)
        empty = is_line_end(text, first, end)
        bracket = (
            not empty and text[first] == 91 and not (first + 1 < end and text[first + 1] == 37)
        )
        tagged = bracket and mode > GAP and is_tag(text, first, end)
        fresh, movetext, following = False, -1, at
        if empty:
            if mode == HEADERS:
                mode = GAP
            elif mode == MOVETEXT:
                mode = BETWEEN if finished and moved else PAUSE
            following = line_end(text, first, end)
        # a line that starts with % or ; is a comment
        elif mode != COMMENT and (text[at] == 37 or text[at] == 59):
            following = line_end(text, at, end)
        elif bracket and (
            mode <= GAP
            or (tagged and _may_begin(text, first, end, mode, finished, moved, untagged))
        ):
            fresh = mode == BETWEEN or mode > GAP or (mode == GAP and is_event(text, first, end))
            mode = HEADERS
            close = plain_close(text, first, end)
            if close >= 0:
                following = next_line(text, close + 1, end)
            else:
                following = line_end(text, first, end)
                body = tags_end(text, first, following)
                movetext = body if body < following else -1
        else:
            if mode == COMMENT and tagged and candidate < 0:
                candidate = at
            if candidate >= 0:
                brace = _first_brace(text, at, line_end(text, at, end))
                if brace == 123:
                    at, mode, candidate = candidate, BETWEEN, -1
                    continue
                candidate = candidate if brace == 0 else -1
            fresh = mode == BETWEEN or (
                mode == PAUSE and untagged and _is_first_number(text, first, end)
            )
            untagged = untagged and not tagged
            movetext = at
        if fresh:
            moved = movetext == at  # without tags, a result alone is a game
        if movetext >= 0:
            was_commented = mode == COMMENT
            following, commented, finished = _walk_moves(text, movetext, end, was_commented)
            mode = COMMENT if commented else MOVETEXT
            moved = moved or was_commented or _has_moves(text, movetext, following)
        if not fresh and mode != BETWEEN and candidate < 0 and at - begun > MAX_GAME_BYTES:
            fresh, mode = True, MOVETEXT
        if fresh:
            starts[count] = at
            begun, untagged = at, mode != HEADERS and movetext == at
            count += 1
        at = following
    state[_STATE], state[_BEGUN], state[_CANDIDATE] = mode, begun, candidate
    state[_FINISHED], state[_UNTAGGED], state[_MOVED] = int(finished), int(untagged), int(moved)
    return count
