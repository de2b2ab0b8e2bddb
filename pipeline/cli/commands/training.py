"""Commands on networks: train, report, compare."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import tyro

from model.training.config import TrainConfig
from pipeline.cli.commands.base import Common, Interrupt
from pipeline.cli.progress import bar
from pipeline.errors import ConfigError, Stopped
from pipeline.evaluation.report import Rule


@dataclass(frozen=True, kw_only=True, slots=True)
class Train(Common):
    """Train a network on datasets for some minutes or steps; the same command continues a run that was stopped.

    Several processes share each batch under torchrun, or by --engine ray with --processes; those of other machines must see
    --positions, --out and --start under the same names, so put them into a folder that all share (--positions may be a store).
    """

    positions: tuple[str, ...]
    """Datasets to train on, as `fianchetto ingest` makes them (folders, or addresses such as s3://bucket/prefix), or training
    sets, as `fianchetto join` does."""
    out: Path
    """Directory of the checkpoint."""
    preset: str = "fianchetto-xs"
    """Which network: fianchetto-xs is for two CPU cores; `fianchetto presets` lists them all."""
    start: Path | None = None
    """Checkpoint whose weights the run begins with, to train it on; what it has seen is kept in the card."""
    engine: str = "local"
    """What trains: local; ray, one of its own on this machine; ray:HOST:PORT or ray://HOST:PORT, a cluster."""
    processes: int = 0
    """Processes of the engine ray; 0 for one a GPU that it has, or one where it has none."""
    config: tyro.conf.OmitArgPrefixes[TrainConfig]
    """How to train."""

    def run(self) -> dict[str, Any]:
        """Train and give the checkpoint's card; under torchrun, process 0 alone has something to say."""
        from model.training.distributed import world
        from pipeline.storage.stores import place
        from pipeline.training.by_name import trainer_of

        stop, positions = Interrupt(), [place(name) for name in self.positions]
        train_on = trainer_of(self.engine, self.processes)
        with bar(f"train {self.preset}") as progress:
            card = train_on(positions, self.preset, self.config, self.out, progress, stop, self.start)
        if not card["finished"]:
            raise Stopped(f"stopped at step {card['step']} and saved; run the same command to continue")
        if not world().first:
            return {}
        return {"out": str(self.out)} | {
            name: card[name] for name in ("preset", "parameters", "step", "positions", "seconds", "metrics", "message")
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Report(Common):
    """Report how often a checkpoint's first choice is the human's move, on games it has not seen.

    Several checkpoints are measured on the same positions, and compared with the first.
    """

    checkpoints: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Directories of the checkpoints."""
    checkpoint: Path | None = None
    """Directory of the first checkpoint, as an option."""
    positions: str | None = None
    """Dataset or training set to measure on, a folder or an address; or give a PGN file."""
    split: Literal["test", "val", "train", "latest"] = "test"
    """Which of its splits; `latest` is what a training set holds out whole."""
    against: tuple[Path, ...] = ()
    """Datasets whose train split the measured positions are looked for in; none for the one measured on."""
    pgn: Path | None = None
    """Measure on all games of this file instead of a dataset."""
    players: bool = True
    """Whether a network that reads ratings and clocks is told them; without, they are unknown to it."""
    out: Path | None = None
    """Directory for the report as one HTML page, JSON, text and picture."""
    puzzles: Path | None = None
    """CSV file of Lichess puzzles (perhaps compressed) that the networks solve without search."""
    rule: tyro.conf.OmitArgPrefixes[Rule] = field(default_factory=Rule)
    """Which positions count."""

    def run(self) -> dict[str, Any]:
        """Measure, and write the report where that is asked for."""
        from pipeline.evaluation.render import reports_text, write_report, write_reports
        from pipeline.evaluation.report import reports
        from pipeline.storage.claims import REPORT, require_apart, require_own
        from pipeline.storage.preflight import require_folder
        from pipeline.storage.stores import place

        checkpoints = [*([] if self.checkpoint is None else [self.checkpoint]), *self.checkpoints]
        if not checkpoints:
            raise ConfigError("name the directory of a checkpoint to report on")
        if self.out is not None:  # before minutes are spent on measuring
            require_folder(self.out)
            require_own(self.out, REPORT, ConfigError)
            read = [*checkpoints, *([] if self.positions is None else [place(self.positions)])]
            require_apart(self.out, read, ConfigError)
        with bar("report") as progress:
            found = reports(
                checkpoints,
                positions=None if self.positions is None else place(self.positions),
                split=self.split,
                pgn=self.pgn,
                against=self.against,
                rule=self.rule,
                players=self.players,
                puzzles=self.puzzles,
                progress=progress,
            )
        several = len(checkpoints) > 1
        if self.out is not None:
            write_reports(found, self.out) if several else write_report(found["reports"][0], self.out)
        if not several:
            return dict(found["reports"][0])
        return found if self.json else {"text": reports_text(found)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Compare(Common):
    """Train presets one after the other, each as long on the same data, and measure all on the same unseen games.

    The same command continues a comparison that was stopped; the table is written as table.md and comparison.json.
    """

    presets: tyro.conf.Positional[tuple[str, ...]]
    """Which networks; `fianchetto presets` lists them."""
    positions: tuple[Path, ...]
    """Datasets to train on; the first one's test split is measured on."""
    out: Path
    """Directory of the checkpoints and the table."""
    rule: tyro.conf.OmitArgPrefixes[Rule] = field(default_factory=Rule)
    """Which positions count."""
    config: tyro.conf.OmitArgPrefixes[TrainConfig]
    """How to train each of them."""

    def run(self) -> dict[str, Any]:
        """Train, measure and give the table."""
        from pipeline.evaluation.compare import compare

        stop = Interrupt()
        with bar("compare") as progress:
            return compare(
                self.positions, self.presets, self.config, self.out, rule=self.rule, progress=progress, stop=stop
            )
