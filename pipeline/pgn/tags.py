"""The beginnings of games in PGN text, and the values of their tags: compiled scans over bytes.

`split` finds the games of a stream, block by block; `scan_tags` finds the wanted tags of each game. Games and tags follow
python-chess's reader: a blank line ends a game, a line that begins with `[` belongs to the tags only before the moves, a
malformed tag is ignored. In three places more games are recovered:

    `[Event` after a line that ends in a result begins a game, without a blank line too
    `[Event` after a blank line inside a comment begins a game: that comment was never closed
    a UTF-8 byte-order mark at the start of any line is ignored: joined files have one each

Axes: G games, F tags.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from engine.board.bitboard import U
from engine.kernels import BORROWING
from pipeline.pgn.san import UNKNOWN_RESULT, is_space, read_result

TAGS = (
    "Event", "Site", "Date", "White", "Black", "Result", "WhiteElo", "BlackElo",
    "TimeControl", "ECO", "Termination", "Variant", "FEN", "UTCDate", "UTCTime",
    "WhiteTitle", "BlackTitle", "FianchettoLabels", "PuzzleRating", "PuzzleThemes",
)  # fmt: skip
"""The wanted tags, in the order of the spans' second axis."""
EVENT, SITE, DATE, WHITE, BLACK, RESULT, WHITE_ELO, BLACK_ELO = range(8)
TIME_CONTROL, ECO, TERMINATION, VARIANT, FEN, UTC_DATE, UTC_TIME = range(8, 15)
WHITE_TITLE, BLACK_TITLE, LABELS, PUZZLE_RATING, PUZZLE_THEMES = range(15, 20)

BETWEEN, HEADERS, GAP, MOVETEXT, COMMENT = range(5)
"""States of the splitter: between games, in tags, after the blank line behind them, in movetext, in a comment."""

LONGEST_GAME = 1 << 24
"""Bytes after which a game is cut, so that a comment that never ends takes bounded memory."""


class Splitter:
    """The state of `split` between two blocks of a stream."""

    def __init__(self) -> None:
        self.state = np.array([BETWEEN, 1, 0, 0], dtype=np.int64)
        """State; whether the line before was blank; where the open game began; whether a movetext line ended in a result."""


@njit(**BORROWING)
def _skip_marks(text: Any, at: Any, end: Any) -> Any:
    """Return the first byte from `at` on that begins no UTF-8 byte-order mark: joined files have one each."""
    while at + 3 <= end and text[at] == 0xEF and text[at + 1] == 0xBB and text[at + 2] == 0xBF:
        at += 3
    return at


LOOK = 64
"""Bytes that are compared at a time: the compiler makes vector instructions of it, and few lines are shorter."""


@njit(**BORROWING)
def _line_stop(text: Any, at: Any, end: Any) -> Any:
    """Return the first byte from `at` on that is LF, CR or a semicolon, or `end`."""
    while at + LOOK <= end:
        found, first = np.uint8(0), np.uint64(at)
        for offset in range(LOOK):  # without break and negative indices, which would prevent vector instructions
            char = text[first + np.uint64(offset)]
            found |= np.uint8((char == 10) | (char == 13) | (char == 59))
        if found:
            break
        at += LOOK
    while at < end and text[at] != 10 and text[at] != 13 and text[at] != 59:
        at += 1
    return at


@njit(**BORROWING)
def _line_end(text: Any, at: Any, end: Any) -> Any:
    """Return the byte after the line end that follows `at` (LF, CR LF or CR alone), or `end`."""
    at = _line_stop(text, at, end)
    while at < end and text[at] == 59:
        at = _line_stop(text, at + 1, end)
    if at < end and text[at] == 13 and at + 1 < end and text[at + 1] == 10:
        at += 1
    return min(at + 1, end)


@njit(**BORROWING)
def _is_event(text: Any, at: Any, end: Any) -> Any:
    """Return whether `[Event ` begins at `at`."""
    return (
        at + 7 <= end
        and text[at + 1] == 69
        and text[at + 2] == 118
        and text[at + 3] == 101
        and text[at + 4] == 110
        and text[at + 5] == 116
        and is_space(text[at + 6])
    )


@njit(**BORROWING)
def _ends_in_result(text: Any, at: Any, end: Any) -> Any:
    """Return whether the last word of the line `text[at:end]` is `1-0`, `0-1`, `1/2-1/2` or `*`."""
    while end > at and is_space(text[end - 1]):
        end -= 1
    if end > at and text[end - 1] == 42:
        return True
    if end - 3 >= at and read_result(text, end - 3, end) != UNKNOWN_RESULT:
        return True
    return end - 7 >= at and read_result(text, end - 7, end) == 0


@njit(**BORROWING)
def _walk_moves(text: Any, at: Any, end: Any, commented: Any) -> Any:
    """Walk one line of movetext: return (first byte of the next line, whether a comment is open there)."""
    stop = _line_stop(text, at, end)
    if stop < end and text[stop] == 59:
        return _walk_bytes(text, at, end, commented)
    brace = stop - 1  # comments do not nest, so the last brace decides
    while brace >= at and text[brace] != 123 and text[brace] != 125:
        brace -= 1
    if brace >= at:
        commented = text[brace] == 123
    return _line_end(text, stop, end), commented


@njit(**BORROWING)
def _walk_bytes(text: Any, at: Any, end: Any, commented: Any) -> Any:
    """Walk a line with a semicolon, which may begin a comment, as `_walk_moves` does."""
    while at < end:
        char = text[at]
        if char == 10 or char == 13:
            return _line_end(text, at, end), commented
        if commented:
            commented = char != 125
        elif char == 123:
            commented = True
        elif char == 59:
            return _line_end(text, at, end), False
        at += 1
    return end, commented


@njit(**BORROWING)
def split(text: Any, at: Any, end: Any, state: Any, starts: Any) -> Any:
    """Find the games that begin in whole lines `text[at:end]`: fill `starts` (int64) and return how many.

    `state` (int64[4]) carries over from block to block; positions are of `text`, so the caller moves `state[2]` with it.
    `starts` must have one entry for each two bytes of the block, since no game is shorter: bounds are not checked.
    """
    count = 0
    mode, blank, begun, finished = state[0], state[1] != 0, state[2], state[3] != 0
    while at < end:
        at = _skip_marks(text, at, end)
        if at == end:
            break
        first = at
        while first < end and is_space(text[first]) and text[first] != 10 and text[first] != 13:
            first += 1
        empty = first >= end or text[first] == 10 or text[first] == 13
        char = text[at]
        event = char == 91 and _is_event(text, at, end)
        fresh = False
        following = at
        if empty:
            if mode == HEADERS:
                mode = GAP
            elif mode == MOVETEXT:
                mode = BETWEEN
            following = _line_end(text, at, end)
        elif mode != COMMENT and (char == 37 or char == 59):  # a line that begins with % or ; is a remark
            following = _line_end(text, at, end)
        elif char == 91 and mode in (BETWEEN, HEADERS, GAP):
            fresh = mode == BETWEEN or (mode == GAP and event)
            mode = HEADERS
            following = _line_end(text, at, end)
        elif event and (blank if mode == COMMENT else finished):
            fresh, mode = True, HEADERS
            following = _line_end(text, at, end)
        else:
            fresh = mode == BETWEEN
            following, commented = _walk_moves(text, at, end, mode == COMMENT)
            mode = COMMENT if commented else MOVETEXT
            finished = not commented and _ends_in_result(text, at, following)
        if not fresh and mode != BETWEEN and at - begun > LONGEST_GAME:
            fresh, mode = True, MOVETEXT
        if fresh:
            starts[count] = at
            begun = at
            count += 1
        blank = empty
        at = following
    state[0], state[1], state[2], state[3] = mode, int(blank), begun, int(finished)
    return count


def _name_table() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the wanted tag names as one row of bytes each, and their lengths."""
    width = max(len(name) for name in TAGS)
    table = np.zeros((len(TAGS), width), dtype=np.uint8)
    for row, name in enumerate(TAGS):
        table[row, : len(name)] = np.frombuffer(name.encode(), dtype=np.uint8)
    return table, np.array([len(name) for name in TAGS], dtype=np.int64)


_NAMES, _LENGTHS = _name_table()


@njit(**BORROWING)
def _tag_index(text: Any, at: Any, length: Any) -> Any:
    """Return the index in TAGS of the name at `at`, -1 for another tag."""
    for index in range(len(_LENGTHS)):
        if _LENGTHS[index] == length and text[at] == _NAMES[index, 0]:
            same = True
            for offset in range(1, length):
                if text[at + offset] != _NAMES[index, offset]:
                    same = False
                    break
            if same:
                return index
    return -1


@njit(**BORROWING)
def _scan_tag(text: Any, at: Any, end: Any, spans: Any) -> None:
    """Read one line `[Name "value"]` and store the value's span if the tag is wanted; skip a malformed line."""
    at += 1
    name = at
    while at < end and not is_space(text[at]) and text[at] != 34:
        at += 1
    length = at - name
    while at < end and is_space(text[at]):
        at += 1
    last = end
    while last > at and is_space(text[last - 1]):
        last -= 1
    last -= 2  # the quote before the bracket
    if at > name + length and last > at and text[at] == 34 and text[last] == 34 and text[last + 1] == 93:
        index = _tag_index(text, name, length)
        if index >= 0:
            spans[index, 0] = at + 1
            spans[index, 1] = last


@njit(**BORROWING)
def scan_tags(text: Any, starts: Any, spans: Any, movetext: Any) -> None:
    """Fill `spans` (int64[G, F, 2], zeros: absent) and `movetext` (int64[G]) for games at `starts` (int64[G + 1])."""
    for game in range(len(starts) - 1):
        at, end = starts[game], starts[game + 1]
        spans[game] = 0
        while at < end:
            following = _line_end(text, at, end)
            at = _skip_marks(text, at, following)
            char = text[at] if at < following else 10
            if char == 91:
                _scan_tag(text, at, following, spans[game])
            elif char != 37 and char != 59:  # % ;
                first = at
                while first < following and is_space(text[first]):
                    first += 1
                if first < following:
                    break
            at = following
        movetext[game] = at


@njit(**BORROWING)
def read_integers(text: Any, spans: Any, missing: Any, out: Any) -> None:
    """Read the number that begins each span (int64[G, 2]) into `out` (int32[G]); `missing` where there is none."""
    for game in range(len(spans)):
        at, end = spans[game, 0], spans[game, 1]
        value, digits = 0, 0
        while at < end and 48 <= text[at] <= 57 and digits < 9:
            value = value * 10 + int(text[at]) - 48
            digits += 1
            at += 1
        out[game] = value if digits > 0 else missing


@njit(cache=True, nogil=True)
def spans_after(text: Any, spans: Any, char: Any) -> Any:
    """Return the spans of what follows the last `char` in each span (the whole span where it is absent), int64[G, 2]."""
    rest = spans.copy()
    for game in range(len(spans)):
        for at in range(spans[game, 0], spans[game, 1]):
            if text[at] == char:
                rest[game, 0] = at + 1
    return rest


@njit(**BORROWING)
def copy_spans(text: Any, spans: Any, out: Any, offsets: Any) -> None:
    """Copy the bytes of all spans (int64[G, 2]) into `out` (uint8), and where each begins into `offsets` (int32[G + 1])."""
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
