"""Helpers of the benchmarks: pin a measurement to one core; run and watch the command `ingest`."""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from pipeline.errors import IngestError
from pipeline.ingest.chunk import IngestConfig

POLL_SECONDS = 0.2


@contextmanager
def one_core() -> Iterator[None]:
    """Pin this process, the threads that it starts and arrow's pool to one core, where the system can."""
    import pyarrow as pa

    threads, cores = pa.cpu_count(), os.sched_getaffinity(0) if hasattr(os, "sched_setaffinity") else None
    pa.set_cpu_count(1)
    if cores is not None:
        os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        if cores is not None:
            os.sched_setaffinity(0, cores)
        pa.set_cpu_count(threads)


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One run of the command `ingest`."""

    seconds: float
    """From start to exit."""
    games: int
    positions: int
    peak_mib: float
    """Most memory of the command and its workers together; pages that they share count in each."""
    shard_bytes: int

    @property
    def rate(self) -> float:
        """Return positions per second."""
        return self.positions / self.seconds


def run_ingest(
    source: str, config: IngestConfig, *words: str, stream: Iterable[memoryview] = (), keep: bool = True
) -> Run:
    """Run `fianchetto ingest SOURCE WORDS` on a source, or on a stream where the source is `-`.

    With `keep` false, shards are deleted as soon as they are finished, so that a stream of any length needs no disk.
    """
    settings = [f"--set=ingest.{name}={_text(value)}" for name, value in asdict(config).items()]
    with tempfile.TemporaryDirectory(prefix="fianchetto-bench-") as folder:
        out = Path(folder) / "out"
        command = [sys.executable, "-m", "pipeline", "ingest", source, "--out", str(out), "--json", *settings, *words]
        began = time.perf_counter()
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            watcher = _Watcher(process.pid, out, keep)
            with watcher.running():
                with suppress(BrokenPipeError):  # the command ended early; its status tells
                    for piece in stream:
                        process.stdin.write(piece)
                    process.stdin.close()
                said = process.stdout.read()
        seconds = time.perf_counter() - began
        if process.returncode:
            raise IngestError(f"the ingest that is measured ended with status {process.returncode}")
        watcher.look()
    found = json.loads(said.splitlines()[-1])
    return Run(
        seconds=seconds,
        games=found["games"]["read"],
        positions=found["positions"]["total"],
        peak_mib=watcher.peak_mib,
        shard_bytes=watcher.shard_bytes,
    )


def _text(value: Any) -> str:
    """Return a setting's value as `--set` takes it."""
    return ",".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)


class _Watcher:
    """Follows the memory and the shards of a command while it runs."""

    def __init__(self, pid: int, out: Path, keep: bool) -> None:
        self.process, self.out, self.keep = psutil.Process(pid), out, keep
        self.peak_mib, self.shard_bytes = 0.0, 0
        self.seen: set[str] = set()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Poll in a thread while the block runs."""
        over = threading.Event()

        def watch() -> None:
            while not over.wait(POLL_SECONDS):
                self.look()

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def look(self) -> None:
        """Note the memory in use and the shards that are finished."""
        with suppress(psutil.NoSuchProcess):
            tree = [self.process, *self.process.children(recursive=True)]
            self.peak_mib = max(self.peak_mib, sum(one.memory_info().rss for one in tree) / (1 << 20))
        for path in self.out.rglob("[!.]*-[0-9]*-[0-9]*.parquet"):
            with suppress(FileNotFoundError):
                if path.name not in self.seen:
                    self.shard_bytes += path.stat().st_size
                    self.seen.add(path.name)
                if not self.keep:
                    path.unlink()
