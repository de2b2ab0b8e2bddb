"""Commands on what is fetched and kept: fetch, sweep."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from pipeline.cli.commands.base import Common, Interrupt
from pipeline.cli.progress import bar
from pipeline.dumps.fetch import FetchConfig
from pipeline.errors import ConfigError

if TYPE_CHECKING:
    from pipeline.dataset.files.sweep import Swept


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
        from pipeline.dumps.fetch import fetch

        stop = Interrupt()
        with bar("fetch") as progress:
            return fetch(self.what, self.out, self.config, dry_run=self.dry_run, progress=progress, stop=stop)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep(Common):
    """Take away what killed writers left in datasets: temporary files, shards of no note, uploads never completed.

    Datasets below the folders named are swept too, at any depth; one that an ingest is writing is left alone.
    Only what this program recorded to have written goes, and temporary files whose writer is provably gone: its process, as
    its own machine sees it, or a day without a byte.
    """

    places: tyro.conf.Positional[tuple[str, ...]]
    """Folders, or addresses such as s3://bucket/prefix."""
    dry_run: bool = False
    """Only say what would go."""

    def run(self) -> dict[str, Any]:
        """Sweep, and name what went."""
        from pipeline.dataset.files.sweep import sweep_below

        if not self.places:
            raise ConfigError("name at least one folder or address to sweep")
        swept = {name: sweep_below(name, dry_run=self.dry_run) for name in self.places}
        result: dict[str, Any] = {name: asdict(one) | {"removed": not self.dry_run} for name, one in swept.items()}
        return result if self.json else {"text": "\n".join(self._said(name, one) for name, one in swept.items())}

    def _said(self, name: str, swept: "Swept") -> str:
        """Say what became of one place."""
        whole = f"{name}: {swept.datasets} dataset{'' if swept.datasets == 1 else 's'} looked at, "
        did = "would go" if self.dry_run else "went"
        lines = [
            whole + (f"{len(swept.found)} leftover(s) of killed writers {did}" if swept.found else "nothing to remove")
        ]
        lines += [f"  {left}" for left in swept.found]
        return "\n".join([*lines, *(f"  {busy} is being written: left alone" for busy in swept.busy)])
