"""The Python API, for notebooks and programs.

    import fianchetto

    fianchetto.load().choose("startpos").move           # the embedded network's move

    fianchetto.ingest(["games.pgn"], "positions")       # games become a dataset
    for batch in fianchetto.open_dataset("positions"):  # one shuffled epoch of dicts of arrays
        ...
    fianchetto.rows("positions", count=10)              # a pyarrow table of FENs and UCI moves
    fianchetto.train("positions", "network", fianchetto.TrainConfig(minutes=5))
    fianchetto.report("network", "positions")["top1"]

docs/first_steps.ipynb runs similar code on the games of `fianchetto.sample()`. Heavy packages are
imported on first use.
"""

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

    from model.inference.player import Player
    from model.training.config import TrainConfig
    from pipeline.dataset.batches import Batches
    from pipeline.evaluation.measure import PositionFilter
    from pipeline.ingest.chunk import IngestConfig

_CLASSES = {
    "IngestConfig": "pipeline.ingest.chunk",
    "PositionFilter": "pipeline.evaluation.measure",
    "TrainConfig": "model.training.config",
}
_FUNCTIONS = "ingest load open_dataset read_manifest report rows sample train"
__all__ = ["__version__", *_CLASSES, *_FUNCTIONS.split()]
__version__ = version("fianchetto")


def _require_own_packages() -> None:
    """Raise ImportError if one of this project's packages is missing or shadowed by another one."""
    root = Path(__file__).resolve().parents[1]
    for name in ("engine", "model", "pipeline"):
        spec = find_spec(name)
        if spec is None:
            raise ImportError(f"Fianchetto's package {name!r} is missing: reinstall Fianchetto")
        path = Path(spec.origin or next(iter(spec.submodule_search_locations or []))).resolve()
        if path != root / name / "__init__.py":
            raise ImportError(
                f"{path} shadows Fianchetto's package {name!r}: rename it, or start Python in "
                "another folder"
            )


_require_own_packages()


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """Import a configuration class on first use."""
    if name not in _CLASSES:
        raise AttributeError(f"module 'fianchetto' has no attribute {name!r}")
    return getattr(import_module(_CLASSES[name]), name)


def load(
    directory: str | Path | None = None, *, device: str = "auto", amp: str = "auto"
) -> "Player":
    """Load a checkpoint as a player; by default the embedded network.

    `device` is "auto", "cpu" or "cuda". `amp` is the precision: "auto", "off" (float32) or "bf16".
    """
    import model
    from pipeline.samples.shipped import EMBEDDED_CHECKPOINT

    return model.load(
        EMBEDDED_CHECKPOINT if directory is None else directory, device=device, amp=amp
    )


def open_dataset(
    *directories: str | Path | Sequence[str | Path],
    split: str = "train",
    batch_size: int = 512,
    seed: int = 0,
    columns: Sequence[str] | None = None,
) -> "Batches":
    """Open one split of one or more datasets or training sets (folders, URLs, or lists of them).

    Iterating yields one shuffled epoch of batches, and `len` is their number; `from_step(step)`
    yields batches endlessly. A batch is a dict of NumPy arrays by column: `planes`, uint64
    `[batch, 77]`, and the columns listed in datasets/README.md. The default columns are those of
    human games. Raises ConfigError if a dataset is named twice.
    """
    from pipeline.dataset.batches import HUMAN_COLUMNS, Batches

    names = HUMAN_COLUMNS if columns is None else columns
    paths = [path for given in directories for path in _parse_paths("directories", given)]
    return Batches(paths, split, batch_size=batch_size, seed=seed, columns=names)


def rows(directory: str | Path, split: str = "", *, count: int = 10) -> "pa.Table":
    """Return the first `count` rows of a dataset as a table.

    Its columns are split, game, ply, FEN, move in UCI, result, evaluation, ratings and clocks. An
    empty `split` means all splits. Raises ConfigError for an invalid `count`, and DatasetError for
    an unusable dataset and an unknown or empty split.
    """
    import pyarrow as pa

    from pipeline.dataset.fen_rows import fen_rows
    from pipeline.errors import ConfigError
    from pipeline.storage.stores import parse_path

    if isinstance(count, int) and count < 1:
        raise ConfigError(f"count must be 1 or more, got {count}")
    return pa.concat_tables(fen_rows(parse_path(str(directory)), split, count))


def _list_paths(argument: str, value: object) -> list[str]:
    """Return one path, or several, as a list of strings; raise ConfigError for anything else."""
    from pipeline.errors import ConfigError

    values = [value] if isinstance(value, (str, PathLike)) else value
    if isinstance(values, Iterable) and not isinstance(values, (bytes, Mapping)):
        paths = list(values)
        if all(isinstance(path, (str, PathLike)) for path in paths):
            return [str(path) for path in paths]
    raise ConfigError(f"{argument} must be a path or a list of paths, got {value!r}")


def _parse_paths(argument: str, value: object) -> list[Any]:
    from pipeline.storage.stores import parse_path

    return [parse_path(path) for path in _list_paths(argument, value)]


def sample() -> Path:
    """Return the path of the bundled dump: 2,000 games played by the embedded network."""
    from pipeline.samples.shipped import SAMPLE_DUMP

    return SAMPLE_DUMP


def read_manifest(directory: str | Path) -> dict[str, Any]:
    """Return the manifest of a dataset: rows, files, hashes, source and configuration."""
    from pipeline.dataset.files.manifest import read_manifest as read
    from pipeline.storage.stores import parse_path

    return read(parse_path(str(directory)))


def ingest(
    sources: str | Path | Sequence[str | Path],
    out: str | Path,
    config: "IngestConfig | None" = None,
    *,
    workers: int = 0,
) -> dict[str, Any]:
    """Convert game dumps to a dataset and return its manifest.

    Repeating the call resumes an interrupted one. `sources` is a path or URL, or a list of them.
    `workers` is the number of processes; 0 means one per core.
    """
    from pipeline.errors import ConfigError
    from pipeline.ingest.chunk import IngestConfig
    from pipeline.ingest.job import ingest as ingest_dumps
    from pipeline.storage.stores import parse_path

    if config is not None and not isinstance(config, IngestConfig):
        raise ConfigError(f"config must be a fianchetto.IngestConfig, got {type(config).__name__}")
    dumps = _list_paths("sources", sources)
    return ingest_dumps(dumps, parse_path(str(out)), config, workers=workers)


def train(
    positions: str | Path | Sequence[str | Path],
    out: str | Path,
    config: "TrainConfig | None" = None,
    *,
    preset: str | None = None,
    start: str | Path | None = None,
) -> dict[str, Any]:
    """Train a network on datasets or training sets and return its card.

    Repeating the call resumes an interrupted run. `preset` is a name listed by `fianchetto
    presets`. The run begins with the weights of the checkpoint `start`, if given.
    """
    from model.training.config import DEFAULT_PRESET, TrainConfig
    from pipeline.training.train import train_on_datasets

    begin = None if start is None else Path(start)
    paths = _parse_paths("positions", positions)
    return train_on_datasets(
        paths, preset or DEFAULT_PRESET, config or TrainConfig(), Path(out), start=begin
    )


def report(
    checkpoint: str | Path,
    positions: str | Path,
    *,
    split: str = "test",
    rule: "PositionFilter | None" = None,
) -> dict[str, Any]:
    """Measure a checkpoint on a split: top-1 accuracy, its interval, baselines and slices.

    `rule` selects the positions: by default 20,000 at random. For all of them, pass
    `fianchetto.PositionFilter(limit=0)`.
    """
    from pipeline.evaluation.report import report as write_report
    from pipeline.storage.stores import parse_path

    path = parse_path(str(positions))
    return write_report(Path(checkpoint), positions=path, split=split, rule=rule)
