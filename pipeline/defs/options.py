"""What each asset's launchpad form asks, on top of the command line's own options."""

from dataclasses import dataclass, field

from model.config import TrainConfig
from pipeline.chunk import IngestConfig
from pipeline.report import Rule


@dataclass(frozen=True, kw_only=True, slots=True)
class PositionsOptions:
    """How a dump becomes positions."""

    workers: int = 0
    """Worker processes, 0 for one a processor core."""
    replace: bool = False
    """Delete the positions that this dump has already, instead of refusing to change their options."""
    verified_rows: int = 64
    """Random rows that are replayed from the dump with python-chess and compared."""
    ingest: IngestConfig = field(default_factory=IngestConfig)
    """Filters, splits and the layout of the shards, as `fianchetto ingest` has them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointOptions:
    """What is trained, and on what."""

    preset: str = "fianchetto-xs"
    """Network to train, a name of `model/presets.py`."""
    positions: tuple[str, ...] = ()
    """Positions datasets to train on by name, none for all that are complete."""
    name: str = ""
    """Folder in datasets/checkpoints; a name that exists is continued. "" makes one from the preset and the run."""
    train: TrainConfig = field(default_factory=lambda: TrainConfig(minutes=30.0))
    """Length, batches and the optimiser, as `fianchetto train` has them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportOptions:
    """What is measured, and on what."""

    checkpoint: str = ""
    """Folder in datasets/checkpoints, "" for the one that was materialised last."""
    positions: tuple[str, ...] = ()
    """Positions datasets to measure on by name, none for all that are complete."""
    split: str = "test"
    """Split to measure on: train, val or test."""
    rule: Rule = field(default_factory=Rule)
    """Which positions of the split count, as `fianchetto report` has it."""
    drawn: int = 6
    """Positions drawn as boards with the network's first choices."""
