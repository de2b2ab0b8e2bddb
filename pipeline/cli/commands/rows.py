"""The command rows: a dataset for people and other programs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pipeline.cli.commands.base import Common, Interrupt
from pipeline.cli.progress import bar
from pipeline.errors import ConfigError

SHOWN = 10
"""Rows that are printed by default."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows(Common):
    """Print or export rows of a dataset or training set: FEN, UCI move, result, ratings and clocks."""

    arguments: ClassVar = {"dataset": "DATASET"}
    basic: ClassVar = "split count out"

    dataset: Path
    """Dataset or training set."""
    split: str = ""
    """Only rows of this split: train, val, test or latest. Default: all."""
    count: int | None = None
    """Maximum number of rows. Default: all with --out, otherwise 10."""
    out: Path | None = None
    """Output file, .csv or .parquet. Default: print the rows."""

    def run(self) -> dict[str, Any]:
        """Write the rows, or return some to print."""
        from pipeline.dataset.fen_rows import fen_rows, write_fen_rows
        from pipeline.evaluation.render import text_table

        if self.count is not None and self.count < 1:
            raise ConfigError(f"count must be 1 or more, not {self.count}")
        if self.out is None:
            found = [
                row for table in fen_rows(self.dataset, self.split, self.count or SHOWN) for row in table.to_pylist()
            ]
            return {"rows": found, "text": text_table(found) if found else "no rows"}
        stop = Interrupt()
        with bar("rows") as progress:
            rows = write_fen_rows(
                self.dataset, self.out, split=self.split, count=self.count or 0, progress=progress, stop=stop
            )
        return {"out": str(self.out), "rows": rows}
