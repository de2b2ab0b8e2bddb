"""Partition rows by key into temporary files, so that they can be grouped in bounded memory."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from pipeline.errors import ConfigError

if TYPE_CHECKING:
    import polars as pl

PART_ROWS = 1 << 24
"""Approximate rows per part."""
BUFFER_ROWS = 1 << 20
"""Rows buffered before a write, so that parts have large row groups."""


class Scratch:
    """Rows with a 64-bit key; the low bits of the key must be uniform, as in a hash."""

    def __init__(self, folder: Path, expected: int) -> None:
        """Write to an empty folder; `expected` is the approximate total number of rows."""
        self.folder = folder
        self.count = max(1, -(-expected // PART_ROWS))
        self.writers: list[pq.ParquetWriter] = []
        self.waiting: list[pl.DataFrame] = []

    def add(self, rows: "pl.DataFrame") -> None:
        """Add rows with a column `key`; raises ConfigError if the disk is full."""
        if not self.writers:
            schema, paths = rows.to_arrow().schema, [self._path(part) for part in range(self.count)]
            with self._refuse_full_disk():
                self.writers = [pq.ParquetWriter(path, schema, compression="lz4") for path in paths]
        self.waiting.append(rows)
        if sum(map(len, self.waiting)) >= BUFFER_ROWS:
            self._flush()

    def parts(self) -> "Iterator[pl.LazyFrame]":
        """Yield all rows in parts; no rows can be added afterwards. Raises ConfigError."""
        import polars as pl

        self._flush()
        with self._refuse_full_disk():
            for writer in self.writers:
                writer.close()
        for part in range(len(self.writers)):
            yield pl.scan_parquet(self._path(part))

    def _flush(self) -> None:
        import polars as pl

        if not self.waiting:
            return
        rows, self.waiting = pl.concat(self.waiting), []
        part = (pl.col("key") % self.count).alias("part")
        by_part = rows.with_columns(part).partition_by("part", as_dict=True, include_key=False)
        with self._refuse_full_disk():
            for (number,), mine in by_part.items():
                self.writers[number].write_table(mine.to_arrow())

    def _path(self, part: int) -> Path:
        return self.folder / f"{part:06}.parquet"

    @contextmanager
    def _refuse_full_disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            where = f"temporary files cannot be written in {self.folder.parent} ({error})"
            raise ConfigError(f"{where}: make room there, or set TMPDIR") from error
