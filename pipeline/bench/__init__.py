"""The benchmarks of `fianchetto bench`: each is a module with one function `measure`, which returns numbers by key."""

import tempfile
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from engine.progress import Progress, silent
from pipeline.errors import ConfigError
from pipeline.samples.shipped import SAMPLE

if TYPE_CHECKING:
    from pipeline.ingest.chunk import IngestConfig

What = Literal["ingest", "batches", "train", "compile", "search", "selfplay", "scale", "gpu"]


def run(
    what: What,
    pgn: Path | None,
    positions: Path | None,
    progress: Progress = silent,
    sizes: tuple[int, int] = (0, 0),
    address: str | None = None,
    config: "IngestConfig | None" = None,
) -> dict[str, Any]:
    """Run one benchmark and return its numbers; a dataset that is needed and not given is made in a temporary folder.

    `sizes`: bytes of the smallest and largest stream of `scale`; `address`: where its dump can be read too; `config`: how
    `ingest` and `scale` make datasets.
    """
    measure = import_module(f"pipeline.bench.{what}").measure
    if what in ("search", "selfplay"):
        return dict(measure(progress))
    pgn = pgn or SAMPLE
    if not pgn.exists() and positions is None:
        raise ConfigError(f"{pgn} does not exist: name a dump with --pgn")
    if what == "ingest":
        return dict(measure(pgn, progress, config))
    if what in ("compile", "gpu"):
        return dict(measure(pgn, progress))
    if what == "scale":
        return dict(measure(pgn, *sizes, progress, address, config))
    with tempfile.TemporaryDirectory(prefix="fianchetto-bench-") as folder:
        if positions is None:
            from pipeline.ingest.job import ingest

            positions = Path(folder)
            ingest([str(pgn)], positions, workers=1)
        return dict(measure(positions, progress))
