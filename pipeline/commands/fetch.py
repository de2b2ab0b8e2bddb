"""Commands on what is fetched and kept: fetch, sweep."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tyro

from pipeline.bars import bar
from pipeline.commands.base import Common, Interrupt
from pipeline.fetch import FetchConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Fetch(Common):
    """Fetch dumps: months of Lichess (2013-01, or 2013-01..2013-06) or any URL, verified against the published hashes.

    A fetch that was stopped or cut off is continued by the same command; what is here whole is not fetched again.
    """

    what: tyro.conf.Positional[tuple[str, ...]]
    """Months, spans of months and URLs."""
    out: Path = Path("datasets/dumps")
    """Folder that the files go to."""
    dry_run: bool = False
    """Only say what it would take: bytes, what is here, free space."""
    config: tyro.conf.OmitArgPrefixes[FetchConfig] = field(default_factory=FetchConfig)
    """Where from, and how patiently."""

    def run(self) -> dict[str, Any]:
        """Fetch, and say what became of each file."""
        from pipeline.fetch import fetch

        stop = Interrupt()
        with bar("fetch") as progress:
            return fetch(self.what, self.out, self.config, dry_run=self.dry_run, progress=progress, stop=stop)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep(Common):
    """Take away what killed writers left in datasets: temporary files, shards of no note, uploads never completed.

    Only what this program recorded to have written goes, and temporary files whose writer is provably gone: its process, as
    its own machine sees it, or a day without a byte.
    """

    places: tyro.conf.Positional[tuple[str, ...]]
    """Folders, or addresses such as s3://bucket/prefix."""
    dry_run: bool = False
    """Only say what would go."""

    def run(self) -> dict[str, Any]:
        """Sweep, and name what went."""
        from pipeline.sweep import sweep

        return {name: sweep(name, dry_run=self.dry_run) for name in self.places}
