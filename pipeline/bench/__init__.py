"""What `fianchetto bench` measures: each benchmark is a module with one `measure`, and gives plain numbers by key."""

import tempfile
from pathlib import Path
from typing import Any, Literal

from engine.progress import Progress, silent
from pipeline.dataset.files.stored_planes import Form
from pipeline.errors import ConfigError
from pipeline.samples.dump import SAMPLE

What = Literal["ingest", "batches", "train", "compile", "search", "selfplay", "scale"]


def run(
    what: What,
    pgn: Path | None,
    positions: Path | None,
    progress: Progress = silent,
    sizes: tuple[int, int] = (0, 0),
    address: str | None = None,
    planes: Form = "all",
) -> dict[str, Any]:
    """Run one benchmark and give its numbers; a dataset that is needed and not given is made and thrown away.

    `sizes`: bytes of the smallest and largest stream, which `scale` asks for; `address`: where its dump lies too;
    `planes`: what `ingest` makes.
    """
    if what == "search":
        from pipeline.bench.search import measure as measure_search

        return measure_search(progress)
    if what == "selfplay":
        from pipeline.bench.selfplay import measure as measure_selfplay

        return measure_selfplay(progress)
    pgn = pgn or SAMPLE
    if not pgn.exists() and positions is None:
        raise ConfigError(f"{pgn} does not exist: name a dump with --pgn")
    if what == "compile":
        from pipeline.bench.compile import measure

        return measure(pgn, progress)
    if what == "ingest":
        from pipeline.bench.ingest import measure as measure_ingest

        return measure_ingest(pgn, progress, planes)
    if what == "scale":
        from pipeline.bench.scale import measure as measure_scale

        return measure_scale(pgn, *sizes, progress, address)
    with tempfile.TemporaryDirectory(prefix="fianchetto-bench-") as folder:
        if positions is None:
            from pipeline.ingest.job import ingest

            positions = Path(folder)
            ingest([str(pgn)], positions, workers=1)
        if what == "batches":
            from pipeline.bench.batches import measure as measure_dataset
        else:
            from pipeline.bench.train import measure as measure_dataset
        return measure_dataset(positions, progress)
