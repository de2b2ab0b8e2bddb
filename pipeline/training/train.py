"""Train on datasets: the batches of `pipeline.dataset.batches` and the trainer of `model.training.loop`, joined."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.progress import Progress, Stop, never, silent
from pipeline.dataset.batches import HUMAN_COLUMNS, Batches
from pipeline.dataset.files.shards import MANIFEST, Batch, file_hash
from pipeline.dataset.training_set import TRAINING_SET, Member, is_training_set, members, read_training_set
from pipeline.errors import ConfigError, DatasetError
from pipeline.storage.claims import CHECKPOINT, require_apart, require_own

JOURNAL = "metrics.jsonl"
"""Name of a run's lines of metrics (model/training/metrics_log.py), which is empty until the first save."""
BEGUN = ("weights-0.safetensors", "training-0.safetensors")
"""What else a run may leave that was killed before its first card was written."""

if TYPE_CHECKING:
    from model.network.preset import Preset
    from model.training.config import TrainConfig


def data_of(positions: Sequence[Path]) -> dict[str, Any]:
    """Say what a checkpoint was trained on, for its card: hashes, not places; what a training set holds out is not there."""
    datasets, joined = [], []
    for directory in positions:
        found = members(directory)
        if is_training_set(directory):
            page = read_training_set(directory)
            digest = file_hash(directory / TRAINING_SET)
            joined.append({"name": directory.resolve().name, "sha256": digest, "positions": page["positions"]})
        datasets += [_dataset(member) for member in found if not member.held_out]
    return {"datasets": datasets} | ({"training_sets": joined} if joined else {})


def _dataset(member: Member) -> dict[str, Any]:
    """Name a dataset by its hashes."""
    manifest = member.manifest
    former = manifest.get("converted_from")
    return {
        "name": member.directory.resolve().name,
        "manifest_sha256": file_hash(member.directory / MANIFEST),
        **({"converted_from": former} if former else {}),
        "sources": [{key: source.get(key) for key in ("name", "sha256")} for source in manifest["sources"]],
        "positions": manifest["positions"],
    }


def lineage_of(start: Path) -> dict[str, Any]:
    """Say what a run begins with: the checkpoint's weights by hash, and everything that they have seen."""
    from model.checkpoint import read_card

    card = read_card(start)
    return {
        "name": start.resolve().name,
        "weights_sha256": card["files"]["weights"]["sha256"],
        "step": card["step"],
        "positions": card["positions"],
        "config": card["config"],
        "data": card["data"],
    }


def datasets_of(data: dict[str, Any]) -> list[dict[str, Any]]:
    """List what a network was trained on, by its card: its own datasets, and those of the checkpoint it began with."""
    before = data.get("start")
    return [*data.get("datasets", []), *(datasets_of(before["data"]) if before else [])]


def positions_of(card: dict[str, Any]) -> int:
    """Count the positions that a network has seen, repetitions counted: of its run, and of the runs that it began with."""
    before = card["data"].get("start")
    seen: int = card["positions"] + (positions_of(before) if before else 0)
    return seen


def columns_of(config: "TrainConfig", preset: "Preset") -> tuple[str, ...]:
    """Return the columns to read: of people's games, earlier moves that the network reads, a search's visits and values."""
    from engine.encoding.views import LAST_MOVES, view

    values = ("root_value", "best_value") if config.search_value_share else ()
    return tuple(dict.fromkeys((*HUMAN_COLUMNS, *LAST_MOVES[: view(preset.view).last], "visits", *values)))


def preset_of(name: str, out: Path, start: Path | None) -> "Preset":
    """Return the preset of that name: as the run in `out`, else `start`, has it, which may be older than the table's.

    Raises UnknownPresetError, and what `model.checkpoint.read_card` says of a card that is damaged.
    """
    from model.checkpoint import CARD, read_card
    from model.network.preset import preset_from_row
    from model.network.presets import preset

    row = preset(name)
    for directory in (out, start):
        if directory is not None and (directory / CARD).exists():
            found = preset_from_row(read_card(directory)["preset"])
            if found.name == name:
                return found
    return row


def train_on(
    positions: Sequence[Path],
    preset_name: str,
    config: "TrainConfig",
    out: Path,
    progress: Progress = silent,
    stop: Stop = never,
    start: Path | None = None,
) -> dict[str, Any]:
    """Train a preset on the train splits of datasets and return the checkpoint's card; a stopped run is continued.

    `start` is a checkpoint whose weights a fresh run begins with, and the seed that it is kept near where the configuration
    says so; the card names it and what it was trained on.

    Under torchrun, each process trains on its share of each batch, and all of them read the datasets and `out`.
    `positions` are datasets or training sets. Raises UnknownPresetError, DatasetError, and what model.training.loop says of a
    checkpoint that does not fit.
    """
    from engine.encoding.views import require
    from model.data.inputs import training_columns
    from model.training.distributed import world
    from model.training.loop import train

    row = preset_of(preset_name, out, start)
    if not positions:
        raise ConfigError("name at least one dataset to train on")
    for directory in positions:
        members(directory, progress, stop)  # hashed where they have not been, which is shown and can be stopped
    data = data_of(positions) if start is None else {**data_of(positions), "start": lineage_of(start)}
    place, columns = world(), columns_of(config, row)
    batches = Batches(
        positions,
        "train",
        batch_size=config.batch_size,
        seed=config.seed,
        rank=place.rank,
        world=place.size,
        columns=columns,
    )
    require(training_columns(row), dict.fromkeys(columns), f"the preset {preset_name!r}")
    if batches.rows < config.batch_size:
        raise DatasetError(
            f"{batches.rows} positions to train on do not fill one batch of {config.batch_size}: choose a smaller batch size"
        )
    if place.size > len(batches.groups):
        raise DatasetError(f"{place.size} processes are more than the {len(batches.groups)} row groups to train on")
    validation = validation_of(positions, config.batch_size, columns) if has(positions, "val") else None
    return train(
        config,
        row,
        batches.from_step,
        out,
        validation=validation,
        data=data,
        progress=progress if place.first else silent,
        stop=stop,
        epoch_rows=batches.rows,
        start=start,
        reference=start,
        admit=lambda: admit(out, [*positions, *([] if start is None else [start])]),
    )


def admit(out: Path, inputs: Sequence[Path]) -> None:
    """Raise ConfigError unless a run may write into `out`: a checkpoint's folder, or an empty one, apart from its inputs."""
    named = [member.directory for path in inputs if is_training_set(path) for member in members(path)]
    require_apart(out, [*inputs, *named], ConfigError)
    if out.is_dir():  # what can be no directory is said by whoever makes it
        require_own(out, CHECKPOINT, ConfigError, ours=_begun)


def _begun(entry: Path) -> bool:
    """Return whether an entry is of a run that was killed before its first card was written."""
    if entry.name == JOURNAL:
        return entry.is_file() and entry.stat().st_size == 0
    return entry.name in BEGUN


def validation_of(positions: Sequence[Path], batch_size: int, columns: Sequence[str]) -> Callable[[], Iterator[Batch]]:
    """Return a function that gives the validation rows once, in an order that a part of them is a fair sample of."""
    batches = Batches(positions, "val", columns=columns)
    batches.batch_size = min(batch_size, 1024, batches.rows)
    return lambda: islice(batches.from_step(0), max(1, batches.rows // batches.batch_size))


def has(positions: Sequence[Path], split: str) -> bool:
    """Return whether every dataset or training set has positions in a split."""
    return all(any(member.shards(split) for member in members(path)) for path in positions)
