"""The bytes of split planes brought together, compiled; apart from what reads files, so that an edit there compiles nothing.

Axes: R rows, S streams of bytes, C words of a stream (eight rows each), P planes.
"""

from typing import Any

from numba import njit

from engine.board.bitboard import U

ROWS_OF_WORD = 8
"""Rows whose bytes of one stream are one word."""
TILE_WORDS = 8
"""Words of each stream that are brought together at a time: a cache line of each, and 64 rows, 39 kB, to write them to."""

_BYTES, _PAIRS, _FOURS = U(0x00FF00FF00FF00FF), U(0x0000FFFF0000FFFF), U(0x00000000FFFFFFFF)


@njit(cache=True, nogil=True, inline="always")
def _swapped(one: Any, other: Any, by: Any, mask: Any) -> Any:
    """Swap the upper parts of `one` with the lower ones of `other` (Hacker's Delight, 7-3)."""
    crossed = ((one >> by) ^ other) & mask
    return one ^ (crossed << by), other ^ crossed


@njit(cache=True, nogil=True)
def join_streams(streams_SC: Any, out_RP: Any) -> None:
    """Bring the bytes of a page's streams, uint64[8 * P, C], together as rows: `out_RP`, uint64[8 * C, P]."""
    for first in range(0, streams_SC.shape[1], TILE_WORDS):
        last = min(first + TILE_WORDS, streams_SC.shape[1])
        for plane in range(out_RP.shape[1]):
            for word in range(first, last):
                a, b = streams_SC[8 * plane, word], streams_SC[8 * plane + 1, word]
                c, d = streams_SC[8 * plane + 2, word], streams_SC[8 * plane + 3, word]
                e, f = streams_SC[8 * plane + 4, word], streams_SC[8 * plane + 5, word]
                g, h = streams_SC[8 * plane + 6, word], streams_SC[8 * plane + 7, word]
                a, b = _swapped(a, b, U(8), _BYTES)
                c, d = _swapped(c, d, U(8), _BYTES)
                e, f = _swapped(e, f, U(8), _BYTES)
                g, h = _swapped(g, h, U(8), _BYTES)
                a, c = _swapped(a, c, U(16), _PAIRS)
                b, d = _swapped(b, d, U(16), _PAIRS)
                e, g = _swapped(e, g, U(16), _PAIRS)
                f, h = _swapped(f, h, U(16), _PAIRS)
                a, e = _swapped(a, e, U(32), _FOURS)
                b, f = _swapped(b, f, U(32), _FOURS)
                c, g = _swapped(c, g, U(32), _FOURS)
                d, h = _swapped(d, h, U(32), _FOURS)
                row = ROWS_OF_WORD * word
                out_RP[row, plane], out_RP[row + 1, plane] = a, b
                out_RP[row + 2, plane], out_RP[row + 3, plane] = c, d
                out_RP[row + 4, plane], out_RP[row + 5, plane] = e, f
                out_RP[row + 6, plane], out_RP[row + 7, plane] = g, h
