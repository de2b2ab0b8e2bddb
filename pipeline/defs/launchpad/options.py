"""What each asset's launchpad form asks, on top of the command line's own options."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic_core import to_jsonable_python

from model.network.presets import presets
from model.training.config import DEFAULT_PRESET, TrainConfig
from pipeline.dataset.files.shards import MANIFEST, file_hash, read_manifest
from pipeline.dataset.join import JoinConfig
from pipeline.defs.launchpad.forms import Between, Choice
from pipeline.errors import ConfigError, DatasetError
from pipeline.evaluation.ratings.config import RatingsConfig
from pipeline.evaluation.report import Rule
from pipeline.finetune.config import FinetuneConfig
from pipeline.ingest.chunk import IngestConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class PositionsOptions:
    """How a dump becomes positions."""

    workers: Annotated[int, Between(0, 1024)] = 0
    """Worker processes, 0 for one for each core that this process may use."""
    replace: bool = False
    """Build them anew where this dump has positions already, of other options too; those stay until the new ones are whole."""
    ingest: IngestConfig = field(default_factory=IngestConfig)
    """Filters, splits and the layout of the shards, as `fianchetto ingest` has them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifyOptions:
    """How the checks of positions look."""

    rows: Annotated[int, Between(0, 1_000_000)] = 64
    """Random rows that are replayed from the dump with python-chess and compared."""
    most: Annotated[int, Between(1, 10_000)] = 24
    """Partitions that are checked where the run is of none: those that were not checked for longest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingSetOptions:
    """Which positions are joined, and how."""

    positions: tuple[str, ...] = ()
    """Positions datasets to join by name, none for all that are complete."""
    name: str = ""
    """Folder in datasets/training_sets; one that exists is added to. "" makes one from the datasets and the options."""
    remove: tuple[str, ...] = ()
    """Datasets to take out of a training set that exists; their files stay."""
    audit: bool = True
    """Count copies, overlap and drift over all rows, 16 bytes each in a temporary folder meanwhile."""
    join: JoinConfig = field(default_factory=JoinConfig)
    """What is held out, as `fianchetto join` has it."""

    def named_by(self, datasets: Sequence[Path]) -> str:
        """Make a name that says what is joined: the same datasets and options, the same name."""
        told = [file_hash(path / MANIFEST) for path in datasets] + [str(self.join)]
        digest = hashlib.sha256("\n".join(told).encode()).hexdigest()[:8]
        return f"{datasets[0].name if len(datasets) == 1 else f'{len(datasets)}-datasets'}-{digest}"


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointOptions:
    """What is trained, and on what."""

    preset: Annotated[str, Choice(presets)] = DEFAULT_PRESET
    """Network to train; `fianchetto presets` describes them."""
    training_set: str = ""
    """Folder in datasets/training_sets, "" for that of this run, or else the one materialised last."""
    name: str = ""
    """Folder in datasets/checkpoints; a name that exists is continued. "" makes one from the preset and the run."""
    train: TrainConfig = field(default_factory=lambda: TrainConfig(minutes=30.0))
    """Length, batches and the optimiser, as `fianchetto train` has them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportOptions:
    """What is measured, and on what."""

    checkpoint: str = ""
    """Folder in datasets/checkpoints, "" for that of this run, or else the one materialised last."""
    positions: tuple[str, ...] = ()
    """Positions datasets to measure on by name, none for all that are complete."""
    split: Literal["train", "val", "test"] = "test"
    """Split to measure on."""
    rule: Rule = field(default_factory=Rule)
    """Which positions of the split count, as `fianchetto report` has it."""
    ratings: RatingsConfig = field(default_factory=RatingsConfig)
    """What is measured of told ratings where the network reads them, as `fianchetto report` has it."""
    drawn: Annotated[int, Between(0, 64)] = 6
    """Positions drawn as boards with the network's first choices."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TunedOptions:
    """What is fine-tuned, and how."""

    checkpoint: str = ""
    """Folder in datasets/checkpoints to begin with, "" for that of this run, or else the one materialised last."""
    positions: tuple[str, ...] = ()
    """Human positions datasets by name, to mix in and to measure on; none for all that are complete."""
    name: str = ""
    """Folder in datasets/tuned; a name that exists is continued. "" makes one from the checkpoint and the run."""
    finetune: FinetuneConfig = field(default_factory=lambda: FinetuneConfig(generations=8))
    """The loop, as `fianchetto finetune` has it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StrengthOptions:
    """Whom a tuned network meets, and how often."""

    tuned: str = ""
    """Folder in datasets/tuned, "" for that of this run, or else the one materialised last."""
    simulations: tuple[int, ...] = (64,)
    """Simulations of the network's moves, a row each; its seed plays with as many as the first."""
    games: int = 200
    """Games against each opponent."""
    hand_written: int = 64
    """Simulations of the hand-written opponent; 0 leaves it out."""
    nodes: tuple[int, ...] = (100,)
    """Nodes a move of the engine Stockfish (or FIANCHETTO_UCI_ENGINE), an opponent each; none leaves it out."""
    judged: Annotated[int, Between(0, 100_000)] = 200
    """Positions of the games whose every move the engine judges, to weigh policy and value by; 0 for none."""

    def __post_init__(self) -> None:
        if self.games < 2 or self.games % 2:
            raise ConfigError(f"games come in pairs: 2, 4, 6 ..., not {self.games}")
        if not self.simulations or min(self.simulations) < 1 or self.hand_written < 0 or min(self.nodes, default=1) < 1:
            raise ConfigError("simulations and nodes must be 1 or more, and one simulation count is needed")


def remembered(positions: Path) -> dict[str, Any]:
    """Return the options of `ingest` that the positions in a folder were made with, as a form has them.

    Those that are as usual are left out; {} where there are no positions.
    """
    try:
        made, usual = read_manifest(positions)["config"], to_jsonable_python(IngestConfig())
    except DatasetError:
        return {}
    chosen = {"chunk_mib"}  # by the size of the dump where nobody named it; what is there keeps its own
    return {name: value for name, value in made.items() if name in usual.keys() - chosen and value != usual[name]}
