"""The ingest that `bench scale` measures, in its own process: finished shards are deleted as they appear.

python -m pipeline.bench.scale_job FOLDER WORKERS ENGINE SOURCE (- for standard input) prints one JSON object.
"""

import json
import sys
import time
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any

from engine.progress import Tick
from pipeline.errors import IngestError
from pipeline.executors.by_name import engine_of
from pipeline.executors.ray import AHEAD
from pipeline.ingest.chunk import PRELOAD


class Sweep:
    """A progress callback that deletes finished shards, so that a stream of any length needs no disk."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.bytes = 0
        self.first: float | None = None

    def __call__(self, tick: Tick) -> None:
        """Delete finished shards, which nothing reads before the manifest is made, and keep the time of the first."""
        self.first = self.first or time.perf_counter()
        for path in self.out.glob("*-[0-9]*-[0-9]*.parquet"):
            self.bytes += path.stat().st_size
            path.unlink()


def load(_: int) -> None:
    """Load the ingest's code in a worker: local workers are forked from a process that has it, and Ray's keep it."""
    import_module(PRELOAD)


def job(out: Path, workers: int, engine: str, source: str) -> dict[str, Any]:
    """Ingest a source; kernels are loaded in every worker, and Ray is started, before the clock."""
    from pipeline.bench.ingest import peak_mib
    from pipeline.ingest.job import ingest
    from pipeline.samples.dump import SAMPLE

    with ExitStack() as stack:
        began = time.perf_counter()
        spread = engine_of(engine, workers, preload=PRELOAD)
        stack.enter_context(spread.connected())
        for _, status, failure in spread.map(load, range(AHEAD * spread.slots())):
            if status != "ok":
                raise IngestError(f"a worker cannot be prepared: {failure}")
        started = time.perf_counter()
        ingest([str(SAMPLE)], out / "warm", workers=1)
        sweep = Sweep(out / "out")
        before = time.perf_counter()
        manifest = ingest([source], out / "out", engine=spread, progress=sweep)
        seconds = time.perf_counter() - before
    return {
        "games": manifest["games"]["read"],
        "positions": manifest["positions"]["total"],
        "seconds": round(seconds, 3),
        "seconds_to_first_chunk": round((sweep.first or before) - before, 3),
        "engine_start_seconds": round(started - began, 3),
        "shard_bytes": sweep.bytes,
        "driver_peak_mib": peak_mib(),
    }


if __name__ == "__main__":
    folder, workers, engine, source = sys.argv[1:]
    sys.stdout.write(json.dumps(job(Path(folder), int(workers), engine, source)) + "\n")
