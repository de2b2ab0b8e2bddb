"""The Python API, for notebooks and programs: `import fianchetto`.

    player = fianchetto.load()                                   # the network that comes with the package
    player.choose(chess.Board()).move
    batches = fianchetto.open_dataset("datasets/positions/2013-01", split="test", batch_size=512)
    batch = next(batches.from_step(0))                           # columns of packed rows, numpy
    fianchetto.rows("datasets/positions/2013-01", count=10)      # the same as FEN and UCI, a pyarrow table

docs/first_steps.ipynb uses them on the games of `fianchetto.sample()`. Heavy packages are imported on first use.
"""

from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

    from model.inference.player import Player
    from pipeline.dataset.batches import Batches

__all__ = ["__version__", "ingest", "load", "open_dataset", "read_manifest", "report", "rows", "sample"]
__version__ = version("fianchetto")


def _require_ours() -> None:
    """Raise ImportError if another package or file of the same name hides one of ours."""
    ours = Path(__file__).resolve().parents[1]
    for name in ("engine", "model", "pipeline"):
        spec = find_spec(name)
        places = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or [])]
        found = next((Path(place).resolve() for place in places if place is not None), None)
        if found is None:
            raise ImportError(f"Fianchetto's package {name!r} is not installed: install the project again")
        if found != ours / name / "__init__.py":
            raise ImportError(f"{found} hides Fianchetto's package {name!r}: rename it, or work from another folder")


_require_ours()


def load(directory: str | Path | None = None, *, device: str = "auto", amp: str = "auto") -> "Player":
    """Load a checkpoint that answers for boards; the default is the embedded one."""
    import model
    from pipeline.samples.shipped import EMBEDDED

    return model.load(EMBEDDED if directory is None else directory, device=device, amp=amp)


def open_dataset(
    *directories: str | Path, split: str = "train", batch_size: int = 512, seed: int = 0, **options: Any
) -> "Batches":
    """Open one split of datasets or training sets, folders or addresses; `from_step(0)` gives shuffled batches."""
    from pipeline.dataset.batches import Batches
    from pipeline.storage.stores import place

    return Batches([place(str(name)) for name in directories], split, batch_size=batch_size, seed=seed, **options)


def rows(directory: str | Path, split: str = "", *, count: int = 10) -> "pa.Table":
    """Return the first rows of a dataset: `fen`, the move `uci`, and what is known of the game; None where it is not."""
    import pyarrow as pa

    from pipeline.dataset.fen_rows import fen_rows
    from pipeline.storage.stores import place

    found: list[pa.Table] = []
    for table in fen_rows(place(str(directory)), split):
        found.append(table.slice(0, count - sum(map(len, found))))
        if sum(map(len, found)) == count:
            break
    return pa.concat_tables(found)


def sample() -> Path:
    """Return the path of the dump that comes with the package: 2,000 games that the embedded network played."""
    from pipeline.samples.shipped import SAMPLE

    return SAMPLE


def read_manifest(directory: str | Path) -> dict[str, Any]:
    """Return the manifest of a dataset: rows, files, hashes, source and configuration."""
    from pipeline.dataset.files.shards import read_manifest as read
    from pipeline.storage.stores import place

    return read(place(str(directory)))


def ingest(sources: list[str], out: str | Path, **options: Any) -> dict[str, Any]:
    """Turn dumps into a dataset and return its manifest; `options` are those of `pipeline.ingest.job.ingest`."""
    from pipeline.ingest.job import ingest as run
    from pipeline.storage.stores import place

    return run(sources, place(str(out)), **options)


def report(checkpoint: str | Path, positions: str | Path, **options: Any) -> dict[str, Any]:
    """Measure a checkpoint on a dataset; `options` are those of `pipeline.evaluation.report.report`."""
    from pipeline.evaluation.report import report as run
    from pipeline.storage.stores import place

    return run(Path(checkpoint), positions=place(str(positions)), **options)
