"""The command bench."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from pipeline.bench import What, run
from pipeline.cli.commands.base import Common
from pipeline.cli.progress import bar


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench(Common):
    """Measure this machine, with a yardstick in the same run where there is one."""

    arguments: ClassVar = {"what": "WHAT"}
    basic: ClassVar = "pgn positions smallest largest planes history address"

    what: What
    """ingest: PGN to shards; batches: shards to rows; search: simulations, evaluations and self-play; scale: ingest of
    streams of growing size; gpu: feed, training steps, search and self-play on a GPU, in under eight minutes."""
    pgn: Path | None = None
    """Dump to measure on; the default is the embedded sample."""
    positions: Path | None = None
    """batches: dataset to read; the default is made from the dump."""
    smallest: int = 10_000_000
    """scale: bytes of the smallest stream."""
    largest: int = 1_000_000_000
    """scale: bytes of the largest stream; it is not stored, so 20_000_000_000 needs time and no disk."""
    planes: Literal["all", "compact"] = "all"
    """ingest, scale: how planes are stored."""
    history: int = 8
    """ingest, scale: half-moves that rows keep, 1 to 8, as ingest has them."""
    address: str | None = None
    """scale: address of the same dump (s3://, https://), whose ingest is timed beside the file's."""

    def run(self) -> dict[str, Any]:
        """Run one benchmark."""
        from pipeline.evaluation.render import plain_text, text_table
        from pipeline.ingest.chunk import IngestConfig

        config = IngestConfig(planes=self.planes, history=self.history)
        with bar(f"bench {self.what}") as progress:
            result = run(
                self.what,
                self.pgn,
                self.positions,
                progress,
                (self.smallest, self.largest),
                self.address,
                config,
            )
        tables = [text_table(rows) for rows in result.values() if isinstance(rows, list)]
        figures = plain_text({name: value for name, value in result.items() if not isinstance(value, list)})
        return result if self.json else {"text": "\n\n".join([figures, *tables])}
