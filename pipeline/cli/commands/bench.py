"""The command bench."""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Literal

from pipeline.cli.commands.base import Common
from pipeline.cli.progress import bar


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench(Common):
    """Measure the speed of this machine and, where one exists, of a reference implementation in the same run."""

    arguments: ClassVar = {"what": "WHAT"}
    basic: ClassVar = "pgn largest planes history"

    what: Literal["ingest", "batches", "search", "report", "scale"]
    """ingest: PGN to shards; batches: shards to rows; search: simulations and self-play; report: 20,000 positions to a page;
    scale: memory and time of ingest on a long stream."""
    pgn: Path | None = None
    """Dump to measure on; by default the embedded sample."""
    largest: int = 1_000_000_000
    """scale: bytes of the long stream. It is not stored, so 20_000_000_000 needs time but no disk."""
    planes: Literal["all", "compact"] = "all"
    """ingest, scale: how planes are stored."""
    history: int = 8
    """ingest, scale: previous half-moves that a row keeps, 1 to 8."""

    def run(self) -> dict[str, Any]:
        """Run one benchmark."""
        from pipeline.evaluation.render import plain_text, text_table
        from pipeline.ingest.chunk import IngestConfig
        from pipeline.samples.shipped import SAMPLE

        pgn, config = self.pgn or SAMPLE, IngestConfig(planes=self.planes, history=self.history)
        arguments: dict[str, tuple[Any, ...]] = {
            "ingest": (pgn, config),
            "batches": (pgn,),
            "search": (),
            "report": (pgn,),
            "scale": (pgn, config, self.largest),
        }
        with bar(f"bench {self.what}") as progress:
            measure = import_module(f"pipeline.bench.{self.what}").measure
            result: dict[str, Any] = measure(*arguments[self.what], progress=progress)
        tables = [text_table(rows) for rows in result.values() if isinstance(rows, list)]
        figures = plain_text({name: value for name, value in result.items() if not isinstance(value, list)})
        return result | {"text": "\n\n".join([figures, *tables])}
