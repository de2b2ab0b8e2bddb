"""The command `fianchetto`: a dataclass a subcommand, its fields the options, its docstring the help.

Each command shows a bar on a terminal and is quiet otherwise; `--json` makes the last line of standard output one JSON
object. Exit codes: 0 what was promised is there, 1 it is not (a damaged archive, a stopped run), 2 a mistake that one line
explains, 130 Ctrl-C.
"""

import contextlib
import io
import json
import re
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import tyro

from engine.errors import UserError
from model.config import TrainConfig
from pipeline.bars import bar
from pipeline.chunk import IngestConfig
from pipeline.errors import DamagedError, Stopped
from pipeline.report import Rule


class _Interrupt:
    """Asks work to stop at its next good moment when a SIGTERM or a first Ctrl-C comes; a second Ctrl-C ends it at once."""

    def __init__(self) -> None:
        self.asked = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)

    def _ask(self, number: int, frame: object) -> None:
        self.asked = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def __call__(self) -> bool:
        return self.asked


@dataclass(frozen=True, kw_only=True, slots=True)
class Common:
    """What every command has."""

    json: bool = False
    """Print the result as one JSON object on the last line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ingest(Common):
    """Turn PGN dumps (.pgn, .zst, .bz2, .gz, or - for standard input) into shards of packed positions.

    A run that was stopped is continued by the same command; a finished dataset is left as it is.
    """

    sources: tyro.conf.Positional[tuple[str, ...]]
    """Dumps to read, in this order; - is standard input."""
    out: Path
    """Directory of the dataset."""
    workers: int = 0
    """Processes to use; 0 for one a core, 1 for none beside this one."""
    config: tyro.conf.OmitArgPrefixes[IngestConfig] = field(default_factory=IngestConfig)
    """What the dataset is made with."""

    def run(self) -> dict[str, Any]:
        """Ingest and give the manifest's summary."""
        from pipeline.ingest import ingest

        stop = _Interrupt()
        with bar("ingest") as progress:
            manifest = ingest(self.sources, self.out, self.config, workers=self.workers, progress=progress, stop=stop)
        return {"out": str(self.out)} | {name: value for name, value in manifest.items() if name != "files"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Train(Common):
    """Train a network on datasets for some minutes or steps; the same command continues a run that was stopped."""

    positions: tuple[Path, ...]
    """Datasets to train on, as `fianchetto ingest` makes them."""
    out: Path
    """Directory of the checkpoint."""
    preset: str = "fianchetto-xs"
    """Which network: fianchetto-xs (for two CPU cores) or chessmarro (the seed architecture)."""
    config: tyro.conf.OmitArgPrefixes[TrainConfig]
    """How to train."""

    def run(self) -> dict[str, Any]:
        """Train and give the checkpoint's card."""
        from pipeline.training import train_on

        stop = _Interrupt()
        with bar(f"train {self.preset}") as progress:
            card = train_on(self.positions, self.preset, self.config, self.out, progress, stop)
        if not card["finished"]:
            raise Stopped(f"stopped at step {card['step']}; run the same command to continue")
        return {"out": str(self.out)} | {
            name: card[name] for name in ("preset", "parameters", "step", "positions", "seconds", "metrics", "message")
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Report(Common):
    """Report how often a checkpoint's first choice is the human's move, on games it has not seen."""

    checkpoint: Path
    """Directory of the checkpoint."""
    positions: Path | None = None
    """Dataset to measure on; or give a PGN file."""
    split: Literal["test", "val", "train"] = "test"
    """Which of the dataset's splits."""
    pgn: Path | None = None
    """Measure on all games of this file instead of a dataset."""
    out: Path | None = None
    """Directory for the report as JSON, text and pictures."""
    rule: tyro.conf.OmitArgPrefixes[Rule] = field(default_factory=Rule)
    """Which positions count."""

    def run(self) -> dict[str, Any]:
        """Measure, and write the report where that is asked for."""
        from pipeline.report import report
        from pipeline.reports import write_report

        with bar("report") as progress:
            result = report(
                self.checkpoint,
                positions=self.positions,
                split=self.split,
                pgn=self.pgn,
                rule=self.rule,
                progress=progress,
            )
        if self.out is not None:
            write_report(result, self.out)
        return result


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

        from pipeline.show import moves, picture, show

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
    """Make the embedded dump: games of this project's hand-written players, the same bytes each time."""

    out: Path = Path("datasets/sample/fianchetto_sample_2000.pgn.zst")
    """File to write."""
    games: int = 2000
    """Games to play."""

    def run(self) -> dict[str, Any]:
        """Play the games and write them."""
        from pipeline.sample import sample

        with bar("sample") as progress:
            return dict(sample(self.out, games=self.games, progress=progress))


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench(Common):
    """Measure this machine: the numbers that the README claims, each as a ratio within one run where it can be."""

    what: tyro.conf.Positional[Literal["ingest", "batches", "train", "compile"]]
    """ingest: PGN to shards; batches: shards to rows; train: the loop; compile: Numba from cold."""
    pgn: Path | None = None
    """A dump to measure on; the embedded sample when there is none."""
    positions: Path | None = None
    """A dataset to measure on, for batches and train; made from the dump when there is none."""

    def run(self) -> dict[str, Any]:
        """Run one benchmark."""
        from pipeline.bench import run

        with bar(f"bench {self.what}") as progress:
            return run(self.what, self.pgn, self.positions, progress)


COMMANDS: dict[str, Callable[..., Common]] = {
    "ingest": Ingest,
    "train": Train,
    "report": Report,
    "show": Show,
    "sample": Sample,
    "bench": Bench,
}


def _print(result: dict[str, Any], as_json: bool) -> None:
    """Print a result for a program or for a person."""
    if as_json:
        print(json.dumps(result, allow_nan=False))  # noqa: T201
    elif "text" in result:
        print(result["text"])  # noqa: T201
    else:
        from pipeline.reports import plain_text

        print(plain_text(result))  # noqa: T201


def guarded(work: Callable[[], None]) -> int:
    """Do the work and give the exit code; a person's mistake becomes one line on standard error."""
    try:
        work()
    except (DamagedError, Stopped) as error:
        print(f"fianchetto: {error}", file=sys.stderr)  # noqa: T201
        return 1
    except UserError as error:
        print(f"fianchetto: {error}", file=sys.stderr)  # noqa: T201
        return 2
    except KeyboardInterrupt:
        print("fianchetto: interrupted", file=sys.stderr)  # noqa: T201
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output is gone, which is its right
        return 1
    except OSError as error:
        print(f"fianchetto: {error.filename or 'the system'}: {error.strerror or error}", file=sys.stderr)  # noqa: T201
        return 2
    return 0


def _one_line(boxed: str) -> str:
    """Take the sentence out of the box that tyro draws round a mistake."""
    words = " ".join(line.strip("╭╰│╮╯─ ") for line in boxed.splitlines())
    sentence = re.sub(r"^.*?Error parsing \S+: |^(Parsing|Value) error ─*|\s+For full helptext.*$", "", words)
    return " ".join(sentence.replace("─", "").split())


def _parsed() -> Any:
    """Parse the command line; a mistake in it is a UserError of one line."""
    caught = io.StringIO()
    try:
        with contextlib.redirect_stderr(caught):
            return tyro.extras.subcommand_cli_from_dict(
                COMMANDS, prog="fianchetto", description="Chess game databases into trained players."
            )
    except SystemExit as ended:
        if not ended.code:  # --help
            raise
        raise UserError(f"{_one_line(caught.getvalue())} (fianchetto --help explains)") from None


def main() -> None:
    """Run the command line."""

    def work() -> None:
        command = _parsed()
        _print(command.run(), command.json)

    sys.exit(guarded(work))
