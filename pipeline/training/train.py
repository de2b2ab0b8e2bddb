"""Train on datasets: connect `pipeline.dataset.batches` to `model.training.loop`."""

import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.encoding.views import NO_LABEL
from engine.progress import Progress, Stop, never, silent
from pipeline.dataset.batches import HUMAN_COLUMNS, Batches, require_distinct
from pipeline.dataset.dataset import Dataset
from pipeline.dataset.files.shards import Batch
from pipeline.dataset.mixture import Shares
from pipeline.errors import ConfigError, DatasetError
from pipeline.samples.shipped import EMBEDDED_CHECKPOINT, MIN_SCRATCH_POSITIONS, relative_to_cwd
from pipeline.storage.job_folder import CHECKPOINT_KIND, JobFolder

LOG = logging.getLogger(__name__)

if TYPE_CHECKING:
    from model.network.preset import Preset
    from model.training.config import TrainConfig
    from model.training.distributed import World


def describe_data(positions: Sequence[Path | Dataset]) -> dict[str, Any]:
    """Return a card's entry about training data: datasets with hashes, and training sets if any."""
    opened = [Dataset.open(path) for path in positions]
    training_sets = [
        {"name": data.name, "sha256": data.identity, "positions": data.manifest["positions"]}
        for data in opened
        if data.joined
    ]
    parts = [part for data in opened for part in data.parts if part.has_rows("train")]
    datasets = [
        {
            "name": part.name,
            "manifest_sha256": part.identity,
            "sources": [
                {key: source.get(key) for key in ("name", "sha256")}
                for source in part.manifest["sources"]
            ],
            "held_out": part.held_out,
            "positions": part.manifest["positions"],
        }
        for part in parts
    ]
    return {"datasets": datasets} | ({"training_sets": training_sets} if training_sets else {})


def describe_start(start: Path) -> dict[str, Any]:
    """Return the card entry of a start checkpoint: its hash, training and data."""
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


def list_datasets(data: dict[str, Any]) -> list[dict[str, Any]]:
    """List the datasets in a card's `data`, including those of earlier start checkpoints."""
    before = data.get("start")
    return [*data.get("datasets", []), *(list_datasets(before["data"]) if before else [])]


def describe_trainings(card: dict[str, Any]) -> str:
    """Describe the data that a network was trained on, the newest run first."""
    datasets = card["data"].get("datasets", [])
    names = ", ".join(dict.fromkeys(dataset["name"] for dataset in datasets))
    text = f"{card['positions']:,} positions of {names or 'unknown data'}"
    before = card["data"].get("start")
    return f"{text}, and before on {describe_trainings(before)}" if before else text


def count_positions(card: dict[str, Any]) -> int:
    """Count the positions that a network was trained on, with repetitions, over all its runs."""
    before = card["data"].get("start")
    count: int = card["positions"] + (count_positions(before) if before else 0)
    return count


def select_columns(config: "TrainConfig", preset: "Preset") -> tuple[str, ...]:
    """List the dataset columns needed to train a preset.

    Raises MissingColumnError if the preset needs a column that shards do not store.
    """
    from engine.encoding.views import LAST_MOVES, require_columns, view
    from model.data.rows import training_columns

    visits = ("visits",) if config.learns_visits else ()
    values = ("root_value", "best_value") if config.learns_search_values else ()
    names = dict.fromkeys((*HUMAN_COLUMNS, *LAST_MOVES[: view(preset.view).last], *visits, *values))
    require_columns(training_columns(preset), names, f"the preset {preset.name!r}")
    return tuple(names)


def find_preset(name: str, out: Path, start: Path | None) -> "Preset":
    """Look up a preset by name: in the card of `out`, then of `start`, then in the preset table.

    Raises UnknownPresetError, and the errors of `model.checkpoint.read_card`.
    """
    from model.checkpoint import CARD_FILE, read_card
    from model.network.preset import preset_from_dict
    from model.network.presets import preset

    for directory in (out, start):
        if directory is not None and (directory / CARD_FILE).exists():
            in_card = preset_from_dict(read_card(directory)["preset"])
            if in_card.name == name:
                return in_card
    return preset(name)


def train_on_datasets(
    positions: Sequence[Path | Dataset],
    preset_name: str,
    config: "TrainConfig",
    out: Path,
    progress: Progress = silent,
    stop: Stop = never,
    start: Path | None = None,
    player: dict[str, Any] | None = None,
    shares: Sequence[float] = (),
) -> dict[str, Any]:
    """Train a preset on datasets, or resume a stopped run; return the checkpoint's card.

    `positions` are datasets or training sets. `shares` sets the share of each in a batch; by
    default, shares are in proportion to rows. A new run starts from the weights of the checkpoint
    `start`, if given. The card records `start`, its data, and `player`, the person to imitate.
    Under torchrun, each process trains on its part of each batch, and all processes must see the
    datasets and `out`. Raises UnknownPresetError, ConfigError, DatasetError, and the errors of
    `model.training.loop.train`.
    """
    from model.card import CARD_FILE
    from model.training.distributed import read_world
    from model.training.loop import train

    preset = find_preset(preset_name, out, start)
    if not positions:
        raise ConfigError("name at least one dataset to train on")
    # with `progress` and `stop`, because hashing new files may take minutes
    datasets = [Dataset.open(path, progress, stop) for path in positions]
    world, columns = read_world(), select_columns(config, preset)
    count = sum(dataset.count_rows("train") for dataset in datasets)
    is_from_scratch = start is None and not (out / CARD_FILE).exists()
    if is_from_scratch and world.is_first and count < MIN_SCRATCH_POSITIONS:
        LOG.info(
            "%s positions are few for training from scratch: `--start %s --learning-rate 0.0005` "
            "gives a better network",
            f"{count:,}",
            relative_to_cwd(EMBEDDED_CHECKPOINT),
        )
    data = describe_data(datasets) | ({} if start is None else {"start": describe_start(start)})
    data |= {} if player is None else {"player": player}
    data |= {"shares": list(shares)} if shares else {}
    from_step, epoch_rows = _open_batches(datasets, config, columns, shares, world)
    folder = open_run_folder(out, [*datasets, *([] if start is None else [start])])
    card = train(
        config,
        preset,
        from_step,
        out,
        validation=open_validation(datasets, config, columns),
        data=data,
        progress=progress if world.is_first else silent,
        stop=stop,
        epoch_rows=epoch_rows,
        start=start,
        check_output=folder.begin,
    )
    if world.is_first:
        folder.finish()
    return card


def _open_batches(
    datasets: Sequence[Dataset],
    config: "TrainConfig",
    columns: Sequence[str],
    shares: Sequence[float],
    world: "World",
) -> tuple[Callable[[int], Iterator[Batch]], int]:
    """Return a function that yields this process's batches from a step, and the rows per epoch.

    Raises ConfigError for invalid shares, and DatasetError for too few rows.
    """

    def open_stream(datasets: Sequence[Dataset], rank: int, size: int) -> Batches:
        batches = Batches(
            datasets,
            "train",
            batch_size=config.batch_size,
            seed=config.seed,
            rank=rank,
            world=size,
            columns=columns,
            people_only=not config.engine_moves,
        )
        if batches.rows < config.batch_size:
            raise DatasetError(
                f"{batches.rows} training positions do not fill one batch of "
                f"{config.batch_size}: choose a smaller batch size"
            )
        if size > len(batches.groups):
            raise DatasetError(
                f"{len(batches.groups)} row groups are too few for {size} processes: start fewer "
                "processes"
            )
        return batches

    if not shares:
        batches = open_stream(datasets, world.rank, world.size)
        return batches.from_step, batches.rows
    streams = [open_stream([dataset], 0, 1) for dataset in datasets]
    shards = [dict.fromkeys(group.shard.path for group in stream.groups) for stream in streams]
    require_distinct(path for paths in shards for path in paths)
    mixed, rows = Shares(streams, shares), sum(stream.rows for stream in streams)
    return lambda step: mixed.from_step(step, world.rank, world.size), rows


def open_run_folder(out: Path, inputs: Sequence[Path | Dataset]) -> JobFolder:
    """Return the folder of a training run, which refuses to write into its inputs."""
    datasets = [data for data in inputs if isinstance(data, Dataset)]
    reads = [data.path if isinstance(data, Dataset) else data for data in inputs]
    reads += [part.path for data in datasets for part in data.joined]
    return JobFolder(out, CHECKPOINT_KIND, ConfigError, reads=reads)


def open_validation(
    positions: Sequence[Path | Dataset], config: "TrainConfig", columns: Sequence[str]
) -> Callable[[], Iterator[Batch]] | None:
    """Return a function that yields batches of shuffled validation rows; None if there are none.

    Skips datasets without a validation split, datasets of engine moves (unless the run trains on
    engine moves), and rows without a known move.
    """
    validated = find_validation_datasets(positions, config)
    if not validated:
        return None
    batches = Batches(validated, "val", columns=columns)
    batches.batch_size = min(config.batch_size, 1024, batches.rows)
    count = max(1, batches.rows // batches.batch_size)

    def read_validation() -> Iterator[Batch]:
        for batch in islice(batches.from_step(0), count):
            known = batch["label"] != NO_LABEL
            if known.any():
                yield {name: values[known] for name, values in batch.items()}

    return read_validation


def find_validation_datasets(
    positions: Sequence[Path | Dataset], config: "TrainConfig"
) -> list[Dataset]:
    """List the datasets on which a training run is validated."""
    return [
        dataset
        for dataset in map(Dataset.open, positions)
        if dataset.has_rows("val") and (config.engine_moves or not dataset.has_engine_moves)
    ]
