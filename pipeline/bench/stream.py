"""An endless dump: a real one repeated with other game ids and games, made as it is read.

A repeat is the same text with other site ids and with the last `repeat % VARIANTS` half-moves of each game replaced by
spaces, so that up to VARIANTS repeats hold no game twice (a game's identity is its moves), at the speed of copying memory.

Axes: G games of the seed.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.dumps.reader import Source, chunks

VARIANTS = 16
_SITE = re.compile(rb'\[Site "[^"\n]*?([A-Za-z0-9]{8})"')
_TOKEN = re.compile(rb"\{[^}]*\}|;[^\n]*|[^\s{};]+")
_NO_MOVE = re.compile(rb"\d+\.*$|[$(){].*|;.*|1-0$|0-1$|1/2-1/2$|\*$", re.DOTALL)
_DIGITS = np.frombuffer(b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz", dtype=np.uint8)


class Repeats:
    """The repeated text, and the offsets of its ids and last moves."""

    def __init__(self, pgn: Path, seed_bytes: int) -> None:
        """Read about `seed_bytes` of a dump's first games."""
        chunk = next(chunks([Source(str(pgn))], seed_bytes))
        text = bytes(chunk.text)
        self.text = np.frombuffer(text, dtype=np.uint8)
        ends = [*chunk.starts[1:], len(text)]
        self.first_game = memoryview(text)[: ends[0]]
        found = [_SITE.search(text, start, end) for start, end in zip(chunk.starts, ends, strict=True)]
        self.sites_G = np.array([match.start(1) for match in found if match], dtype=np.int64)
        self.tails = [_tail(text, int(start), int(end)) for start, end in zip(chunk.starts, ends, strict=True)]

    def read(self, size: int) -> Iterator[memoryview]:
        """Yield at most `size` bytes of whole games."""
        given = repeat = 0
        while given < size:
            text = self._repeat(repeat)
            if given + len(text) > size:
                cut = text[: size - given].tobytes().rfind(b"\n[Event ")
                text = text[: max(cut + 1, 0)]
                size = given + len(text)
            yield text.data
            given, repeat = given + len(text), repeat + 1

    def _repeat(self, repeat: int) -> NDArray[np.uint8]:
        """Return one repeat of the text."""
        text = self.text.copy()
        numbers_G = repeat * len(self.sites_G) + np.arange(len(self.sites_G))
        for place in range(8):
            text[self.sites_G + 7 - place] = _DIGITS[numbers_G // 62**place % 62]
        dropped = repeat % VARIANTS
        if dropped:
            for plies, end in self.tails:
                if len(plies) > dropped:  # a move is left
                    text[plies[-dropped] : end] = ord(" ")
        return text


def _tail(text: bytes, start: int, end: int) -> tuple[list[int], int]:
    """Return the offsets of a game's last VARIANTS half-moves, and of its result."""
    movetext = max(text.find(b"\n\n", start, end), start)
    plies: list[int] = []
    result = end
    for token in _TOKEN.finditer(text, movetext, end):
        if not _NO_MOVE.match(token.group()):
            plies.append(token.start())
        result = token.start()
    return plies[-VARIANTS:], result
