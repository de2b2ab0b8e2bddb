"""Measure memory and time of `ingest` on short and long streams, and the speed-up by two workers.

A stream repeats the first games of a dump. Ingest does not remember games, so repeated games cost
the same as new ones.
"""

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from typing import Any

import psutil

from pipeline.dumps.chunks import read_chunks
from pipeline.dumps.source import Source
from pipeline.errors import ConfigError, IngestError
from pipeline.ingest.chunk import IngestConfig

SMALLEST = 10_000_000
"""Size of the short stream in bytes."""
REPEATED = 32 << 20
"""Bytes of PGN that a stream repeats: about 14,000 games with clocks and evaluations."""
WORKER_BYTES = 500_000_000
"""Maximum size in bytes of the file on which one and two workers are compared."""
TURNS = 3
"""Number of runs; the fastest counts, since machines are shared."""

Run = dict[str, Any]
"""`run` (its name), games, positions, seconds from start to exit, and peak_mib of the command and
its workers together."""


def run_ingest(
    name: str, source: str, config: IngestConfig, workers: int, stream: Iterable[bytes] = ()
) -> Run:
    """Run `fianchetto ingest` on a file, or on a stream if the source is `-`, and measure it."""
    with tempfile.TemporaryDirectory(prefix="fianchetto-bench-") as folder:
        words = ["ingest", source, "--out", f"{folder}/out", "--planes", config.planes]
        words += ["--set", f"history={config.history}", "--workers", str(workers), "--json"]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        began, peaks = time.perf_counter(), [0]
        with subprocess.Popen([sys.executable, "-m", "pipeline", *words], **pipes) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            watcher = threading.Thread(target=_watch, args=(process, folder, peaks))
            watcher.start()
            with suppress(BrokenPipeError):  # it ended early; its status is checked below
                process.stdin.writelines(stream)
                process.stdin.close()
            printed = process.stdout.read()
        seconds = time.perf_counter() - began
        watcher.join()
    if process.returncode:
        raise IngestError(f"the measured ingest ended with exit status {process.returncode}")
    found = json.loads(printed.splitlines()[-1])
    games, positions = found["games"]["read"], found["positions"]["total"]
    run = {"run": name, "games": games, "positions": positions, "seconds": round(seconds, 3)}
    return run | {"peak_mib": round(max(peaks) / (1 << 20))}


def _watch(process: "subprocess.Popen[bytes]", folder: str, peaks: list[int]) -> None:
    """Record the memory of a process and its children until it ends.

    Finished shards are deleted at once, so that a long stream does not fill the disk.
    """
    while process.poll() is None:
        with suppress(psutil.NoSuchProcess):
            parent = psutil.Process(process.pid)
            tree = (parent, *parent.children(recursive=True))
            peaks.append(sum(one.memory_info().rss for one in tree))
        for shard in Path(folder).rglob("[!.]*-[0-9]*-[0-9]*.parquet"):
            shard.unlink(missing_ok=True)
        time.sleep(0.2)


def repeat_games(games: list[bytes], size: int) -> Iterator[bytes]:
    """Yield the games repeatedly, until the next would exceed `size` bytes in total."""
    for game in cycle(games):
        size -= len(game)
        if size < 0:
            return
        yield game


def measure(pgn: Path, config: IngestConfig, largest: int) -> dict[str, Any]:
    """Measure one worker on 10 MB and on `largest` bytes, then one worker and two on a file.

    Seconds are for the whole command. `start_seconds`, the time for a single game, is subtracted
    from the time of each stream. `memory_ratio` and `time_ratio` (seconds per position) compare the
    long stream with the short one.
    """
    if largest < SMALLEST:
        raise ConfigError(f"--largest must be at least {SMALLEST:,} bytes, got {largest:,}")
    chunk = next(read_chunks([Source(str(pgn))], REPEATED))
    starts, text = chunk.starts.tolist(), bytes(chunk.text)
    games = [text[a:b] for a, b in zip(starts, [*starts[1:], len(text)], strict=True)]

    def run_stream(size: int) -> Run:
        return run_ingest(f"{size:,} bytes", "-", config, 1, repeat_games(games, size))

    start = _fastest(run_stream(len(games[0])) for _ in range(TURNS))["seconds"]
    small, large = _fastest(run_stream(SMALLEST) for _ in range(TURNS)), run_stream(largest)
    with tempfile.TemporaryDirectory(prefix="fianchetto-bench-") as folder:
        dump = Path(folder) / "stream.pgn"
        with dump.open("wb") as file:  # feeding a pipe would take time from two workers
            file.writelines(repeat_games(games, min(largest, WORKER_BYTES)))
        turns = [
            [run_ingest(f"{n} workers", str(dump), config, n) for n in (1, 2)] for _ in range(TURNS)
        ]
    one, two = (_fastest(runs) for runs in zip(*turns, strict=True))
    small_rate, large_rate = (run["positions"] / (run["seconds"] - start) for run in (small, large))
    return {
        "start_seconds": start,
        "memory_ratio": round(large["peak_mib"] / small["peak_mib"], 3),
        "time_ratio": round(small_rate / large_rate, 3),
        "positions_per_second": round(large_rate),
        "two_workers_speedup": round(one["seconds"] / two["seconds"], 3),
        "runs": [small, large, one, two],
    }


def _fastest(runs: Iterable[Run]) -> Run:
    return min(runs, key=lambda run: run["seconds"])
