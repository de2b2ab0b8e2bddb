"""Commands on games and positions: ingest, show."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from pipeline.cli.commands.base import Common, Interrupt
from pipeline.cli.endings import describe_dataset
from pipeline.cli.progress import bar
from pipeline.errors import ConfigError
from pipeline.ingest.chunk import IngestConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Ingest(Common):
    """Turn PGN dumps (plain, .zst, .bz2, .gz, or - for standard input) into shards of packed positions.

    Dumps may be addresses (https://, s3://, gs://), which are streamed and not kept; --out may be one too (s3://, gs://).
    Lichess's Parquet games and puzzles, `fen,best` tables, EPD and ChessMarro's Parquet are recognised by their content.
    The same command continues a run that was stopped and leaves a finished dataset as it is. A directory that holds other
    files is refused.
    """

    arguments: ClassVar = {"sources": "DUMP..."}
    basic: ClassVar = (
        "out estimate workers engine planes min_elo max_elo rated_only speeds since until skip_plies sample"
    )

    sources: tuple[str, ...]
    """Dumps to read, in this order; - is standard input."""
    out: str | None = None
    """Directory of the dataset, or an address such as s3://bucket/prefix."""
    estimate: bool = False
    """Read a few megabytes and print what the whole dump would give, with intervals; nothing is written."""
    workers: int = 0
    """Processes to use; 0 for one per core, 1 for this process alone."""
    engine: str = "local"
    """Where the work runs: local; ray (a new Ray on this machine); ray:HOST:PORT or ray://HOST:PORT (a cluster)."""
    ingest: IngestConfig = field(default_factory=IngestConfig)
    """How the dataset is made."""

    def run(self) -> dict[str, Any]:
        """Return the manifest's summary, or the estimate of it."""
        from pipeline.dataset.files.shards import MANIFEST
        from pipeline.executors.by_name import engine_of
        from pipeline.ingest.estimate import estimate
        from pipeline.ingest.job import ingest
        from pipeline.storage.stores import catch_store_errors, place

        stop = Interrupt()
        if self.estimate:
            with bar("estimate") as progress:
                return estimate(self.sources, self.ingest, workers=self.workers, progress=progress, stop=stop)
        if self.out is None:
            raise ConfigError("--out DIR is missing (or give --estimate, which writes nothing)")
        out, engine = place(self.out), engine_of(self.engine, self.workers)
        with bar("ingest") as progress:
            with catch_store_errors(out):
                already = (out / MANIFEST).exists()
            manifest = ingest(self.sources, out, self.ingest, engine=engine, progress=progress, stop=stop)
        result = {"out": str(out)} | {name: value for name, value in manifest.items() if name != "files"}
        return result | {"text": describe_dataset(manifest, out, already)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Show(Common):
    """Show the input planes of a position as text, and as a picture with --out."""

    arguments: ClassVar = {"fen": "FEN"}
    basic: ClassVar = "view out"

    fen: str
    """The position, as a FEN in quotes, or `startpos`."""
    view: str = "marro77"
    """The encoding: marro77 (from the mover's side) or chessmarro77 (from White's side)."""
    out: Path | None = None
    """File for a picture of all planes, PNG by its suffix."""

    def run(self) -> dict[str, Any]:
        """Return the planes as text and the legal moves with their labels."""
        import chess

        from pipeline.cli.show import moves, picture, show

        fen = chess.STARTING_FEN if self.fen == "startpos" else self.fen
        labels = {uci: label for label, uci in moves(fen, self.view)}
        result = {"fen": fen, "view": self.view, "moves": labels, "text": show(fen, self.view)}
        return result if self.out is None else result | {"picture": str(picture(fen, self.view, self.out))}
