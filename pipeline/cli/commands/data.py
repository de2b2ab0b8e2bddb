"""Commands on games and positions: ingest, show, sample."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tyro

from pipeline.cli.commands.base import Common, Interrupt
from pipeline.cli.progress import bar
from pipeline.errors import ConfigError
from pipeline.ingest.chunk import IngestConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Ingest(Common):
    """Turn PGN dumps (plain, .zst, .bz2, .gz, or - for standard input) into shards of packed positions.

    Dumps may be addresses (https://, s3://, gs://), read as they come and not kept, and so may --out be (s3://, gs://).
    Lichess's Parquet of games and its puzzles, `fen,best` tables, EPD and ChessMarro's Parquet are known by what they hold.
    A run that was stopped is continued by the same command; a finished dataset is left as it is. A directory that holds
    files of others is refused.
    """

    sources: tyro.conf.Positional[tuple[str, ...]]
    """Dumps to read, in this order; - is standard input."""
    out: str | None = None
    """Directory of the dataset, or an address such as s3://bucket/prefix."""
    estimate: bool = False
    """Read a few megabytes and print what the whole will give, with intervals; --out is not needed, and nothing is kept."""
    workers: int = 0
    """Processes to use; 0 for one a core, 1 for none beside this one."""
    engine: str = "local"
    """What spreads the work: local; ray, one of its own on this machine; ray:HOST:PORT or ray://HOST:PORT, a cluster."""
    config: tyro.conf.OmitArgPrefixes[IngestConfig] = field(default_factory=IngestConfig)
    """What the dataset is made with."""

    def run(self) -> dict[str, Any]:
        """Ingest and give the manifest's summary, or what it would be like."""
        from pipeline.executors.by_name import engine_of
        from pipeline.ingest.estimate import estimate
        from pipeline.ingest.job import ingest
        from pipeline.storage.stores import place

        stop = Interrupt()
        if self.estimate:
            with bar("estimate") as progress:
                return estimate(self.sources, self.config, workers=self.workers, progress=progress, stop=stop)
        if self.out is None:
            raise ConfigError("say where the dataset goes: --out DIR (or --estimate, which writes none)")
        out, engine = place(self.out), engine_of(self.engine, self.workers)
        with bar("ingest") as progress:
            manifest = ingest(self.sources, out, self.config, engine=engine, progress=progress, stop=stop)
        return {"out": str(out)} | {name: value for name, value in manifest.items() if name != "files"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Show(Common):
    """Show a position as the network sees it: its planes as text, and as a picture with --out."""

    fen: tyro.conf.Positional[str]
    """The position, as a FEN in quotes, or `startpos`."""
    view: str = "marro77"
    """Whose encoding: marro77 (mover's view) or chessmarro77 (absolute)."""
    out: Path | None = None
    """Write a PNG of all planes here."""

    def run(self) -> dict[str, Any]:
        """Draw the planes and list the legal moves with their labels."""
        import chess

        from pipeline.cli.show import moves, picture, show

        fen = chess.STARTING_FEN if self.fen == "startpos" else self.fen
        result: dict[str, Any] = {
            "fen": fen,
            "view": self.view,
            "moves": {uci: label for label, uci in moves(fen, self.view)},
        }
        result["text"] = show(fen, self.view)
        if self.out is not None:
            result["picture"] = str(picture(fen, self.view, self.out))
        return result


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample(Common):
    """Make a dump like the embedded one: games of this project's hand-written players, the same bytes each time.

    A file that is there and holds anything else is never written over.
    """

    out: Path | None = None
    """File to write, .pgn or .pgn.zst; fianchetto_sample_GAMES.pgn.zst in the folder you stand in when there is none."""
    games: int = 2000
    """Games to play."""

    def run(self) -> dict[str, Any]:
        """Play the games and write them."""
        from pipeline.samples.dump import sample

        out = self.out or Path(f"fianchetto_sample_{self.games}.pgn.zst")
        with bar("sample") as progress:
            return dict(sample(out, games=self.games, progress=progress))
