"""The command fetch."""

from dataclasses import field
from pathlib import Path
from typing import Any, ClassVar

from model.settings import settings
from pipeline.cli.commands.base import Common, Interrupt
from pipeline.cli.endings import describe_downloads
from pipeline.cli.progress import bar
from pipeline.dumps.fetch import FetchConfig
from pipeline.errors import ConfigError


@settings(ConfigError)
class Fetch(Common):
    """Download months of Lichess (2013-01, or 2013-01..2013-06) or any URL, and verify them.

    Run the same command again to continue an interrupted download; complete files are not fetched
    again.
    """

    arguments: ClassVar = {"what": "MONTH|URL..."}
    basic: ClassVar = "out base sha256"

    what: tuple[str, ...]
    """Months, ranges of months, or URLs."""
    out: Path = Path("datasets/dumps")
    """Folder to download into."""
    fetch: FetchConfig = field(default_factory=FetchConfig)
    """Where files come from, and their expected hash."""

    def run(self) -> dict[str, Any]:
        """Return the outcome for each file."""
        from pipeline.dumps.fetch import fetch

        stop = Interrupt()
        with bar("fetch") as progress:
            result = fetch(self.what, self.out, self.fetch, progress=progress, stop=stop)
        return result | {"text": describe_downloads(result["files"], self.out)}
