"""Rows of numbers in temporary files, read back in parts: all rows of a key are in one part, so that memory is bounded."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.errors import ConfigError

if TYPE_CHECKING:
    import polars as pl

PART_ROWS = 1 << 24
"""Rows per part, about."""


class Scratch:
    """Rows with a 64-bit key, whose low bits must be evenly spread: a hash."""

    def __init__(self, folder: Path, expected: int) -> None:
        """Write into an empty folder; `expected` is about how many rows will come."""
        self.folder = folder
        self.count = max(1, -(-expected // PART_ROWS))
        self.files = 0

    def add(self, rows: "pl.DataFrame") -> None:
        """Write rows, with the key as the column `key`; raises ConfigError if the disk is full."""
        from polars.exceptions import ComputeError

        try:
            rows.write_parquet(self.folder / f"{self.files:06}.parquet", compression="lz4", statistics=False)
        except (OSError, ComputeError) as error:  # which of the two depends on the call of the system that fails
            raise ConfigError(
                f"temporary files cannot be written in {self.folder.parent} ({error}): make room there, or set TMPDIR"
            ) from error
        self.files += 1

    def parts(self) -> "Iterator[pl.LazyFrame]":
        """Yield all rows in parts."""
        import polars as pl

        for part in range(self.count if self.files else 0):
            yield pl.scan_parquet(self.folder / "*.parquet").filter(pl.col("key") % self.count == part)
