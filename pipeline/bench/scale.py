"""Memory and time of ingest from megabytes to tens of gigabytes, and what limits its speed."""

import importlib.util
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

import psutil

from engine.progress import Progress, Tick, silent
from pipeline.bench.stream import Repeats
from pipeline.dataset.files.layout import SPLITS
from pipeline.dumps.reader import BLOCK, STDIN, Source, chunks
from pipeline.errors import ConfigError, IngestError
from pipeline.executors.by_name import LOCAL
from pipeline.executors.local import available_cores
from pipeline.ingest.chunk import IngestConfig

SEED_BYTES = 32 << 20
"""Bytes of text that are repeated: about 14,000 games with clocks and evals."""
STEP = 10
"""Ratio of one size to the one before."""
SPREAD_BYTES = 500_000_000
"""Most bytes on which one worker, two workers and Ray are compared."""
REPEATED = 3
"""Runs of a size below `SHORT_BYTES`; the fastest counts."""
TURNS = 2
"""Runs from an address, and from the file, in turns."""
SPREAD_TURNS = 3
"""Runs of one worker, two workers, two jobs and Ray, in turns; the fastest of each counts, since machines are shared."""
SHORT_BYTES = 100_000_000
MONTH_POSITIONS, MONTH_TEXT, MONTH_CHUNK = 6_000_000_000, 209_000_000_000, 64 << 20
"""The largest month of Lichess: 90 million games, its text, and the chunks that ingest chooses for a dump of its size."""


def _tree_mib(process: psutil.Process) -> float:
    """Return the resident memory of a process and its descendants, MiB; shared pages count in each."""
    total = 0
    with suppress(psutil.NoSuchProcess):  # a process that has just ended
        for one in [process, *process.children(recursive=True)]:
            total += one.memory_info().rss
    return total / (1 << 20)


def _run(
    config: IngestConfig, stream: Iterable[memoryview], workers: int, engine: str = LOCAL, source: str = STDIN
) -> dict[str, Any]:
    """Run one job on a stream or a named source; return what it measured, with its peak memory."""
    with tempfile.TemporaryDirectory(prefix="fianchetto-bench-") as folder:
        command = [sys.executable, "-m", "pipeline.bench.scale_job", folder, str(workers), engine, source]
        command.append(json.dumps(asdict(config)))
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            tree, peak, over = psutil.Process(process.pid), 0.0, threading.Event()

            def watch() -> None:
                nonlocal peak
                while not over.wait(0.2):
                    peak = max(peak, _tree_mib(tree))

            watcher = threading.Thread(target=watch)
            watcher.start()
            try:
                fed = 0
                for piece in stream:
                    fed += len(piece)
                    process.stdin.write(piece)
                process.stdin.close()
                said = process.stdout.read()
            except BrokenPipeError:
                said = b""
                with suppress(BrokenPipeError):
                    process.stdin.close()
            finally:
                over.set()
                watcher.join()
            if process.wait() or not said:
                raise IngestError(f"the job that is measured ended with status {process.returncode}")
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    return {"bytes": fed, **found, "peak_mib": round(max(peak, found["driver_peak_mib"]))}


def _sizes(smallest: int, largest: int) -> list[int]:
    """Return the sizes to measure, the largest last."""
    if not 100_000 <= smallest <= largest:
        raise ConfigError("smallest is at least 100,000 bytes, and largest no less")
    sizes = []
    while smallest < largest:
        sizes.append(smallest)
        smallest *= STEP
    return [*sizes, largest]


def _reader(pgn: Path) -> dict[str, Any]:
    """Measure the reader alone: decompression (in threads where the file has many frames), then with splitting into games."""
    source = Source(str(pgn))
    stream, space, began = source.open(), memoryview(bytearray(BLOCK)), time.perf_counter()
    text_bytes = 0
    while count := stream.readinto(space):
        text_bytes += count
    decompressed = time.perf_counter() - began
    source.close()
    began = time.perf_counter()
    games = sum(len(chunk.starts) for chunk in chunks([Source(str(pgn))], 8 << 20))
    split = time.perf_counter() - began
    return {
        "text_bytes": text_bytes,
        "decompression_gb_per_second": round(text_bytes / decompressed / 1e9, 3),
        "split_gb_per_second": round(text_bytes / split / 1e9, 3),
        "split_games_per_second": round(games / split),
    }


def _spread(config: IngestConfig, dump: Path) -> dict[str, Any]:
    """Compare one worker with two, with two independent jobs, and two workers with Ray where it is installed."""

    def run(workers: int, engine: str = LOCAL) -> dict[str, Any]:
        return _run(config, [], workers, engine, str(dump))

    alone, together, by_ray, apart = [], [], [], []
    for _ in range(SPREAD_TURNS):
        alone.append(run(1))
        together.append(run(2))
        if importlib.util.find_spec("ray") is not None:
            by_ray.append(run(2, "ray"))
        with ThreadPoolExecutor(2) as pool:
            apart.append(list(pool.map(run, (1, 1))))
    jobs = [max(one["seconds"] for one in pair) for pair in apart]
    one, two = _quickest(alone), _quickest(together)
    result: dict[str, Any] = {
        "spread_bytes": dump.stat().st_size,
        "one_worker_seconds": [one["seconds"] for one in alone],
        "two_workers_seconds": [one["seconds"] for one in together],
        "two_jobs_seconds": jobs,
        "spread_games": [one["games"] for one in (*alone, *together, *by_ray, *chain(*apart))],
        "two_workers_speedup": round(one["seconds"] / two["seconds"], 3),
        "two_workers_speedup_without_start": round(_steady(one) / _steady(two), 3),
        "two_jobs_speedup": round(2 * one["seconds"] / min(jobs), 3),
        "two_workers_peak_mib": two["peak_mib"],
        "ray_seconds": [one["seconds"] for one in by_ray],
        "ray": None,
    }
    if by_ray:
        ray = _quickest(by_ray)
        result["ray"] = ray | {"ray_over_local": round(ray["seconds"] / two["seconds"], 3)}
    return result


def _quickest(runs: list[dict[str, Any]]) -> dict[str, Any]:
    return min(runs, key=lambda run: float(run["seconds"]))


def _steady(run: dict[str, Any]) -> float:
    """Return the seconds of a run after its first chunk, while which workers start."""
    return float(run["seconds"] - run["seconds_to_first_chunk"])


def _elsewhere(config: IngestConfig, pgn: Path, address: str) -> dict[str, Any]:
    """Ingest the dump from an address and from the file in turns; return positions/s of the faster run of each."""
    runs: dict[str, list[float]] = {str(pgn.absolute()): [], address: []}
    for _ in range(TURNS):
        for source, rates in runs.items():
            run = _run(config, [], 1, source=source)
            rates.append(run["positions"] / run["seconds"])
    here, there = (max(rates) for rates in runs.values())
    return {
        "address": address,
        "file_positions_per_second": round(here),
        "address_positions_per_second": round(there),
        "address_over_file": round(there / here, 3),
    }


def _month(last: dict[str, Any], speedup: float) -> dict[str, Any]:
    """Multiply what the largest stream took to a month, on two cores."""
    rate = last["positions"] / last["seconds"] * speedup
    chunks_of_month = -(-MONTH_TEXT // MONTH_CHUNK)
    return {
        "hours_on_two_cores": round(MONTH_POSITIONS / rate / 3600, 2),
        "shard_gigabytes": round(MONTH_POSITIONS * last["shard_bytes"] / last["positions"] / 1e9),
        "shards": len(SPLITS) * chunks_of_month,
    }


def measure(
    pgn: Path,
    smallest: int,
    largest: int,
    progress: Progress = silent,
    address: str | None = None,
    config: IngestConfig | None = None,
) -> dict[str, Any]:
    """Measure one process on streams of growing size, then two workers, Ray, and the reader alone.

    `memory_ratio`: peak memory of the largest stream over that of the smallest. `time_linearity`: seconds per position of the
    largest over those of the smallest. `two_jobs_speedup`: two jobs of one worker at once over the same in sequence, the most
    that two cores can give. `feeds_cores`: cores as fast as this one that the reader could keep busy. `address_over_file`:
    speed of an ingest from `address` over that from the file. `month`: the largest month of Lichess at the largest stream's
    speed, times two workers' gain without their start. Raises ConfigError for sizes that make no range.
    """
    config = config or IngestConfig()
    sizes = _sizes(smallest, largest)
    seed = Repeats(pgn, min(SEED_BYTES, largest))
    runs = []
    for size in sizes:
        again = REPEATED if size < SHORT_BYTES else 1
        runs.append(_quickest([_run(config, seed.read(size), 1) for _ in range(again)]))
        runs[-1]["positions_per_second"] = round(runs[-1]["positions"] / runs[-1]["seconds"])
        runs[-1]["bytes_per_position"] = round(runs[-1]["shard_bytes"] / runs[-1]["positions"], 2)
        progress(Tick(len(runs), len(sizes) + 1, "runs"))
    first, last = runs[0], runs[-1]
    reader = _reader(pgn)
    result: dict[str, Any] = {
        "pgn": pgn.name,
        "planes": config.planes,
        "history": config.history,
        "cores": available_cores(),
        "seed_bytes": len(seed.text),
        "sizes": runs,
        "memory_ratio": round(last["peak_mib"] / first["peak_mib"], 3),
        "time_linearity": round(last["seconds"] / last["positions"] * first["positions"] / first["seconds"], 3),
        "reader": reader,
        "feeds_cores": round(reader["split_gb_per_second"] * 1e9 * last["seconds"] / last["bytes"], 1),
    }
    with tempfile.TemporaryDirectory(prefix="fianchetto-bench-") as folder:
        # A file and not a pipe as above: whoever feeds the pipe takes time from two workers on two cores.
        dump = Path(folder) / "stream.pgn"
        with dump.open("wb") as file:
            file.writelines(seed.read(min(largest, SPREAD_BYTES)))
        result |= _spread(config, dump)
    result["month"] = _month(last, result["two_workers_speedup_without_start"])
    progress(Tick(len(sizes) + 1, len(sizes) + 1, "runs"))
    if address is not None:
        result |= _elsewhere(config, pgn, address)
    return result | {"text": _table(result)}


def _table(result: dict[str, Any]) -> str:
    """Return the numbers as text."""
    lines = [f"{'bytes':>16} {'games':>12} {'positions':>14} {'seconds':>9} {'positions/s':>12} {'peak MiB':>9}"]
    for run in result["sizes"]:
        lines.append(
            f"{run['bytes']:>16,} {run['games']:>12,} {run['positions']:>14,} {run['seconds']:>9.2f} "
            f"{run['positions_per_second']:>12,} {run['peak_mib']:>9,}"
        )
    reader, month = result["reader"], result["month"]
    told = {
        "planes, bytes a position": f"{result['planes']}, {result['sizes'][-1]['bytes_per_position']}",
        "memory, largest over smallest": f"{result['memory_ratio']:.3f}",
        "seconds per position, largest over smallest": f"{result['time_linearity']:.3f}",
        "two workers over one": f"{result['two_workers_speedup']:.3f}"
        f" ({result['two_workers_speedup_without_start']:.3f} without the first chunk)",
        "seconds of one worker": result["one_worker_seconds"],
        "seconds of two workers": result["two_workers_seconds"],
        "two separate jobs at once over one": f"{result['two_jobs_speedup']:.3f}",
        "decompression alone": f"{reader['decompression_gb_per_second']:.3f} GB of text/s",
        "decompression and splitting into games": f"{reader['split_gb_per_second']:.3f} GB/s,"
        f" {reader['split_games_per_second']:,} games/s: feeds {result['feeds_cores']} cores",
        "a month of 6 G positions on two cores": f"{month['hours_on_two_cores']} hours, {month['shard_gigabytes']:,} GB"
        f" in {month['shards']:,} shards",
    }
    if result["ray"]:
        told |= {
            "Ray over local, without its start": result["ray"]["ray_over_local"],
            "its seconds": result["ray_seconds"],
        }
    if "address" in result:
        told["ingest from the address over the file"] = f"{result['address_over_file']:.3f}"
    return "\n".join([*lines, "", *(f"{name:<45}{value}" for name, value in told.items())])
