"""Count pairs of a 64-bit key and a small number over any number of rows, in bounded memory.

    rows -> a buffer -> counted -> files by the first bits of the key -> file by file: counted again

Memory is one buffer and one file's pairs: the more rows are expected, the more files there are. Buffers are counted before
they are written, so a key of every game (the starting position) makes no file large.

Axes: R rows.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import ConfigError

if TYPE_CHECKING:
    import polars as pl

BUFFER_ROWS = 1 << 20
"""Rows that are counted together before they are written."""
PART_ROWS = 1 << 21
"""Pairs per file, about."""
MOST_BITS = 12

PAIR = np.dtype([("key", "<u8"), ("what", "<u4"), ("count", "<u4")])


class Tally:
    """Counts of pairs (key, what); `what` is any uint32. Keys are hashes: their first bits must be evenly spread."""

    def __init__(self, folder: Path, expected: int) -> None:
        """Write into an empty folder; `expected` is about how many rows will come."""
        self.folder = folder
        self.bits = min(MOST_BITS, max(0, (expected - 1) // PART_ROWS).bit_length())
        self.buffer: list[pl.DataFrame] = []
        self.buffered = 0

    def add(self, keys_R: NDArray[np.uint64], what_R: NDArray[np.uint32]) -> None:
        """Count rows; raises ConfigError if the disk is full."""
        import polars as pl

        self.buffer.append(pl.DataFrame({"key": keys_R, "what": what_R}))
        self.buffered += len(keys_R)
        if self.buffered >= BUFFER_ROWS:
            self._spill()

    def _spill(self) -> None:
        """Append the buffer's pairs to the files of their keys."""
        import polars as pl

        pairs = pl.concat(self.buffer).group_by("key", "what").len("count").sort("key")
        self.buffer, self.buffered = [], 0
        records = np.empty(len(pairs), dtype=PAIR)
        for name in pairs.columns:
            records[name] = pairs[name].to_numpy()
        firsts = np.arange(1, 1 << self.bits, dtype=np.uint64) << np.uint64(64 - self.bits)
        for part, some in enumerate(np.split(records, np.searchsorted(records["key"], firsts))):
            if len(some):
                self._append(self.folder / f"part-{part:05d}", some.tobytes())

    @staticmethod
    def _append(path: Path, data: bytes) -> None:
        try:
            with path.open("ab") as file:
                file.write(data)
        except OSError as error:
            raise ConfigError(
                f"temporary files cannot be written in {path.parents[1]} ({error.strerror}): make room there, or set TMPDIR"
            ) from error

    def parts(self) -> Iterator["pl.DataFrame"]:
        """Yield the pairs and their counts as `key`, `what` and `count`; all pairs of a key are in one frame."""
        import polars as pl

        if self.buffer:
            self._spill()
        for path in sorted(self.folder.glob("part-*")):
            records = np.fromfile(path, dtype=PAIR)
            path.unlink()
            frame = pl.DataFrame({name: np.ascontiguousarray(records[name]) for name in ("key", "what", "count")})
            yield frame.group_by("key", "what").agg(pl.col("count").cast(pl.Int64).sum())
