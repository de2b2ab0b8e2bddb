"""The values of the tags of a chunk's games.

Axes: G games, F tags, S starting positions.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.pgn import replay, tags

NO_LABELS = 255
"""Parity of a game whose moves are all labels."""


class Tagged(NamedTuple):
    """The games of a chunk with the values of their tags."""

    games: replay.Games
    spans: NDArray[np.int64]  # [G, F, 2]
    white_elo: NDArray[np.int32]  # 0: unknown
    black_elo: NDArray[np.int32]
    increment: NDArray[np.int32]  # seconds, -1: unknown
    parity: NDArray[np.uint8]  # 0 or 1: only even or odd plies are labels; NO_LABELS: a game, all plies are
    setups: NDArray[np.uint64]  # [S, 16] starting positions; the first is the usual one


def numbers(text: NDArray[np.uint8], spans: NDArray[np.int64], missing: int) -> NDArray[np.int32]:
    """Return the numbers that tag values begin with, `missing` if there is none, int32[G]."""
    out = np.empty(len(spans), dtype=np.int32)
    tags.read_integers(text, spans, missing, out)
    return out


def tag_value(text: NDArray[np.uint8], span: NDArray[np.int64]) -> str:
    """Return the text of a span; invalid UTF-8 is replaced."""
    return text[span[0] : span[1]].tobytes().decode("utf-8", "replace")


def matches(text: NDArray[np.uint8], spans: NDArray[np.int64], wanted: Callable[[str], bool]) -> NDArray[np.bool_]:
    """Return whether each span's text is `wanted`, bool[G]; each spelling is checked once."""
    hashes = np.zeros(len(spans), dtype=np.uint64)
    tags.hash_spans(text, spans, hashes)
    _, first, back = np.unique(hashes, return_index=True, return_inverse=True)
    return np.array([wanted(tag_value(text, spans[index])) for index in first], dtype=np.bool_)[back]
