"""The command that measures this machine: bench."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from pipeline.cli.commands.base import Common
from pipeline.cli.progress import bar


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench(Common):
    """Measure this machine: the numbers that the README claims, each as a ratio within one run where it can be."""

    what: tyro.conf.Positional[Literal["ingest", "batches", "train", "compile", "search", "selfplay", "scale"]]
    """ingest: PGN to shards; batches: shards to rows; train: the loop; compile: Numba from cold;
    search: the tree alone and under a network; selfplay: moves; scale: ingest of streams of growing size."""
    pgn: Path | None = None
    """A dump to measure on; the embedded sample when there is none."""
    positions: Path | None = None
    """A dataset to measure on, for batches and train; made from the dump when there is none."""
    smallest: int = 10_000_000
    """Bytes of the smallest stream of scale."""
    largest: int = 1_000_000_000
    """Bytes of the largest stream of scale; nothing of it is kept, so 20_000_000_000 needs time and no disk."""
    planes: Literal["all", "compact"] = "all"
    """How ingest stores planes; with compact it is measured beside all."""
    address: str | None = None
    """Where the dump of scale lies too (s3://, https://): an ingest from there is timed beside the file's."""

    def run(self) -> dict[str, Any]:
        """Run one benchmark."""
        from pipeline.bench import run

        with bar(f"bench {self.what}") as progress:
            return run(
                self.what, self.pgn, self.positions, progress, (self.smallest, self.largest), self.address, self.planes
            )
