"""Find the games in PGN text: a compiled scan over the lines of a stream, block by block.

A game begins at
    - a tag that is `Event` or has a value in quotes, after movetext and a blank line
    - `[Event`, after tags and a blank line
    - any tag, after a line of movetext that ends in a result, even without a blank line
    - `[Event`, after movetext that had no tags, even without a blank line
    - movetext without tags, after a result and a blank line
    - the number `1.`, after movetext that had no tags and a blank line

A blank line alone does not end a game that has no result. A result ends a game only after moves: if
it follows the tags, movetext after it belongs to the same game, which is dropped later. The rules
for movetext without tags no longer apply after a line of it that looks like a tag, since it may
hold a position. Comments may contain blank lines and tags. A tag in a comment begins a game only if
the comment was never closed: the next brace opens another one, or none follows within 16 MiB.
UTF-8 byte-order marks at the start of any line are ignored, since concatenated files have several.
"""

from typing import Any

import numpy as np
from numba import njit

from engine.kernels import NO_REFCOUNT
from pipeline.pgn.san import read_result
from pipeline.pgn.tags import find_plain_close, has_quoted_value, is_event, is_tag, skip_tags
from pipeline.pgn.text import (
    SEMICOLON,
    find_last_brace,
    find_line_stop,
    is_at_line_end,
    is_space,
    skip_blanks,
    skip_byte_order_marks,
    skip_line,
    skip_line_break,
    trim_end,
)

BETWEEN_GAMES, IN_TAGS, AFTER_TAGS, IN_MOVETEXT, AFTER_MOVETEXT, IN_COMMENT = range(6)
"""Modes of the splitter: between games, in tags, after the tags and a blank line, in movetext,
after movetext without a result and a blank line, in a comment."""
_MODE, _GAME_START, _AFTER_RESULT, _TAG_IN_COMMENT, _UNTAGGED, _HAS_MOVES = range(6)
"""Indices of `Splitter.state`."""

MAX_GAME_BYTES = 1 << 24
"""Maximum bytes of a game. Longer ones are cut, so that unclosed comments take bounded memory."""


class Splitter:
    """State of `split` between two blocks of a stream."""

    def __init__(self) -> None:
        self.state = np.array([BETWEEN_GAMES, 0, 0, -1, 0, 0], dtype=np.int64)
        """The mode; the first byte of the open game; whether the previous line ended in a result;
        the first tag in the open comment, or -1; whether the open game has no tags; whether it has
        moves."""

    def resume(self, scanned: int) -> int:
        """Return the first byte where a game may begin if `split` continues at `scanned`."""
        tag = int(self.state[_TAG_IN_COMMENT])
        return scanned if tag < 0 else min(tag, scanned)

    def drop(self, count: int) -> None:
        """Adjust the stored offsets to a text whose first `count` bytes have been dropped."""
        self.state[_GAME_START] -= count
        self.state[_TAG_IN_COMMENT] = max(self.state[_TAG_IN_COMMENT] - count, -1)


@njit(**NO_REFCOUNT)
def _ends_in_result(text: Any, at: Any, end: Any) -> Any:
    """Return whether the last word of the line `text[at:end]` is a result or `*`."""
    end = trim_end(text, at, end)
    if end > at and text[end - 1] == 42:  # *
        return True
    if end > at and text[end - 1] == 0xBD:  # `½` in Latin-1, or its last byte in UTF-8
        return end - 2 < at or text[end - 2] == 0xC2 or text[end - 2] < 128
    word = end
    while word > at and end - word < 8 and not is_space(text[word - 1]):
        word -= 1
    return end > word and read_result(text, word, end)[1] == end - word


@njit(**NO_REFCOUNT)
def _scan_movetext_line(text: Any, at: Any, end: Any, in_comment: Any) -> Any:
    """Scan a line of movetext; `in_comment` says whether it begins in a comment.

    Returns (next line, whether it begins in a comment, whether a result ends this line). The last
    value is False for a line with `;`, which may begin a comment.
    """
    stop = find_line_stop(text, at, end, SEMICOLON)
    if stop < end and text[stop] == 59:
        following, in_comment = _scan_line_with_semicolon(text, at, end, in_comment)
        return following, in_comment, False  # the last word may belong to a `;` comment
    brace = find_last_brace(text, at, stop)  # comments do not nest
    in_comment = brace == 123 or (in_comment and brace == 0)
    following = skip_line_break(text, stop, end)
    return following, in_comment, not in_comment and _ends_in_result(text, at, following)


@njit(**NO_REFCOUNT)
def _scan_line_with_semicolon(text: Any, at: Any, end: Any, in_comment: Any) -> Any:
    """Scan a line byte by byte; return (next line, whether that one begins in a comment)."""
    while at < end:
        char = text[at]
        if char == 10 or char == 13:
            return skip_line(text, at, end), in_comment
        if in_comment:
            in_comment = char != 125
        elif char == 123:
            in_comment = True
        elif char == 59:
            return skip_line(text, at, end), False
        at += 1
    return end, in_comment


@njit(**NO_REFCOUNT)
def _find_first_brace(text: Any, at: Any, end: Any) -> Any:
    """Return the first brace in `text[at:end]`, as its ASCII code; 0 if there is none."""
    while at < end:
        if text[at] == 123 or text[at] == 125:
            return int(text[at])
        at += 1
    return 0


@njit(**NO_REFCOUNT)
def _has_moves(text: Any, at: Any, end: Any) -> Any:
    """Return whether a line of movetext contains more than comments and results."""
    in_comment = False
    while at < end:
        char = text[at]
        if in_comment or char == 123:
            in_comment = char != 125
            at += 1
        elif is_space(char) or char == 42:  # *
            at += 1
        elif char == 0xC2 and at + 1 < end and text[at + 1] == 0xBD:  # `½`
            at += 2
        else:
            length = read_result(text, at, end)[1]
            if length == 0:
                return char != 45  # `-`, as in `½-½`
            at += length
    return False


@njit(**NO_REFCOUNT)
def _is_first_number(text: Any, at: Any, end: Any) -> Any:
    """Return whether the move number `1.` is at `at`, and not `1...`."""
    if at + 2 > end or text[at] != 49 or text[at + 1] != 46:
        return False
    at = skip_blanks(text, at + 2, end)
    return at >= end or text[at] != 46


@njit(**NO_REFCOUNT)
def _may_begin_game(
    text: Any, at: Any, end: Any, mode: Any, after_result: Any, has_moves: Any, is_untagged: Any
) -> Any:
    """Return whether the tag at `at`, which follows movetext, may begin a game.

    `Event` may begin one after a blank line, a result, or movetext without tags. Another tag may if
    it has a quoted value and follows a blank line, or if it follows moves and a result.
    """
    if is_event(text, at, end):
        return mode == AFTER_MOVETEXT or (mode == IN_MOVETEXT and (after_result or is_untagged))
    if mode == AFTER_MOVETEXT:
        return has_quoted_value(text, at, end)
    return mode == IN_MOVETEXT and after_result and has_moves


@njit(**NO_REFCOUNT)
def split(text: Any, at: Any, end: Any, final: Any, state: Any, starts: Any) -> Any:
    """Write the first bytes of the games in `text[at:end]` to `starts`, int64; return their number.

    The text consists of whole lines. `final` says whether it is the last block of the stream.
    `state` is `Splitter.state`. `starts` needs one entry per two bytes from `Splitter.resume` on,
    since no game is shorter. Bounds are not checked.
    """
    count = 0
    mode, game_start, tag_in_comment = state[_MODE], state[_GAME_START], state[_TAG_IN_COMMENT]
    after_result, is_untagged = state[_AFTER_RESULT] != 0, state[_UNTAGGED] != 0
    has_moves = state[_HAS_MOVES] != 0
    while at < end or (final and tag_in_comment >= 0):
        if tag_in_comment >= 0 and (at >= end or at - game_start > MAX_GAME_BYTES):
            # the comment was never closed
            at, mode, tag_in_comment = tag_in_comment, BETWEEN_GAMES, -1
        at = skip_byte_order_marks(text, at, end)
        if at == end:
            continue  # the loop's condition may still find an unclosed comment
        first = skip_blanks(text, at, end)
        is_empty = is_at_line_end(text, first, end)
        has_bracket = (
            not is_empty and text[first] == 91 and not (first + 1 < end and text[first + 1] == 37)
        )
        has_tag = has_bracket and mode > AFTER_TAGS and is_tag(text, first, end)
        begins_game, movetext, following = False, -1, at
        if is_empty:
            if mode == IN_TAGS:
                mode = AFTER_TAGS
            elif mode == IN_MOVETEXT:
                mode = BETWEEN_GAMES if after_result and has_moves else AFTER_MOVETEXT
            following = skip_line(text, first, end)
        # a line that starts with `%` or `;` is a comment
        elif mode != IN_COMMENT and (text[at] == 37 or text[at] == 59):
            following = skip_line(text, at, end)
        elif has_bracket and (
            mode <= AFTER_TAGS
            or (
                has_tag
                and _may_begin_game(text, first, end, mode, after_result, has_moves, is_untagged)
            )
        ):
            begins_game = (
                mode == BETWEEN_GAMES
                or mode > AFTER_TAGS
                or (mode == AFTER_TAGS and is_event(text, first, end))
            )
            mode = IN_TAGS
            close = find_plain_close(text, first, end)
            if close >= 0:
                following = skip_line_break(text, close + 1, end)
            else:
                following = skip_line(text, first, end)
                body = skip_tags(text, first, following)
                movetext = body if body < following else -1
        else:
            if mode == IN_COMMENT and has_tag and tag_in_comment < 0:
                tag_in_comment = at
            if tag_in_comment >= 0:
                brace = _find_first_brace(text, at, skip_line(text, at, end))
                if brace == 123:
                    at, mode, tag_in_comment = tag_in_comment, BETWEEN_GAMES, -1
                    continue
                tag_in_comment = tag_in_comment if brace == 0 else -1
            begins_game = mode == BETWEEN_GAMES or (
                mode == AFTER_MOVETEXT and is_untagged and _is_first_number(text, first, end)
            )
            is_untagged = is_untagged and not has_tag
            movetext = at
        if begins_game:
            has_moves = movetext == at  # without tags, a result alone is a game
        if movetext >= 0:
            was_in_comment = mode == IN_COMMENT
            following, in_comment, after_result = _scan_movetext_line(
                text, movetext, end, was_in_comment
            )
            mode = IN_COMMENT if in_comment else IN_MOVETEXT
            has_moves = has_moves or was_in_comment or _has_moves(text, movetext, following)
        if (
            not begins_game
            and mode != BETWEEN_GAMES
            and tag_in_comment < 0
            and at - game_start > MAX_GAME_BYTES
        ):
            begins_game, mode = True, IN_MOVETEXT
        if begins_game:
            starts[count] = at
            game_start, is_untagged = at, mode != IN_TAGS and movetext == at
            count += 1
        at = following
    state[_MODE], state[_GAME_START], state[_TAG_IN_COMMENT] = mode, game_start, tag_in_comment
    state[_AFTER_RESULT], state[_UNTAGGED] = int(after_result), int(is_untagged)
    state[_HAS_MOVES] = int(has_moves)
    return count
