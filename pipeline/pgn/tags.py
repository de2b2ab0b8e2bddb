"""Find the values of PGN tags, in compiled code.

A tag may be indented, may share its line with other tags or moves, and may use any case and any
quotation marks or none. If a game has no FEN tag, but another tag may hold its starting position,
that tag is stored as an invalid FEN, so the game is dropped.

A span is the offsets of a value's first byte and of its end. Kernels take and return offsets of
bytes, as in text.py.

Axes: G games, F tags.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from engine.board.bitboard import U
from engine.kernels import NO_REFCOUNT
from pipeline.pgn.text import (
    CLOSING_BRACKET,
    find_line_stop,
    has_board,
    has_word_at,
    is_at_line_end,
    is_space,
    skip_blanks,
    skip_byte_order_marks,
    skip_line,
    skip_line_break,
    skip_spaces,
    trim_end,
)

TAGS = (
    "Event", "Site", "Date", "White", "Black", "Result", "WhiteElo", "BlackElo",
    "TimeControl", "ECO", "Termination", "Variant", "FEN", "UTCDate", "UTCTime",
    "WhiteTitle", "BlackTitle", "FianchettoLabels", "PuzzleRating", "PuzzleThemes",
    "SetUp",
)  # fmt: skip
"""The tags whose values are found, in the order of axis F."""
EVENT, SITE, DATE, WHITE, BLACK, RESULT, WHITE_ELO, BLACK_ELO = range(8)
TIME_CONTROL, ECO, TERMINATION, VARIANT, FEN, UTC_DATE, UTC_TIME = range(8, 15)
WHITE_TITLE, BLACK_TITLE, LABELS, PUZZLE_RATING, PUZZLE_THEMES, SETUP = range(15, 21)


def _build_name_tables() -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    """Return tables for looking up the names of TAGS.

    They are the names in lower case as rows of bytes, the tags sorted by length, and the place of
    the first tag of each length in that order.
    """
    lengths = np.array([len(name) for name in TAGS])
    table = np.zeros((len(TAGS), lengths.max()), dtype=np.uint8)
    for row, name in enumerate(TAGS):
        table[row, : len(name)] = np.frombuffer(name.lower().encode(), dtype=np.uint8)
    by_length = np.argsort(lengths)
    return table, by_length, np.searchsorted(lengths[by_length], np.arange(lengths.max() + 2))


_TAG_NAMES, _TAGS_BY_LENGTH, _FIRST_OF_LENGTH = _build_name_tables()


@njit(**NO_REFCOUNT)
def _find_tag(text: Any, at: Any, length: Any) -> Any:
    """Return the index in TAGS of the name at `at`, ignoring case; -1 if TAGS lacks it."""
    if length + 1 >= len(_FIRST_OF_LENGTH):
        return -1
    for place in range(_FIRST_OF_LENGTH[length], _FIRST_OF_LENGTH[length + 1]):
        index, offset = _TAGS_BY_LENGTH[place], 0
        while offset < length and text[at + offset] | 32 == _TAG_NAMES[index, offset]:
            offset += 1
        if offset == length:
            return index
    return -1


@njit(**NO_REFCOUNT)
def _is_word(char: Any) -> Any:
    """Return whether a byte is an ASCII letter, a digit or `_`."""
    return 97 <= char | 32 <= 122 or 48 <= char <= 57 or char == 95


@njit(**NO_REFCOUNT)
def is_tag(text: Any, at: Any, end: Any) -> Any:
    """Return whether `[` is at `at`, followed by optional blanks and a letter."""
    if at >= end or text[at] != 91:
        return False
    at = skip_blanks(text, at + 1, end)
    return at < end and 97 <= text[at] | 32 <= 122


@njit(**NO_REFCOUNT)
def is_event(text: Any, at: Any, end: Any) -> Any:
    """Return whether the tag at `at` is `Event`, in any case."""
    at = skip_blanks(text, at + 1, end)
    return (
        at + 5 <= end
        and _find_tag(text, at, 5) == EVENT
        and (at + 5 == end or not _is_word(text[at + 5]))
    )


_QUOTE_ENTITY = np.frombuffer(b"&quot;", dtype=np.uint8)


@njit(**NO_REFCOUNT)
def _measure_quote(text: Any, at: Any, end: Any) -> Any:
    """Return the length in bytes of a quotation mark of any kind at `at`, 0 if there is none."""
    char = text[at]
    # " ' ` \ and the quotation marks of CP1252
    if char == 34 or char == 39 or char == 96 or char == 92 or 0x91 <= char <= 0x94:
        return 1
    if char == 0xC2 and at + 1 < end and (text[at + 1] == 0xAB or text[at + 1] == 0xBB):
        return 2
    if (
        char == 0xE2
        and at + 2 < end
        and text[at + 1] == 0x80
        and (0x98 <= text[at + 2] <= 0x9F or text[at + 2] >= 0xB2)
    ):
        return 3
    return 6 if char == 38 and at + 6 <= end and has_word_at(text, at, _QUOTE_ENTITY) else 0


@njit(**NO_REFCOUNT)
def has_quoted_value(text: Any, at: Any, end: Any) -> Any:
    """Return whether a quotation mark follows the name of the tag at `at`, unlike `[Diagram 1]`."""
    at = skip_blanks(text, at + 1, end)
    while at < end and _is_word(text[at]):
        at += 1
    while at < end and (text[at] == 58 or text[at] == 61 or text[at] == 32 or text[at] == 9):  # : =
        at += 1
    return at < end and _measure_quote(text, at, end) > 0


@njit(**NO_REFCOUNT)
def _measure_quote_before(text: Any, at: Any, end: Any) -> Any:
    """Return the length of a quotation mark at the end of `text[at:end]`, 0 if there is none."""
    for length in (6, 3, 2, 1):
        if end - length >= at and _measure_quote(text, end - length, end) == length:
            ends_letter = (
                length == 1 and text[end - 1] >= 128 and end - 2 >= at and text[end - 2] >= 128
            )
            return 0 if ends_letter else length
    return 0


@njit(**NO_REFCOUNT)
def _trim_value(text: Any, at: Any, end: Any) -> Any:
    """Return the bounds of a value without surrounding blanks and quotation marks."""
    while at < end and (is_space(text[at]) or _measure_quote(text, at, end) > 0):
        at += max(_measure_quote(text, at, end), 1)
    end = trim_end(text, at, end)
    while _measure_quote_before(text, at, end) > 0:
        end = trim_end(text, at, end - _measure_quote_before(text, at, end))
    return at, end


@njit(**NO_REFCOUNT)
def _find_tag_close(text: Any, at: Any, end: Any) -> Any:
    """Return the offset of the `]` that closes the tag at `at`, or `end` if none does.

    `end` is the end of the line. The first `]` closes the tag if the line ends there or the value
    is not quoted. Otherwise, the first `]` after a quotation mark and before the end of the line or
    another tag closes it; failing that, the last `]` after a quotation mark, or else the first `]`.
    """
    close = at
    while close < end and text[close] != 93:
        close += 1
    if is_at_line_end(text, skip_blanks(text, min(close + 1, end), end), end):
        return close
    value = at + 1
    while value < close and (_is_word(text[value]) or is_space(text[value])):
        value += 1
    value += _measure_quote(text, value, end)
    if _measure_quote_before(text, at, value) == 0:
        return close
    found = -1
    for place in range(value, min(end, value + MAX_VALUE_BYTES)):
        if text[place] != 93:
            continue
        if _measure_quote_before(text, value, trim_end(text, value, place)) > 0:
            found = place
            after = skip_blanks(text, place + 1, end)
            if is_at_line_end(text, after, end) or is_tag(text, after, end):
                break
    return close if found < 0 else found


@njit(**NO_REFCOUNT)
def find_plain_close(text: Any, at: Any, end: Any) -> Any:
    """Return the offset of the first `]` if it ends the line and a tag begins at `at`; else -1.

    This is the fast path for most tags. Others need `_find_tag_close`.
    """
    if at + 1 >= end or text[at] != 91 or text[at + 1] == 37:
        return -1
    close = find_line_stop(text, at, end, CLOSING_BRACKET)
    closes = close < end and text[close] == 93 and is_at_line_end(text, close + 1, end)
    return close if closes else -1


@njit(**NO_REFCOUNT)
def skip_tags(text: Any, at: Any, end: Any) -> Any:
    """Return the first byte of movetext after the tags of the line `text[at:end]`, or `end`."""
    while at < end and text[at] == 91 and not (at + 1 < end and text[at + 1] == 37):
        at = skip_blanks(text, min(_find_tag_close(text, at, end) + 1, end), end)
    return end if is_at_line_end(text, at, end) else at


@njit(**NO_REFCOUNT)
def _begins_or_ends_with(text: Any, at: Any, end: Any, word: Any) -> Any:
    """Return whether `text[at:end]` begins or ends with `word` (lower case, uint8), in any case."""
    if end - at < len(word):
        return False
    first = last = True
    for offset in range(len(word)):
        first &= text[at + offset] | 32 == word[offset]
        last &= text[end - len(word) + offset] | 32 == word[offset]
    return first or last


MAX_VALUE_BYTES = 1 << 12
"""Maximum bytes searched for the end of a quoted value, so that hostile lines take linear time."""
MIN_BOARD_BYTES = 40
"""Minimum bytes of a known tag's value to search it for a board, since it may hold more tags."""
_FEN_WORD = np.frombuffer(b"fen", dtype=np.uint8)
_END_POSITION_WORDS = np.array(
    [list(word.encode()) for word in ["curr", "fina", "last", "endp", "endf"]], np.uint8
)
"""Beginnings or ends of the names of tags with a later position, such as CurrentPosition."""


@njit(**NO_REFCOUNT)
def _may_hold_start(text: Any, name: Any, value: Any, end: Any) -> Any:
    """Return whether a tag that is not in TAGS may hold the game's starting position."""
    if not _begins_or_ends_with(text, name, value, _FEN_WORD) and not has_board(text, value, end):
        return False
    is_later = False
    for word in range(len(_END_POSITION_WORDS)):
        is_later |= _begins_or_ends_with(text, name, value, _END_POSITION_WORDS[word])
    return not is_later


@njit(**NO_REFCOUNT)
def _store_tag(text: Any, at: Any, close: Any, spans: Any) -> None:
    """Store the span of the value of the tag whose brackets are at `at` and `close`.

    A tag that is not in TAGS is ignored, unless it may hold the starting position.
    """
    name = skip_blanks(text, at + 1, close)
    value = name
    while value < close and _is_word(text[value]):
        value += 1
    index = _find_tag(text, name, value - name)
    if value < close and not (is_space(text[value]) or _measure_quote(text, value, close) > 0):
        has_sign = (text[value] == 58 or text[value] == 61) and value + 1 < close  # : =
        is_separated = has_sign and (
            is_space(text[value + 1]) or _measure_quote(text, value + 1, close) > 0
        )
        if not is_separated and not (has_sign and index == SETUP):  # `SetUp=1`
            index = -1  # another tag, such as `White-Elo`
    first = skip_spaces(text, value, close)
    last = trim_end(text, first, close)
    if first + 1 < last and text[first] == 34 and text[last - 1] == 34:
        first, last = first + 1, last - 1
    else:
        if first < close and (text[first] == 58 or text[first] == 61):  # : =
            first += 1
        first, last = _trim_value(text, first, close)
        if index >= 0 and index != FEN and first == last:
            return
    holds_board = (
        index >= 0
        and index != FEN
        and last - first >= MIN_BOARD_BYTES
        and has_board(text, first, last)
    )
    if index < 0 or holds_board:
        if spans[FEN, 1] == 0 and (holds_board or _may_hold_start(text, name, value, close)):
            spans[FEN, 0], spans[FEN, 1] = at, close  # an invalid FEN, since it begins with `[`
        return
    fen_start, fen_end = spans[FEN, 0], spans[FEN, 1]
    if index != FEN or fen_end == 0 or text[fen_start] == 91:
        spans[index, 0] = first
    elif fen_end - fen_start == last - first and has_word_at(text, first, text[fen_start:fen_end]):
        return
    spans[index, 1] = last  # after two different FEN tags, the span covers both: an invalid FEN


@njit(**NO_REFCOUNT)
def scan_tags(text: Any, starts: Any, spans: Any, movetext: Any) -> None:
    """Fill in the spans of the tags, int64[G, F, 2], and the start of each movetext, int64[G].

    `starts` (int64[G + 1]) are the first bytes of the games and the end of the last one. The span
    of an absent tag is (0, 0).
    """
    for game in range(len(starts) - 1):
        at, end = starts[game], starts[game + 1]
        spans[game] = 0
        while at < end:
            at = skip_byte_order_marks(text, at, end)
            first = skip_blanks(text, at, end)
            close = find_plain_close(text, first, end)
            if close >= 0:
                _store_tag(text, first, close, spans[game])
                at = skip_line_break(text, close + 1, end)
                continue
            following = skip_line(text, first, end)
            char = text[first] if first < following else 10
            if char == 91:
                body = skip_tags(text, first, following)
                while first < body and text[first] == 91:
                    close = min(_find_tag_close(text, first, following), body)
                    _store_tag(text, first, close, spans[game])
                    first = skip_blanks(text, min(close + 1, body), body)
                if body < following:
                    at = body
                    break
            elif char == 37 or char == 59:  # % ;
                if first > at:
                    break  # an indented line is movetext
                if spans[game, FEN, 1] == 0 and has_board(text, first, following):
                    spans[game, FEN, 0] = first  # an invalid FEN, since it begins with `%` or `;`
                    spans[game, FEN, 1] = following
            elif not is_at_line_end(text, first, following):
                break
            at = following
        movetext[game] = at


@njit(**NO_REFCOUNT)
def copy_spans(text: Any, spans: Any, out: Any, offsets: Any) -> None:
    """Copy the bytes of all spans, int64[G, 2], to `out`, uint8.

    Span `g` becomes `out[offsets[g]:offsets[g + 1]]`; `offsets` is int32[G + 1].
    """
    total = 0
    offsets[0] = 0
    for game in range(len(spans)):
        for at in range(spans[game, 0], spans[game, 1]):
            out[total] = text[at]
            total += 1
        offsets[game + 1] = total


@njit(**NO_REFCOUNT)
def hash_spans(text: Any, spans: Any, out: Any) -> None:
    """Write the hash (FNV-1a, 64 bits) of each span's bytes to `out`, uint64[G]."""
    for game in range(len(spans)):
        total = U(0xCBF2_9CE4_8422_2325)
        for at in range(spans[game, 0], spans[game, 1]):
            total = (total ^ U(text[at])) * U(0x100_0000_01B3)
        out[game] = total
