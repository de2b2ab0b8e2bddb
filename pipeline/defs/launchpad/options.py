"""Options of each asset: those of the command line, and a few that only Dagster needs."""

import hashlib
from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field
from pydantic_core import to_jsonable_python

from model.network.presets import presets
from model.settings import Positive, settings
from model.training.config import DEFAULT_PRESET, TrainConfig
from pipeline.dataset.files.columns import MANIFEST
from pipeline.dataset.files.manifest import read_manifest
from pipeline.dataset.join import JoinConfig
from pipeline.errors import ConfigError, DatasetError
from pipeline.evaluation.report import PositionFilter
from pipeline.finetune.config import EvenCount, FinetuneConfig
from pipeline.ingest.chunk import IngestConfig
from pipeline.storage.stores import hash_file


@settings(ConfigError)
class PositionsOptions:
    """Options of `positions`."""

    form: ClassVar = ("replace", "workers", "min_elo", "speeds", "planes")
    workers: Annotated[int, Field(ge=0, le=1024)] = 0
    """Worker processes, at most 1,024; 0 for one per core."""
    replace: bool = False
    """Build existing positions again; the old ones are used until the new ones are complete."""
    ingest: IngestConfig = field(default_factory=IngestConfig)
    """Filters, splits and shard layout: the options of `fianchetto ingest`."""


@settings(ConfigError)
class TrainingSetOptions:
    """Options of `training_set`."""

    form: ClassVar = ("positions", "name", "remove", "audit")
    positions: tuple[str, ...] = ()
    """Datasets to join, by their folders in datasets/positions; by default those of all dumps. The
    sample is then used only if there are no others."""
    name: str = ""
    """Folder in datasets/training_sets; an existing training set is extended. "" chooses a name by
    the datasets and options."""
    remove: tuple[str, ...] = ()
    """Datasets to remove from an existing training set; their files are kept."""
    audit: bool = True
    """Count duplicates, and test positions that also occur in train; needs up to 16 bytes of
    temporary disk space per row."""
    join: JoinConfig = field(default_factory=JoinConfig)
    """Games to hold out: the options of `fianchetto join`."""

    def derive_name(self, datasets: Sequence[Path]) -> str:
        """Return the dataset's name or the number of datasets, with a hash of them and `join`."""
        inputs = [hash_file(path / MANIFEST) for path in datasets] + [str(self.join)]
        digest = hashlib.sha256("\n".join(inputs).encode()).hexdigest()[:8]
        return f"{datasets[0].name if len(datasets) == 1 else f'{len(datasets)}-datasets'}-{digest}"


@settings(ConfigError)
class CheckpointOptions:
    """Options of `checkpoint`."""

    form: ClassVar = ("minutes", "preset", "start", "training_set", "name")
    preset: Annotated[str, presets] = DEFAULT_PRESET
    """Preset of the network to train; `fianchetto presets` describes all presets."""
    start: str = "auto"
    """Starting weights: auto, embedded, scratch (random), or a folder in datasets/checkpoints. auto
    keeps the start of an existing run. It starts a new run from the embedded network if there are
    fewer than 7 million positions (about 100,000 games) and the preset matches, otherwise from
    scratch. The default learning rate is 0.0005 if the start is a network."""
    training_set: str = ""
    """Folder in datasets/training_sets; "" for the one made by this run, otherwise the newest."""
    name: str = ""
    """Folder in datasets/checkpoints; an existing checkpoint is trained further. "" chooses a name
    by the preset and the run."""
    train: TrainConfig = field(default_factory=lambda: TrainConfig(minutes=5.0))
    """Batches, optimizer and losses: the options of `fianchetto train`."""


@settings(ConfigError)
class ImitationOptions:
    """Options of `imitation`."""

    form: ClassVar = ("games", "names", "base", "stranger")
    games: tuple[str, ...] = ()
    """Dumps (partitions) that contain the player's games; by default all except the sample."""
    names: tuple[str, ...] = ()
    """Further names of the same player, exactly as in the games."""
    base: str = ""
    """Checkpoint to start from, a folder in datasets/checkpoints; "" for the embedded network."""
    stranger: str = ""
    """Another player (partition), whose network is measured on the same games; "" for none."""


@settings(ConfigError)
class ReportOptions:
    """Options of `accuracy_report`."""

    form: ClassVar = ("checkpoint", "positions", "split")
    checkpoint: str = ""
    """Folder in datasets/checkpoints; "" for the one made by this run, otherwise the newest."""
    positions: str = ""
    """Folder in datasets/positions or datasets/training_sets. "" takes the training set of a named
    `checkpoint`, otherwise the one made by this run or the newest."""
    split: Literal["train", "val", "test", "latest"] = "test"
    """Split to measure on; `latest` is the newest games, which a training set holds out."""
    rule: PositionFilter = field(default_factory=PositionFilter)
    """Positions of the split to measure: the options of `fianchetto report`."""


@settings(ConfigError)
class TunedOptions:
    """Options of `tuned_checkpoint`."""

    form: ClassVar = ("checkpoint", "positions", "generations", "minutes")
    checkpoint: str = ""
    """Folder in datasets/checkpoints to start from; "" for the one made by this run, otherwise the
    newest."""
    positions: tuple[str, ...] = ()
    """Folders in datasets/positions with human games, to search, to mix into training, and to
    measure on; by default the checkpoint's training set, or all dumps if it is unknown."""
    finetune: FinetuneConfig = field(default_factory=lambda: FinetuneConfig(generations=8))
    """Fine-tuning loop: the options of `fianchetto finetune`."""


@settings(ConfigError)
class StrengthOptions:
    """Options of `strength_report`."""

    form: ClassVar = ("simulations", "games")
    simulations: Annotated[tuple[Positive, ...], Field(min_length=1)] = (64,)
    """Simulations per move of the tuned network, which plays every opponent at each number. The
    supervised network and the control play with the first number."""
    games: EvenCount = 200
    """Games in each match."""


OPTIONS_BY_ASSET = {
    "positions": PositionsOptions,
    "training_set": TrainingSetOptions,
    "checkpoint": CheckpointOptions,
    "accuracy_report": ReportOptions,
    "imitation": ImitationOptions,
    "tuned_checkpoint": TunedOptions,
    "strength_report": StrengthOptions,
}
"""The options of each asset."""


def read_saved_settings(positions: Path) -> dict[str, Any]:
    """Return the settings of existing positions that differ from the defaults; {} without any."""
    try:
        saved, defaults = read_manifest(positions)["config"], to_jsonable_python(IngestConfig())
    except DatasetError:
        return {}
    # chunk_mib is left out because it depends on the size of the dump
    names = defaults.keys() - {"chunk_mib"}
    return {
        name: value for name, value in saved.items() if name in names and value != defaults[name]
    }
