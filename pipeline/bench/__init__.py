"""The benchmarks of `fianchetto bench`: each is a module with one function `measure`, which returns numbers by key."""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from engine.progress import Progress, silent
from pipeline.errors import ConfigError
from pipeline.samples.shipped import SAMPLE

if TYPE_CHECKING:
    from pipeline.ingest.chunk import IngestConfig

What = Literal["ingest", "batches", "search", "scale", "gpu"]


def run(
    what: What,
    pgn: Path | None,
    positions: Path | None,
    progress: Progress = silent,
    sizes: tuple[int, int] = (0, 0),
    address: str | None = None,
    config: "IngestConfig | None" = None,
) -> dict[str, Any]:
    """Run one benchmark and return its numbers.

    `pgn` is the dump, the embedded sample by default. `batches` reads `positions`, or makes them from the dump. `sizes` (bytes
    of the smallest and largest stream) and `address` (of the same dump elsewhere) are of `scale`; `config` says how `ingest`
    and `scale` make datasets.
    """
    pgn = pgn or SAMPLE
    if not pgn.exists() and positions is None:
        raise ConfigError(f"{pgn} does not exist: name a dump with --pgn")
    measure = import_module(f"pipeline.bench.{what}").measure
    arguments: dict[str, tuple[Any, ...]] = {
        "ingest": (pgn, config),
        "batches": (pgn, positions),
        "search": (),
        "scale": (pgn, *sizes, address, config),
        "gpu": (pgn,),
    }
    return dict(measure(*arguments[what], progress=progress))
