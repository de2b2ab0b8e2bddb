"""Train on datasets: joins `pipeline.dataset.batches` and `model.training.loop`."""

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
from pipeline.samples.shipped import EMBEDDED, SCRATCH_POSITIONS, from_here
from pipeline.storage.job_folder import CHECKPOINT, JobFolder

LOG = logging.getLogger(__name__)

if TYPE_CHECKING:
    from model.network.preset import Preset
    from model.training.config import TrainConfig
    from model.training.distributed import World


def describe_data(positions: Sequence[Path | Dataset]) -> dict[str, Any]:
    """Return a card's entry on the training data: hashes and not paths."""
    opened = [Dataset.open(path) for path in positions]
    joined = [
        {"name": one.name, "sha256": one.identity, "positions": one.page["positions"]}
        for one in opened
        if one.joined
    ]
    parts = [part for one in opened for part in one.parts if part.has("train")]
    datasets = [
        {
            "name": part.name,
            "manifest_sha256": part.identity,
            "sources": [
                {key: source.get(key) for key in ("name", "sha256")}
                for source in part.page["sources"]
            ],
            "held_out": part.held_out,
            "positions": part.page["positions"],
        }
        for part in parts
    ]
    return {"datasets": datasets} | ({"training_sets": joined} if joined else {})


def describe_start(start: Path) -> dict[str, Any]:
    """Return a card's entry on the start checkpoint: its weights' hash and its data."""
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
    """Return the datasets of a card's data and of the checkpoint that it started from."""
    before = data.get("start")
    return [*data.get("datasets", []), *(list_datasets(before["data"]) if before else [])]


def count_positions(card: dict[str, Any]) -> int:
    """Return the positions that a network has seen, with repetitions and earlier runs."""
    before = card["data"].get("start")
    seen: int = card["positions"] + (count_positions(before) if before else 0)
    return seen


def select_columns(config: "TrainConfig", preset: "Preset") -> tuple[str, ...]:
    """Return the columns to read for training a preset.

    Raises MissingColumnError where shards lack a column that training the preset needs.
    """
    from engine.encoding.views import LAST_MOVES, require, view
    from model.data.rows import training_columns

    visits = ("visits",) if config.learns_visits else ()
    values = ("root_value", "best_value") if config.learns_search_values else ()
    names = dict.fromkeys((*HUMAN_COLUMNS, *LAST_MOVES[: view(preset.view).last], *visits, *values))
    require(training_columns(preset), names, f"the preset {preset.name!r}")
    return tuple(names)


def find_preset(name: str, out: Path, start: Path | None) -> "Preset":
    """Return a preset by name from the run in `out`, else from `start`, else from the table.

    Raises UnknownPresetError, and the errors of `model.checkpoint.read_card`.
    """
    from model.checkpoint import CARD, read_card
    from model.network.preset import preset_from_row
    from model.network.presets import preset

    for directory in (out, start):
        if directory is not None and (directory / CARD).exists():
            found = preset_from_row(read_card(directory)["preset"])
            if found.name == name:
                return found
    return preset(name)


def train_on(
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
    """Train a preset on datasets and return the checkpoint's card; a stopped run continues.

    `positions` are datasets or training sets; `shares` are the shares of a batch that come from
    each, by default by their rows. `start` is a checkpoint whose weights a new run starts from; the
    card names it and its data, and `player`, whom the network is to imitate. Under torchrun, each
    process trains on its share of each batch, and all of them read the datasets and `out`. Raises
    UnknownPresetError, DatasetError, and the errors of `model.training.loop.train`.
    """
    from model.card import CARD
    from model.training.distributed import read_world
    from model.training.loop import train

    row = find_preset(preset_name, out, start)
    if not positions:
        raise ConfigError("name at least one dataset to train on")
    # hashes new files, with progress, and can be stopped
    datasets = [Dataset.open(path, progress, stop) for path in positions]
    place, columns = read_world(), select_columns(config, row)
    count = sum(dataset.count("train") for dataset in datasets)
    is_new = start is None and not (out / CARD).exists()
    if is_new and place.first and count < SCRATCH_POSITIONS:
        LOG.info(
            "%s positions are few to train from scratch on: `--start %s --learning-rate 0.0005` "
            "gives a better network",
            f"{count:,}",
            from_here(EMBEDDED),
        )
    data = describe_data(datasets) | ({} if start is None else {"start": describe_start(start)})
    data |= {} if player is None else {"player": player}
    data |= {"shares": list(shares)} if shares else {}
    from_step, rows = _open_batches(datasets, config, columns, shares, place)
    folder = run_folder(out, [*datasets, *([] if start is None else [start])])
    card = train(
        config,
        row,
        from_step,
        out,
        validation=open_validation(datasets, config, columns),
        data=data,
        progress=progress if place.first else silent,
        stop=stop,
        epoch_rows=rows,
        start=start,
        check_output=folder.begin,
    )
    if place.first:
        folder.finish()
    return card


def _open_batches(
    datasets: Sequence[Dataset],
    config: "TrainConfig",
    columns: Sequence[str],
    shares: Sequence[float],
    place: "World",
) -> tuple[Callable[[int], Iterator[Batch]], int]:
    """Return a function that yields this process's batches, and the rows of an epoch.

    Raises ConfigError for shares that do not fit, DatasetError for too few rows.
    """

    def open_stream(datasets: Sequence[Dataset], rank: int, world: int) -> Batches:
        batches = Batches(
            datasets,
            "train",
            batch_size=config.batch_size,
            seed=config.seed,
            rank=rank,
            world=world,
            columns=columns,
            people_only=not config.engine_moves,
        )
        if batches.rows < config.batch_size:
            raise DatasetError(
                f"{batches.rows} positions to train on do not fill one batch of "
                f"{config.batch_size}: choose a smaller batch size"
            )
        if world > len(batches.groups):
            raise DatasetError(
                f"{world} processes are more than the {len(batches.groups)} row groups to train on"
            )
        return batches

    if not shares:
        batches = open_stream(datasets, place.rank, place.size)
        return batches.from_step, batches.rows
    streams = [open_stream([dataset], 0, 1) for dataset in datasets]
    used = [dict.fromkeys(group.shard.path for group in stream.groups) for stream in streams]
    require_distinct(path for paths in used for path in paths)
    mixed, rows = Shares(streams, shares), sum(stream.rows for stream in streams)
    return lambda step: mixed.from_step(step, place.rank, place.size), rows


def run_folder(out: Path, inputs: Sequence[Path | Dataset]) -> JobFolder:
    """Return the folder of a run, apart from its inputs and the datasets that they join."""
    reads = [one.path if isinstance(one, Dataset) else one for one in inputs]
    reads += [part.path for one in inputs if isinstance(one, Dataset) for part in one.joined]
    return JobFolder(out, CHECKPOINT, ConfigError, reads=reads)


def open_validation(
    positions: Sequence[Path | Dataset], config: "TrainConfig", columns: Sequence[str]
) -> Callable[[], Iterator[Batch]] | None:
    """Return a function that yields the validation rows once, shuffled.

    Datasets without a validation split and, unless they are trained on, those of engines' moves are
    left out; None if no dataset remains. So are rows whose move is not known.
    """
    validated = find_validated(positions, config)
    if not validated:
        return None
    batches = Batches(validated, "val", columns=columns)
    batches.batch_size = min(config.batch_size, 1024, batches.rows)
    count = max(1, batches.rows // batches.batch_size)

    def read() -> Iterator[Batch]:
        for batch in islice(batches.from_step(0), count):
            known = batch["label"] != NO_LABEL
            if known.any():
                yield {name: values[known] for name, values in batch.items()}

    return read


def find_validated(positions: Sequence[Path | Dataset], config: "TrainConfig") -> list[Dataset]:
    """Return the datasets that a training validates on."""
    opened = map(Dataset.open, positions)
    human = (dataset for dataset in opened if config.engine_moves or not dataset.has_engine_moves)
    return [dataset for dataset in human if dataset.has("val")]
