"""Counting without holding everything: pairs of a 64-bit key and a small number, over any number of rows.

    rows -> a buffer -> counted, sorted -> files by the first bits of the key -> part by part: sorted, counted

Memory is a buffer and one part, whatever the number of rows: parts are as many as the expected rows need. A key that stands
in every game (the starting position) is counted in each buffer before it is written, so it makes no part large.

Axes: R rows, N distinct pairs.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import ConfigError

BUFFER_ROWS = 1 << 20
"""Rows that are counted together before they are written: 12 MB, and as much again three times while they are sorted."""
PART_ROWS = 1 << 19
"""Pairs of a part, about: 8 MB as they lie in its file, and tens of times that in the tables that are made of them."""
MOST_BITS = 14

PAIR = np.dtype([("key", "<u8"), ("what", "<u4"), ("count", "<u4")])

Pairs = tuple[NDArray[np.uint64], NDArray[np.uint32], NDArray[np.int64]]
"""keys [N], whats [N], counts [N]; sorted by key, then by what."""


class Tally:
    """Counts of pairs (key, what); `what` is any uint32. Keys are hashes: their first bits must be evenly spread."""

    def __init__(self, folder: Path, expected: int) -> None:
        """Spill into an empty folder; `expected` is how many rows will come, about. ConfigError where the disk is full."""
        self.folder = folder
        self.bits = min(MOST_BITS, max(0, (expected - 1) // PART_ROWS).bit_length())
        self.buffer: list[tuple[NDArray[np.uint64], NDArray[np.uint32]]] = []
        self.buffered = self.rows = self.spilled = 0

    def add(self, keys_R: NDArray[np.uint64], what_R: NDArray[np.uint32]) -> None:
        """Count rows."""
        self.buffer.append((keys_R, what_R))
        self.buffered += len(keys_R)
        self.rows += len(keys_R)
        if self.buffered >= BUFFER_ROWS:
            self._spill()

    def _counted(self) -> Pairs:
        """Empty the buffer and count what was in it."""
        keys = np.concatenate([keys for keys, _ in self.buffer])
        what = np.concatenate([what for _, what in self.buffer])
        self.buffer, self.buffered = [], 0
        return counted(keys, what, np.ones(len(keys), dtype=np.int64))

    def _spill(self) -> None:
        """Write the buffer's pairs behind what their parts hold."""
        keys, what, counts = self._counted()
        pairs = np.empty(len(keys), dtype=PAIR)
        pairs["key"], pairs["what"], pairs["count"] = keys, what, counts
        bounds = [0, len(keys)]
        if self.bits:
            firsts = np.arange(1, 1 << self.bits, dtype=np.uint64) << np.uint64(64 - self.bits)
            bounds[1:1] = np.searchsorted(keys, firsts).tolist()
        for part, (begin, end) in enumerate(itertools.pairwise(bounds)):
            if begin < end:
                self._append(self.folder / f"part-{part:05d}", pairs[begin:end].tobytes())
        self.spilled += len(pairs)

    @staticmethod
    def _append(path: Path, data: bytes) -> None:
        try:
            with path.open("ab") as file:
                file.write(data)
        except OSError as error:
            raise ConfigError(
                f"temporary files cannot be written in {path.parents[1]} ({error.strerror}): make room there, or set TMPDIR"
            ) from error

    def parts(self) -> Iterator[Pairs]:
        """Give the pairs part by part, keys ascending throughout: all pairs of a key stand in one part."""
        if not self.spilled:
            if self.buffer:
                yield self._counted()
            return
        if self.buffer:
            self._spill()
        for path in sorted(self.folder.glob("part-*")):
            pairs = np.fromfile(path, dtype=PAIR)
            path.unlink()
            yield counted(pairs["key"].copy(), pairs["what"].copy(), pairs["count"].astype(np.int64))


def counted(keys: NDArray[np.uint64], what: NDArray[np.uint32], counts: NDArray[np.int64]) -> Pairs:
    """Sort pairs, and add up the counts of equal ones."""
    if not len(keys):
        return keys, what, counts
    order = np.lexsort((what, keys))
    keys, what, counts = keys[order], what[order], counts[order]
    first = np.empty(len(keys), dtype=np.bool_)
    first[0] = True
    np.logical_or(keys[1:] != keys[:-1], what[1:] != what[:-1], out=first[1:])
    at = np.flatnonzero(first)
    return keys[at], what[at], np.add.reduceat(counts, at)


def sums(values: NDArray[Any], at: NDArray[np.int64]) -> NDArray[np.int64]:
    """Add up values [N] over the groups that begin at `at`."""
    return np.add.reduceat(values.astype(np.int64), at) if len(at) else np.zeros(0, dtype=np.int64)
