"""The ingest that `bench scale` measures, in its own process: finished shards are deleted as they appear.

python -m pipeline.bench.scale_job FOLDER WORKERS ENGINE SOURCE (- for standard input) PLANES CHUNK_MIB prints one JSON object.
"""

import json
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from engine.progress import Tick
from pipeline.dataset.files.shards import PARTS
from pipeline.dumps.reader import Chunk
from pipeline.errors import IngestError
from pipeline.executors.by_name import engine_of
from pipeline.executors.ray import AHEAD
from pipeline.ingest.chunk import ChunkTask, IngestConfig, encode_chunk, release_buffers


class Sweep:
    """A progress callback that deletes finished shards, so that a stream of any length needs no disk."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.bytes = self.files = 0
        self.first: float | None = None

    def __call__(self, tick: Tick) -> None:
        """Delete finished shards, which nothing reads before the manifest is made, and keep the time of the first."""
        self.first = self.first or time.perf_counter()
        for path in self.out.glob("*-[0-9]*-[0-9]*.parquet"):
            self.bytes += path.stat().st_size
            self.files += 1
            path.unlink()


GAME = b'[Event "Rated"]\n[Site "https://lichess.org/fianchet"]\n[Result "1-0"]\n\n1. e4 f6 2. d4 g5 3. Qh5# 1-0\n'


def load(_: int) -> None:
    """Encode one game, so that this process has loaded its kernels; Ray's workers stay for the tasks to come."""
    with tempfile.TemporaryDirectory(prefix="fianchetto-") as folder:
        (Path(folder) / PARTS).mkdir()
        encode_chunk(ChunkTask(Chunk(0, 0, 0, 0, GAME, np.zeros(1, dtype=np.int64)), folder, IngestConfig()))
    release_buffers()


def job(out: Path, workers: int, engine: str, source: str, config: IngestConfig) -> dict[str, Any]:
    """Ingest a source; Ray and its workers are started before the clock is, this machine's workers within it."""
    from pipeline.bench.ingest import peak_mib
    from pipeline.ingest.job import ingest
    from pipeline.samples.shipped import SAMPLE

    with ExitStack() as stack:
        began = time.perf_counter()
        spread = engine_of(engine, workers)
        stack.enter_context(spread.connected())
        for _, status, failure in spread.map(load, range(AHEAD * spread.slots())):
            if status != "ok":
                raise IngestError(f"a worker cannot be prepared: {failure}")
        started = time.perf_counter()
        ingest([str(SAMPLE)], out / "warm", config, workers=1)
        sweep = Sweep(out / "out")
        before = time.perf_counter()
        manifest = ingest([source], out / "out", config, engine=spread, progress=sweep)
        seconds = time.perf_counter() - before
    return {
        "games": manifest["games"]["read"],
        "positions": manifest["positions"]["total"],
        "seconds": round(seconds, 3),
        "seconds_to_first_chunk": round((sweep.first or before) - before, 3),
        "engine_start_seconds": round(started - began, 3),
        "shard_bytes": sweep.bytes,
        "shards": sweep.files,
        "driver_peak_mib": peak_mib(),
    }


if __name__ == "__main__":
    folder, workers, engine, source, settings = sys.argv[1:]
    config = IngestConfig(**json.loads(settings))
    sys.stdout.write(json.dumps(job(Path(folder), int(workers), engine, source, config)) + "\n")
