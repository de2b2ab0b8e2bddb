"""Commands on dumps and leftover files: fetch, sweep."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pipeline.cli.commands.base import Common, Interrupt
from pipeline.cli.endings import describe_downloads
from pipeline.cli.progress import bar
from pipeline.dumps.fetch import FetchConfig
from pipeline.errors import ConfigError

if TYPE_CHECKING:
    from pipeline.dataset.files.sweep import Swept


@dataclass(frozen=True, kw_only=True, slots=True)
class Fetch(Common):
    """Download dumps: months of Lichess (2013-01, or 2013-01..2013-06) or any URL, verified against published hashes.

    The same command continues a download that was stopped or cut off; complete files are not fetched again.
    """

    arguments: ClassVar = {"what": "MONTH|URL..."}
    basic: ClassVar = "out dry_run base sha256"

    what: tuple[str, ...]
    """Months, ranges of months, and URLs."""
    out: Path = Path("datasets/dumps")
    """Folder for the files."""
    dry_run: bool = False
    """Print bytes to fetch, bytes present and free space, and fetch nothing."""
    fetch: FetchConfig = field(default_factory=FetchConfig)
    """Server and retries."""

    def run(self) -> dict[str, Any]:
        """Return the outcome for each file."""
        from pipeline.dumps.fetch import fetch

        stop = Interrupt()
        with bar("fetch") as progress:
            result = fetch(self.what, self.out, self.fetch, dry_run=self.dry_run, progress=progress, stop=stop)
        return result if self.dry_run else result | {"text": describe_downloads(result["files"], self.out)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep(Common):
    """Delete what killed processes left behind: temporary files, builds of finished datasets, incomplete uploads.

    Folders below the named ones are included; a dataset that is being written is left alone. Temporary files are deleted if
    their process has ended on this machine, or if they are a day old. An unfinished build stays: its command continues it.
    """

    arguments: ClassVar = {"places": "PATH..."}
    basic: ClassVar = "dry_run"

    places: tuple[str, ...]
    """Folders, or addresses such as s3://bucket/prefix."""
    dry_run: bool = False
    """List what would be deleted, and delete nothing."""

    def run(self) -> dict[str, Any]:
        """Return what was deleted."""
        from pipeline.dataset.files.sweep import sweep

        if not self.places:
            raise ConfigError("name at least one folder or address to sweep")
        swept = {name: sweep(name, dry_run=self.dry_run) for name in self.places}
        result: dict[str, Any] = {name: asdict(one) | {"removed": not self.dry_run} for name, one in swept.items()}
        return result | {"text": "\n".join(self._describe(name, one) for name, one in swept.items())}

    def _describe(self, name: str, swept: "Swept") -> str:
        """Return the lines about one folder."""
        verb = "would be deleted" if self.dry_run else "deleted"
        found = f"{len(swept.found)} leftover(s) {verb}" if swept.found else "nothing to remove"
        lines = [f"{name}: {found}"]
        lines += [f"  {left}" for left in swept.found]
        return "\n".join([*lines, *(f"  {busy} is being written: left alone" for busy in swept.busy)])
