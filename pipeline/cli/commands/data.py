"""Commands on games and positions: fetch, ingest, show."""

from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from model.settings import Count, settings
from pipeline.cli.commands.base import BaseCommand
from pipeline.cli.endings import describe_dataset, describe_downloads
from pipeline.dumps.fetch import FetchConfig
from pipeline.errors import ConfigError
from pipeline.ingest.chunk import IngestConfig


@settings(ConfigError)
class Fetch(BaseCommand):
    """Download dumps, and verify them: months of Lichess (2013-01, 2013-01..2013-06) or any URL.

    Run the same command again to continue an interrupted download; complete files are skipped.
    """

    arguments: ClassVar = {"what": "MONTH|URL..."}
    basic: ClassVar = "out base sha256"

    what: tuple[str, ...]
    """Months, ranges of months, or URLs."""
    out: Path = Path("datasets/dumps")
    """Folder to download into."""
    fetch: FetchConfig = field(default_factory=FetchConfig)
    """Download server and expected hash."""

    def run(self) -> dict[str, Any]:
        """Download the files and return the outcome for each."""
        from pipeline.dumps.fetch import fetch

        result = self.call_with_progress(partial(fetch, self.what, self.out, self.fetch))
        return result | {"text": describe_downloads(result["files"], self.out)}


@settings(ConfigError)
class Ingest(BaseCommand):
    """Turn PGN dumps (plain, .zst, .bz2, .gz, .zip) into a dataset of packed positions.

    A dump may be a URL (https://, s3://, gs://), which is streamed and not stored. --out may be a
    URL too (s3://, gs://). Tables of games, puzzles and positions (CSV, Parquet) and EPD files are
    recognized by their content. Run the same command again to continue an interrupted run. A
    finished dataset is not changed.
    """

    arguments: ClassVar = {"sources": "DUMP..."}
    basic: ClassVar = (
        "out estimate workers engine planes player min_elo max_elo rated_only speeds terminations "
        "since until sample"
    )

    sources: tuple[str, ...]
    """Dumps to read, in this order; - reads standard input."""
    out: str | None = None
    """Directory of the dataset, or a URL such as s3://bucket/prefix; not used with --estimate."""
    estimate: bool = False
    """Estimate the dataset from the first megabytes of each dump, without making it."""
    ingest: IngestConfig = field(default_factory=IngestConfig)
    """Filters, splits and shard layout."""
    workers: Count = 0
    """Number of worker processes; 0 for one per core. With engine local, 1 uses this process."""
    engine: str = "local"
    """Where to run: local, ray (starts Ray on this machine), or a cluster as ray:HOST:PORT or
    ray://HOST:PORT."""

    def run(self) -> dict[str, Any]:
        """Make the dataset and return its manifest, or return estimates of its size and time."""
        from pipeline.dataset.files.columns import MANIFEST
        from pipeline.executors.by_name import make_engine
        from pipeline.ingest.estimate import estimate
        from pipeline.ingest.job import ingest
        from pipeline.storage.stores import catch_store_errors, parse_path
        from pipeline.storage.tables import format_plain_text

        if self.estimate:
            work = partial(estimate, self.sources, self.ingest, workers=self.workers)
            estimates = self.call_with_progress(work, "estimate")
            return estimates | {"text": format_plain_text(estimates)}
        if self.out is None:
            raise ConfigError("give --out DIR, or --estimate")
        out, engine = parse_path(self.out), make_engine(self.engine, self.workers)
        with catch_store_errors(out):
            was_complete = (out / MANIFEST).exists()
        manifest = self.call_with_progress(
            partial(ingest, self.sources, out, self.ingest, engine=engine)
        )
        text = describe_dataset(manifest, out, was_complete)
        result = {"out": str(out), **manifest, "text": text}
        del result["files"]
        return result


@settings(ConfigError)
class Show(BaseCommand):
    """Show the input planes of a position as text, and as a picture with --out."""

    arguments: ClassVar = {"fen": "FEN"}
    basic: ClassVar = "view out"

    fen: str
    """Position as a FEN in quotes, or `startpos`."""
    view: str = "marro77"
    """Encoding: marro77 (the mover's view) or chessmarro77 (White's view)."""
    out: Path | None = None
    """File for a picture of all planes; its suffix is the format, such as .png."""

    def run(self) -> dict[str, Any]:
        """Return the planes as text and the labels of legal moves; with --out, draw a picture."""
        import chess

        from pipeline.board.show import draw_picture, format_position, list_moves

        fen = chess.STARTING_FEN if self.fen == "startpos" else self.fen
        labels = {uci: label for label, uci in list_moves(fen, self.view)}
        result = {
            "fen": fen,
            "view": self.view,
            "moves": labels,
            "text": format_position(fen, self.view),
        }
        if self.out is not None:
            result["picture"] = str(draw_picture(fen, self.view, self.out))
        return result
