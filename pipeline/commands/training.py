"""Commands on networks: train, report."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import tyro

from model.config import TrainConfig
from pipeline.bars import bar
from pipeline.commands.base import Common, Interrupt
from pipeline.errors import Stopped
from pipeline.report import Rule


@dataclass(frozen=True, kw_only=True, slots=True)
class Train(Common):
    """Train a network on datasets for some minutes or steps; the same command continues a run that was stopped."""

    positions: tuple[str, ...]
    """Datasets to train on, as `fianchetto ingest` makes them: folders, or addresses such as s3://bucket/prefix."""
    out: Path
    """Directory of the checkpoint."""
    preset: str = "fianchetto-xs"
    """Which network: fianchetto-xs is for two CPU cores; `fianchetto presets` lists them all."""
    start: Path | None = None
    """Checkpoint whose weights the run begins with, to train it on; what it has seen is kept in the card."""
    config: tyro.conf.OmitArgPrefixes[TrainConfig]
    """How to train."""

    def run(self) -> dict[str, Any]:
        """Train and give the checkpoint's card."""
        from pipeline.stores import place
        from pipeline.training import train_on

        stop, positions = Interrupt(), [place(name) for name in self.positions]
        with bar(f"train {self.preset}") as progress:
            card = train_on(positions, self.preset, self.config, self.out, progress, stop, self.start)
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
    positions: str | None = None
    """Dataset to measure on, a folder or an address; or give a PGN file."""
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
        from pipeline.stores import place

        with bar("report") as progress:
            result = report(
                self.checkpoint,
                positions=None if self.positions is None else place(self.positions),
                split=self.split,
                pgn=self.pgn,
                rule=self.rule,
                progress=progress,
            )
        if self.out is not None:
            write_report(result, self.out)
        return result
