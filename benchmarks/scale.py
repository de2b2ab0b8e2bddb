"""Measure memory and time of `ingest` on short and long streams, and a second worker's speed-up.

A stream is the first games of a dump, or the first rows of a Parquet file, repeated. Ingest keeps
no record of games that it has read, so repeats cost it what new games do.
"""

import json
import os
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
import pyarrow.parquet as pq

from engine.progress import Progress, Tick, silent
from pipeline.dumps.chunks import read_chunks
from pipeline.dumps.formats.parquet import MAGIC
from pipeline.dumps.source import Source
from pipeline.errors import ConfigError, IngestError
from pipeline.ingest.chunk import IngestConfig

SMALLEST = 10_000_000
"""Bytes of the short stream, with which the long one is compared."""
REPEATED = 32 << 20
"""Bytes of text that a stream repeats: about 14,000 games with clocks and evaluations."""
WORKER_BYTES = 500_000_000
"""Maximum number of bytes on which one worker and two workers are compared."""
TURNS = 3
"""Runs of each kind, in turns; the fastest counts, since machines are shared."""
POLL_SECONDS = 0.2

Run = dict[str, Any]
"""`run` (its name), games, positions, seconds from start to exit, and cpu_seconds and peak_mib of
the command and its workers together."""


def run_ingest(
    name: str, source: str, config: IngestConfig, workers: int, stream: Iterable[bytes] = ()
) -> Run:
    """Run `fianchetto ingest` on a file, or on a stream if the source is `-`, and measure it.

    Finished shards are deleted at once, so that a stream of any length needs no disk.
    """
    with tempfile.TemporaryDirectory(prefix="fianchetto-bench-") as folder:
        command = [
            sys.executable,
            "-m",
            "pipeline",
            "ingest",
            source,
            "--out",
            f"{folder}/out",
            "--json",
        ]
        command += [
            "--planes",
            config.planes,
            "--set",
            f"history={config.history}",
            "--workers",
            str(workers),
        ]
        over, peaks, began, before = threading.Event(), [0], time.perf_counter(), os.times()
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stdout is not None

            def watch() -> None:
                while not over.wait(POLL_SECONDS):
                    with suppress(psutil.NoSuchProcess):
                        parent = psutil.Process(process.pid)
                        tree = (parent, *parent.children(recursive=True))
                        peaks.append(sum(one.memory_info().rss for one in tree))
                    for shard in Path(folder).rglob("[!.]*-[0-9]*-[0-9]*.parquet"):
                        shard.unlink(missing_ok=True)

            watcher = threading.Thread(target=watch)
            watcher.start()
            try:
                # the command ended early; its exit status is checked below
                with suppress(BrokenPipeError):
                    for piece in stream:
                        process.stdin.write(piece)
                    process.stdin.close()
                printed = process.stdout.read()
            finally:
                over.set()
                watcher.join()
        seconds, after = time.perf_counter() - began, os.times()
        if process.returncode:
            raise IngestError(f"the measured ingest ended with exit status {process.returncode}")
    found = json.loads(printed.splitlines()[-1])
    return {
        "run": name,
        "games": found["games"]["read"],
        "positions": found["positions"]["total"],
        "seconds": round(seconds, 3),
        "cpu_seconds": round(sum(after[2:4]) - sum(before[2:4]), 3),  # of finished children
        "peak_mib": round(max(peaks) / (1 << 20)),
    }


def repeat_games(games: list[bytes], size: int) -> Iterator[bytes]:
    """Yield games in turn, again and again, as long as they fit into `size` bytes."""
    for game in cycle(games):
        size -= len(game)
        if size < 0:
            return
        yield game


def repeat_rows(table: Path, out: Path, size: int) -> str:
    """Write a Parquet file's first row group until it has `size` bytes (0: one row)."""
    with pq.ParquetFile(table) as file:
        rows = file.read_row_group(0)
    with (
        out.open("wb") as raw,
        pq.ParquetWriter(raw, rows.schema, compression="zstd", use_dictionary=False) as writer,
    ):
        writer.write_table(rows.slice(0, None if size else 1))
        while raw.tell() < size:
            writer.write_table(rows)
    return str(out)


def measure(
    pgn: Path, config: IngestConfig, largest: int, progress: Progress = silent
) -> dict[str, Any]:
    """Measure one worker on 10 MB and on `largest` bytes, then one worker and two on a file.

    Parquet cannot be read from a stream, so files of these sizes are written instead. Seconds are
    those of whole commands; `start_seconds`, of a stream of one game, are subtracted where times
    are compared. `memory_ratio` and `time_ratio` (seconds per position) compare the largest stream
    with the smallest.
    """
    if largest < SMALLEST:
        raise ConfigError(f"--largest must be at least {SMALLEST:,} bytes, got {largest:,}")
    with pgn.open("rb") as source:
        is_table = source.read(len(MAGIC)) == MAGIC
    games = [] if is_table else _read_games(pgn)

    def fastest(runs: Iterable[Run]) -> Run:
        return min(runs, key=lambda run: run["seconds"])

    def run_stream(size: int) -> Run:
        if not is_table:
            return run_ingest(
                f"{size:,} bytes", "-", config, 1, repeat_games(games, size or len(games[0]))
            )
        with tempfile.TemporaryDirectory(prefix="fianchetto-bench-") as folder:
            return run_ingest(
                f"{size:,} bytes", repeat_rows(pgn, Path(folder) / "table.parquet", size), config, 1
            )

    start = fastest(run_stream(0) for _ in range(TURNS))["seconds"]
    small, large = fastest(run_stream(SMALLEST) for _ in range(TURNS)), run_stream(largest)
    progress(Tick(1, 2, "stages"))
    with tempfile.TemporaryDirectory(prefix="fianchetto-bench-") as folder:
        dump, size = Path(folder) / "stream.pgn", min(largest, WORKER_BYTES)
        if is_table:
            repeat_rows(pgn, dump, size)
        else:  # feeding a pipe would take time from two workers on two cores
            with dump.open("wb") as file:
                file.writelines(repeat_games(games, size))
        turns = [
            [run_ingest(f"{n} workers", str(dump), config, n) for n in (1, 2)] for _ in range(TURNS)
        ]
    one, two = (fastest(runs) for runs in zip(*turns, strict=True))
    progress(Tick(2, 2, "stages"))
    per_position = [(run["seconds"] - start) / run["positions"] for run in (small, large)]
    return {
        "start_seconds": start,
        "memory_ratio": round(large["peak_mib"] / small["peak_mib"], 3),
        "time_ratio": round(per_position[1] / per_position[0], 3),
        "positions_per_second": round(1 / per_position[1]),
        "two_workers_speedup": round(one["seconds"] / two["seconds"], 3),
        "runs": [small, large, one, two],
    }


def _read_games(pgn: Path) -> list[bytes]:
    """Return the first games of a dump."""
    chunk = next(read_chunks([Source(str(pgn))], REPEATED))
    text, ends = bytes(chunk.text), [*chunk.starts[1:].tolist(), len(chunk.text)]
    return [text[start:end] for start, end in zip(chunk.starts.tolist(), ends, strict=True)]
