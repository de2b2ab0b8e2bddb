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
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

import psutil

from pipeline.dumps.chunks import read_chunks
from pipeline.dumps.source import Source
from pipeline.errors import ConfigError, IngestError
from pipeline.ingest.chunk import IngestConfig

SHORT_STREAM_BYTES = 10_000_000
"""Size of the short stream in bytes."""
REPEATED_BYTES = 32 << 20
"""Bytes of PGN that a stream repeats: about 14,000 games with clocks and evaluations."""
MAX_FILE_BYTES = 500_000_000
"""Maximum size in bytes of the file on which one and two workers are compared."""
RUNS = 3
"""Number of runs; the fastest counts, since machines are shared."""

Run = dict[str, Any]
"""A measured ingest: its name `run`, `games`, `positions`, `seconds` from start to exit, and
`peak_mib`, the most memory that the command and its workers used together."""


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
            with suppress(BrokenPipeError):  # the process ended early; its status is checked below
                process.stdin.writelines(stream)
                process.stdin.close()
            printed = process.stdout.read()
        seconds = time.perf_counter() - began
        watcher.join()
    if process.returncode:
        raise IngestError(f"the measured ingest ended with exit status {process.returncode}")
    manifest = json.loads(printed.splitlines()[-1])
    games, positions = manifest["games"]["read"], manifest["positions"]["total"]
    run = {"run": name, "games": games, "positions": positions, "seconds": round(seconds, 3)}
    return run | {"peak_mib": round(max(peaks) / (1 << 20))}


def _watch(process: "subprocess.Popen[bytes]", folder: str, peaks: list[int]) -> None:
    """Record the memory of a process and its children until it ends.

    Finished shards are deleted at once, so that a long stream does not fill the disk.
    """
    while process.poll() is None:
        with suppress(psutil.NoSuchProcess):
            parent = psutil.Process(process.pid)
            processes = (parent, *parent.children(recursive=True))
            peaks.append(sum(child.memory_info().rss for child in processes))
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
    if largest < SHORT_STREAM_BYTES:
        raise ConfigError(
            f"--largest must be at least {SHORT_STREAM_BYTES:,} bytes, got {largest:,}"
        )
    chunk = next(read_chunks([Source(str(pgn))], REPEATED_BYTES))
    starts, text = chunk.starts.tolist(), bytes(chunk.text)
    games = [text[first:last] for first, last in pairwise([*starts, len(text)])]

    def run_stream(size: int) -> Run:
        return run_ingest(f"{size:,} bytes", "-", config, 1, repeat_games(games, size))

    start = _select_fastest(run_stream(len(games[0])) for _ in range(RUNS))["seconds"]
    short = _select_fastest(run_stream(SHORT_STREAM_BYTES) for _ in range(RUNS))
    long = run_stream(largest)
    with tempfile.TemporaryDirectory(prefix="fianchetto-bench-") as folder:
        dump = Path(folder) / "stream.pgn"
        with dump.open("wb") as file:  # feeding a pipe would take time from two workers
            file.writelines(repeat_games(games, min(largest, MAX_FILE_BYTES)))
        pairs = [
            [run_ingest(f"{n} workers", str(dump), config, n) for n in (1, 2)] for _ in range(RUNS)
        ]
    one, two = (_select_fastest(runs) for runs in zip(*pairs, strict=True))
    short_rate, long_rate = (run["positions"] / (run["seconds"] - start) for run in (short, long))
    return {
        "start_seconds": start,
        "memory_ratio": round(long["peak_mib"] / short["peak_mib"], 3),
        "time_ratio": round(short_rate / long_rate, 3),
        "positions_per_second": round(long_rate),
        "two_workers_speedup": round(one["seconds"] / two["seconds"], 3),
        "runs": [short, long, one, two],
    }


def _select_fastest(runs: Iterable[Run]) -> Run:
    return min(runs, key=lambda run: run["seconds"])
