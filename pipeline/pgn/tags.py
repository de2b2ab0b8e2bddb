"""Read the values of PGN tags: compiled scans over bytes.

A tag may be indented, share its line with other tags or moves, use any case and any quotes, or
none. A board position found among the tags outside a FEN tag is stored as an invalid FEN, so the
game is dropped.

Axes: G games, F tags.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from engine.board.bitboard import U
from engine.kernels import BORROWING
from pipeline.pgn.text import (
    BRACKET,
    holds_board,
    is_here,
    is_line_end,
    is_space,
    line_end,
    line_stop,
    next_line,
    skip_blanks,
    skip_marks,
    skip_spaces,
    trim_end,
)

TAGS = (
    "Event", "Site", "Date", "White", "Black", "Result", "WhiteElo", "BlackElo",
    "TimeControl", "ECO", "Termination", "Variant", "FEN", "UTCDate", "UTCTime",
    "WhiteTitle", "BlackTitle", "FianchettoLabels", "PuzzleRating", "PuzzleThemes",
    "SetUp",
)  # fmt: skip
"""The tags that are read, in the order of axis F of the spans."""
EVENT, SITE, DATE, WHITE, BLACK, RESULT, WHITE_ELO, BLACK_ELO = range(8)
TIME_CONTROL, ECO, TERMINATION, VARIANT, FEN, UTC_DATE, UTC_TIME = range(8, 15)
WHITE_TITLE, BLACK_TITLE, LABELS, PUZZLE_RATING, PUZZLE_THEMES, SETUP = range(15, 21)


def _name_tables() -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    """Return the lower-case names of TAGS as rows of bytes, and an index by length.

    The index is the tags sorted by length, and the offset of each length in that order.
    """
    lengths = np.array([len(name) for name in TAGS])
    table = np.zeros((len(TAGS), lengths.max()), dtype=np.uint8)
    for row, name in enumerate(TAGS):
        table[row, : len(name)] = np.frombuffer(name.lower().encode(), dtype=np.uint8)
    by_length = np.argsort(lengths)
    return table, by_length, np.searchsorted(lengths[by_length], np.arange(lengths.max() + 2))


_NAMES, _BY_LENGTH, _FIRST = _name_tables()


@njit(**BORROWING)
def _tag_index(text: Any, at: Any, length: Any) -> Any:
    """Return the index in TAGS of the name at `at`, in any case; -1 for another tag."""
    if length + 1 >= len(_FIRST):
        return -1
    for place in range(_FIRST[length], _FIRST[length + 1]):
        index, offset = _BY_LENGTH[place], 0
        while offset < length and text[at + offset] | 32 == _NAMES[index, offset]:
            offset += 1
        if offset == length:
            return index
    return -1


@njit(**BORROWING)
def _is_word(char: Any) -> Any:
    """Return whether a byte is an ASCII letter, a digit or `_`."""
    return 97 <= char | 32 <= 122 or 48 <= char <= 57 or char == 95


@njit(**BORROWING)
def is_tag(text: Any, at: Any, end: Any) -> Any:
    """Return whether `[` is at `at`, followed by optional blanks and a letter."""
    if at >= end or text[at] != 91:
        return False
    at = skip_blanks(text, at + 1, end)
    return at < end and 97 <= text[at] | 32 <= 122


@njit(**BORROWING)
def is_event(text: Any, at: Any, end: Any) -> Any:
    """Return whether the tag at `at` is `Event`, in any case."""
    at = skip_blanks(text, at + 1, end)
    return (
        at + 5 <= end
        and _tag_index(text, at, 5) == EVENT
        and (at + 5 == end or not _is_word(text[at + 5]))
    )


_ENTITY = np.frombuffer(b"&quot;", dtype=np.uint8)


@njit(**BORROWING)
def _quote_length(text: Any, at: Any, end: Any) -> Any:
    """Return the length in bytes of a quotation mark of any kind at `at`, 0 if there is none."""
    char = text[at]
    # " ' ` \\ and the quotation marks of CP1252
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
    return 6 if char == 38 and at + 6 <= end and is_here(text, at, _ENTITY) else 0


@njit(**BORROWING)
def has_quoted_value(text: Any, at: Any, end: Any) -> Any:
    """Return whether a quotation mark follows the name of the tag at `at`, unlike `[Diagram 1]`."""
    at = skip_blanks(text, at + 1, end)
    while at < end and _is_word(text[at]):
        at += 1
    while at < end and (text[at] == 58 or text[at] == 61 or text[at] == 32 or text[at] == 9):  # : =
        at += 1
    return at < end and _quote_length(text, at, end) > 0


@njit(**BORROWING)
def _quote_before(text: Any, at: Any, end: Any) -> Any:
    """Return the length of a quotation mark at the end of `text[at:end]`, 0 if there is none."""
    for length in (6, 3, 2, 1):
        if end - length >= at and _quote_length(text, end - length, end) == length:
            inside = length == 1 and text[end - 1] >= 128 and end - 2 >= at and text[end - 2] >= 128
            return 0 if inside else length  # the last byte of a letter
    return 0


@njit(**BORROWING)
def _trim(text: Any, at: Any, end: Any) -> Any:
    """Return the bounds of a value without surrounding blanks and quotation marks."""
    while at < end and (is_space(text[at]) or _quote_length(text, at, end) > 0):
        at += max(_quote_length(text, at, end), 1)
    end = trim_end(text, at, end)
    while _quote_before(text, at, end) > 0:
        end = trim_end(text, at, end - _quote_before(text, at, end))
    return at, end


@njit(**BORROWING)
def _tag_close(text: Any, at: Any, end: Any) -> Any:
    """Return the offset of the `]` that closes the tag at `at`, or `end` if none does.

    `end` is the end of the line. An unquoted value ends at the first `]`. A quoted value ends at
    the first `]` after a quotation mark that is followed by the end of the line, by another tag, or
    by no further such `]`.
    """
    close = at
    while close < end and text[close] != 93:
        close += 1
    if is_line_end(text, skip_blanks(text, min(close + 1, end), end), end):
        return close
    value = at + 1
    while value < close and (_is_word(text[value]) or is_space(text[value])):
        value += 1
    value += _quote_length(text, value, end)
    if _quote_before(text, at, value) == 0:
        return close
    found = -1
    for place in range(value, min(end, value + MAX_VALUE_BYTES)):
        if text[place] == 93 and _quote_before(text, value, trim_end(text, value, place)) > 0:
            found = place
            after = skip_blanks(text, place + 1, end)
            if is_line_end(text, after, end) or is_tag(text, after, end):
                break
    return close if found < 0 else found


@njit(**BORROWING)
def plain_close(text: Any, at: Any, end: Any) -> Any:
    """Return the offset of the tag's `]` if it is the first on the line and ends the line.

    Returns -1 otherwise. This is the fast path for most tags; others need `_tag_close`.
    """
    if at + 1 >= end or text[at] != 91 or text[at + 1] == 37:
        return -1
    close = line_stop(text, at, end, BRACKET)
    closes = close < end and text[close] == 93 and is_line_end(text, close + 1, end)
    return close if closes else -1


@njit(**BORROWING)
def tags_end(text: Any, at: Any, end: Any) -> Any:
    """Return the first byte of movetext after the tags of the line `text[at:end]`, or `end`."""
    while at < end and text[at] == 91 and not (at + 1 < end and text[at + 1] == 37):
        at = skip_blanks(text, min(_tag_close(text, at, end) + 1, end), end)
    return end if is_line_end(text, at, end) else at


@njit(**BORROWING)
def _has_word(text: Any, at: Any, end: Any, word: Any) -> Any:
    """Return whether `text[at:end]` begins or ends with `word` (lower case, uint8), in any case."""
    if end - at < len(word):
        return False
    first = last = True
    for offset in range(len(word)):
        first &= text[at + offset] | 32 == word[offset]
        last &= text[end - len(word) + offset] | 32 == word[offset]
    return first or last


MAX_VALUE_BYTES = 1 << 12
"""Maximum bytes searched for the end of a quoted value, so hostile lines take linear time."""
LONG_VALUE = 40
"""Minimum length of a value that is searched for a position: several tags on one line may have been
read as one."""
_FEN_WORD = np.frombuffer(b"fen", dtype=np.uint8)
_FINAL_WORDS = np.array(
    [list(word.encode()) for word in ["curr", "fina", "last", "endp", "endf"]], np.uint8
)


@njit(**BORROWING)
def _is_start(text: Any, name: Any, value: Any, end: Any) -> Any:
    """Return whether an unknown tag may contain the start; `CurrentPosition` is the end."""
    if not _has_word(text, name, value, _FEN_WORD) and not holds_board(text, value, end):
        return False
    final = False
    for word in range(len(_FINAL_WORDS)):
        final |= _has_word(text, name, value, _FINAL_WORDS[word])
    return not final


@njit(**BORROWING)
def _store_tag(text: Any, at: Any, close: Any, spans: Any) -> None:
    """Store the span of the value of a tag of TAGS; its brackets are at `at` and `close`."""
    name = skip_blanks(text, at + 1, close)
    value = name
    while value < close and _is_word(text[value]):
        value += 1
    index = _tag_index(text, name, value - name)
    if value < close and not (is_space(text[value]) or _quote_length(text, value, close) > 0):
        equals = (text[value] == 58 or text[value] == 61) and value + 1 < close  # : =
        separated = equals and (
            is_space(text[value + 1]) or _quote_length(text, value + 1, close) > 0
        )
        if not separated and not (equals and index == SETUP):  # `SetUp=1`
            index = -1  # another tag, such as `White-Elo`
    first = skip_spaces(text, value, close)
    last = trim_end(text, first, close)
    if first + 1 < last and text[first] == 34 and text[last - 1] == 34:
        first, last = first + 1, last - 1
    else:
        if first < close and (text[first] == 58 or text[first] == 61):  # : =
            first += 1
        first, last = _trim(text, first, close)
        if index >= 0 and index != FEN and first == last:
            return
    hidden = (
        index >= 0
        and index != FEN
        and last - first >= LONG_VALUE
        and holds_board(text, first, last)
    )
    if index < 0 or hidden:
        if spans[FEN, 1] == 0 and (hidden or _is_start(text, name, value, close)):
            spans[FEN, 0], spans[FEN, 1] = at, close  # starts with a bracket: an invalid FEN
        return
    begun, ended = spans[FEN, 0], spans[FEN, 1]
    if index != FEN or ended == 0 or text[begun] == 91:
        spans[index, 0] = first
    elif ended - begun == last - first and is_here(text, first, text[begun:ended]):
        return
    spans[index, 1] = last  # two FEN tags: the span covers both, an invalid FEN


@njit(**BORROWING)
def scan_tags(text: Any, starts: Any, spans: Any, movetext: Any) -> None:
    """Fill `spans` (int64[G, F, 2]) and `movetext` (int64[G]) for the games at `starts`.

    `starts` is int64[G + 1]. The span of an absent tag is zeros.
    """
    for game in range(len(starts) - 1):
        at, end = starts[game], starts[game + 1]
        spans[game] = 0
        while at < end:
            at = skip_marks(text, at, end)
            first = skip_blanks(text, at, end)
            close = plain_close(text, first, end)
            if close >= 0:
                _store_tag(text, first, close, spans[game])
                at = next_line(text, close + 1, end)
                continue
            following = line_end(text, first, end)
            char = text[first] if first < following else 10
            if char == 91:
                body = tags_end(text, first, following)
                while first < body and text[first] == 91:
                    close = min(_tag_close(text, first, following), body)
                    _store_tag(text, first, close, spans[game])
                    first = skip_blanks(text, min(close + 1, body), body)
                if body < following:
                    at = body
                    break
            elif char == 37 or char == 59:  # % ;
                if first > at:
                    break  # an indented line is movetext
                if spans[game, FEN, 1] == 0 and holds_board(text, first, following):
                    spans[game, FEN, 0] = first  # starts with % or ;: an invalid FEN
                    spans[game, FEN, 1] = following
            elif not is_line_end(text, first, following):
                break
            at = following
        movetext[game] = at


@njit(**BORROWING)
def copy_spans(text: Any, spans: Any, out: Any, offsets: Any) -> None:
    """Copy the bytes of all spans (int64[G, 2]) to `out` (uint8), and their starts to `offsets`.

    `offsets` is int32[G + 1].
    """
    total = 0
    offsets[0] = 0
    for game in range(len(spans)):
        for at in range(spans[game, 0], spans[game, 1]):
            out[total] = text[at]
            total += 1
        offsets[game + 1] = total


@njit(**BORROWING)
def hash_spans(text: Any, spans: Any, out: Any) -> None:
    """Hash each span's bytes (FNV-1a, 64 bits) into `out` (uint64[G])."""
    for game in range(len(spans)):
        total = U(0xCBF2_9CE4_8422_2325)
        for at in range(spans[game, 0], spans[game, 1]):
            total = (total ^ U(text[at])) * U(0x100_0000_01B3)
        out[game] = total
