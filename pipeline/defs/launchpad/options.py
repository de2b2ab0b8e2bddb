"""Options of each asset: what its launchpad form has besides the options of the command line."""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic_core import to_jsonable_python

from model.network.presets import presets
from model.training.config import DEFAULT_PRESET, TrainConfig
from pipeline.dataset.files.shards import MANIFEST, file_hash, read_manifest
from pipeline.dataset.join import JoinConfig
from pipeline.defs.launchpad.forms import HIDDEN_FIELD
from pipeline.dumps.fetch import parse_months
from pipeline.errors import ConfigError, DatasetError
from pipeline.evaluation.report import Rule
from pipeline.finetune.config import FinetuneConfig
from pipeline.ingest.chunk import IngestConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class PositionsOptions:
    """Options of `positions`."""

    workers: int = 0
    """Worker processes, at most 1,024; 0 uses every core."""
    replace: bool = False
    """Build again the positions that exist. The old ones stay in use until the new ones are
    complete."""
    ingest: IngestConfig = field(default_factory=IngestConfig)
    """Filters, splits and shard layout: the options of `fianchetto ingest`."""

    def __post_init__(self) -> None:
        if not 0 <= self.workers <= 1024:
            raise ConfigError(f"workers must be from 0 to 1024, got {self.workers}")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingSetOptions:
    """Options of `training_set`."""

    positions: tuple[str, ...] = ()
    """Datasets to join, by partition or folder in datasets/positions; by default those of all dumps
    except the sample."""
    name: str = ""
    """Folder in datasets/training_sets; an existing one is extended. "" derives a name from the
    datasets and options."""
    remove: tuple[str, ...] = ()
    """Datasets to remove from an existing training set; their files stay."""
    audit: bool = True
    """Count duplicates and leaks over all rows; needs 16 bytes of temporary disk space per row."""
    join: JoinConfig = field(default_factory=JoinConfig)
    """Held-out data: the options of `fianchetto join`."""

    def named_by(self, datasets: Sequence[Path]) -> str:
        """Return a name that is the same for the same datasets and options."""
        inputs = [file_hash(path / MANIFEST) for path in datasets] + [str(self.join)]
        digest = hashlib.sha256("\n".join(inputs).encode()).hexdigest()[:8]
        return f"{datasets[0].name if len(datasets) == 1 else f'{len(datasets)}-datasets'}-{digest}"


@dataclass(frozen=True, kw_only=True, slots=True)
class FetchOptions:
    """Options of `fetch_month`."""

    month: str = "2013-01"
    """Month of Lichess to download, such as 2013-01, or a range of months, 2013-01..2013-06."""

    def __post_init__(self) -> None:
        parse_months(self.month)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainDetails(TrainConfig):
    """Settings of a training besides its minutes; CheckpointOptions checks them."""

    minutes: float | None = field(default=None, metadata=HIDDEN_FIELD)

    def __post_init__(self) -> None:
        pass


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointOptions:
    """Options of `checkpoint`. A launchpad sorts them by name: the usual ones precede `train`."""

    minutes: float | None = 5.0
    """Minutes of training. Training from scratch on many games gains by an hour and more."""
    start: str = "auto"
    """Weights to start from: auto (those that an existing run started from; else the embedded
    network for fewer than 100,000 games and its own preset, else scratch), embedded, scratch, or a
    folder in datasets/checkpoints. With a start, the default learning rate is 0.0005."""
    preset: Annotated[str, presets] = DEFAULT_PRESET
    """Network to train; `fianchetto presets` describes them."""
    training_set: str = ""
    """Folder in datasets/training_sets; "" for that of this run, else the one materialized last."""
    name: str = ""
    """Folder in datasets/checkpoints; training resumes an existing one. "" derives a name from the
    preset and the run."""
    train: TrainDetails = field(default_factory=TrainDetails)
    """Batches, optimizer and losses: the options of `fianchetto train`."""

    def __post_init__(self) -> None:
        _ = self.config  # raises TrainConfigError for invalid values

    @property
    def config(self) -> TrainConfig:
        """Return the configuration of the training."""
        return TrainConfig(**asdict(self.train) | {"minutes": self.minutes})


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainOptions(CheckpointOptions):
    """Options of the job `train`: those of its checkpoint, and the datasets to train on."""

    positions: tuple[str, ...] = ()
    """Datasets to train on, by partition; none for those of all dumps except the sample."""
    training_set: str = field(default="", metadata=HIDDEN_FIELD)


@dataclass(frozen=True, kw_only=True, slots=True)
class ImitationOptions:
    """Options of `imitation`."""

    games: tuple[str, ...] = ()
    """Dumps with the player's games, by partition; none for all dumps, without the sample."""
    names: tuple[str, ...] = ()
    """Other names of the same person, exactly as in the games."""
    base: str = ""
    """Folder in datasets/checkpoints to start from; "" for the embedded network."""
    stranger: str = ""
    """Another player, a partition, whose network is measured on the same games; "" for none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportOptions:
    """Options of `accuracy_report`."""

    checkpoint: str = ""
    """Folder in datasets/checkpoints; "" for that of this run, else the one materialized last."""
    positions: str = ""
    """Folder in datasets/positions or datasets/training_sets; "" for the one that a named
    `checkpoint` was trained on, else that of this run, else the newest."""
    split: Literal["train", "val", "test", "latest"] = "test"
    """Split to measure on; `latest` has the games that a training set holds out."""
    rule: Rule = field(default_factory=Rule)
    """Positions of the split to measure: the options of `fianchetto report`."""
    rating_rows: int = 0
    """Positions per rating band that a network conditioned on ratings evaluates under each of 11
    ratings; 0 for none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TunedOptions:
    """Options of `tuned_checkpoint`."""

    checkpoint: str = ""
    """Folder in datasets/checkpoints to start from; "" for that of this run, else the one
    materialized last."""
    positions: tuple[str, ...] = ()
    """Names of the human positions to mix in and to measure on; none for the training set of the
    checkpoint, which holds out the same games, or those of all dumps where Dagster did not train
    it."""
    finetune: FinetuneConfig = field(default_factory=lambda: FinetuneConfig(generations=8))
    """The options of `fianchetto finetune`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StrengthOptions:
    """Options of `strength_report`."""

    simulations: tuple[int, ...] = (64,)
    """Simulations per move of the network, one row each; the supervised checkpoint plays with the
    first of them."""
    games: int = 200
    """Games against each opponent."""

    def __post_init__(self) -> None:
        if self.games < 2 or self.games % 2:
            raise ConfigError(f"games must be a positive even number, got {self.games}")
        if not self.simulations or min(self.simulations) < 1:
            raise ConfigError(
                f"simulations must be one or more positive numbers, got {self.simulations}"
            )


def saved_settings(positions: Path) -> dict[str, Any]:
    """Return the `ingest` options that existing positions were built with, as a form has them,
    without defaults.

    Return {} if there are no positions.
    """
    try:
        saved, defaults = read_manifest(positions)["config"], to_jsonable_python(IngestConfig())
    except DatasetError:
        return {}
    # depends on the size of the dump, unless a user sets it
    names = defaults.keys() - {"chunk_mib"}
    return {
        name: value for name, value in saved.items() if name in names and value != defaults[name]
    }
