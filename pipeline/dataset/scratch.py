"""Partition rows by key into temporary files, so that grouping them needs bounded memory."""

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
"""Rows that are buffered before they are written, so that the files have large row groups."""


class RowPartitions:
    """Rows with a 64-bit hash as key, partitioned by it into files; equal keys are in one part."""

    def __init__(self, folder: Path, expected_rows: int) -> None:
        """Use an empty folder; `expected_rows` is the approximate total number of rows."""
        self.folder = folder
        self.part_count = max(1, -(-expected_rows // PART_ROWS))
        self.writers: list[pq.ParquetWriter] = []
        self.buffered: list[pl.DataFrame] = []

    def add(self, rows: "pl.DataFrame") -> None:
        """Add rows with a column `key`; raises ConfigError if the files cannot be written."""
        if not self.writers:
            schema = rows.to_arrow().schema
            paths = [self._path(part) for part in range(self.part_count)]
            with self._convert_disk_errors():
                self.writers = [pq.ParquetWriter(path, schema, compression="lz4") for path in paths]
        self.buffered.append(rows)
        if sum(map(len, self.buffered)) >= BUFFER_ROWS:
            self._flush()

    def read_parts(self) -> "Iterator[pl.LazyFrame]":
        """Yield all rows, part by part; no rows can be added afterwards. Raises ConfigError."""
        import polars as pl

        self._flush()
        with self._convert_disk_errors():
            for writer in self.writers:
                writer.close()
        for part in range(len(self.writers)):
            yield pl.scan_parquet(self._path(part))

    def _flush(self) -> None:
        import polars as pl

        if not self.buffered:
            return
        rows, self.buffered = pl.concat(self.buffered), []
        part = (pl.col("key") % self.part_count).alias("part")
        by_part = rows.with_columns(part).partition_by("part", as_dict=True, include_key=False)
        with self._convert_disk_errors():
            for (number,), part_rows in by_part.items():
                self.writers[number].write_table(part_rows.to_arrow())

    def _path(self, part: int) -> Path:
        return self.folder / f"{part:06}.parquet"

    @contextmanager
    def _convert_disk_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            where = f"temporary files cannot be written in {self.folder.parent} ({error})"
            raise ConfigError(f"{where}: make room there, or set TMPDIR") from error
