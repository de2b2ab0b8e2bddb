"""Memory and time of the command `ingest` on streams from megabytes to tens of gigabytes, and what more workers gain."""

import importlib.util
import tempfile
from pathlib import Path
from typing import Any

from engine.progress import Progress, Tick, silent
from pipeline.bench.machine import Run, run_ingest
from pipeline.bench.stream import Repeats
from pipeline.errors import ConfigError
from pipeline.ingest.chunk import IngestConfig

SEED_BYTES = 32 << 20
"""Bytes of text that are repeated: about 14,000 games with clocks and evals."""
STEP = 10
"""Ratio of one size to the one before."""
SPREAD_BYTES = 500_000_000
"""Most bytes on which one worker, two workers and Ray are compared."""
TURNS = 3
"""Runs of each kind, in turns; the fastest counts, since machines are shared."""
SHORT_BYTES = 100_000_000
"""Streams below this size are measured `TURNS` times."""


def _sizes(smallest: int, largest: int) -> list[int]:
    """Return the sizes to measure, the largest last."""
    if not 100_000 <= smallest <= largest:
        raise ConfigError("smallest is at least 100,000 bytes, and largest no less")
    sizes = []
    while smallest < largest:
        sizes.append(smallest)
        smallest *= STEP
    return [*sizes, largest]


def _quickest(runs: list[Run]) -> Run:
    return min(runs, key=lambda run: run.seconds)


def _turns(kinds: dict[str, list[str]], config: IngestConfig) -> dict[str, Run]:
    """Return the quickest run of each kind, by name; a kind is a source and further words of the command line."""
    runs: dict[str, list[Run]] = {name: [] for name in kinds}
    for _ in range(TURNS):
        for name, (source, *words) in kinds.items():
            runs[name].append(run_ingest(source, config, *words, keep=False))
    return {name: _quickest(found) for name, found in runs.items()}


def measure(
    pgn: Path,
    smallest: int,
    largest: int,
    address: str | None = None,
    config: IngestConfig | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Measure one worker on streams of growing size; then one worker, two workers and Ray on a file; then an address.

    Seconds are of whole commands; `start_seconds`, those of a stream of one game, are subtracted where times are compared.
    `memory_ratio` and `time_ratio` compare the largest stream with the smallest: peak memory, and seconds per position.
    Raises ConfigError for sizes that make no range.
    """
    config, sizes = config or IngestConfig(), _sizes(smallest, largest)
    seed = Repeats(pgn, min(SEED_BYTES, largest))
    start = _quickest(
        [run_ingest("-", config, "--workers", "1", stream=[seed.first_game]) for _ in range(TURNS)]
    ).seconds
    runs: list[Run] = []
    for size in sizes:
        again = range(TURNS if size < SHORT_BYTES else 1)
        streams = (run_ingest("-", config, "--workers", "1", stream=seed.read(size), keep=False) for _ in again)
        runs.append(_quickest(list(streams)))
        progress(Tick(len(runs), len(sizes) + 1, "streams"))
    with tempfile.TemporaryDirectory(prefix="fianchetto-bench-") as folder:
        # A file and not a pipe as above: feeding a pipe takes time from two workers on two cores.
        dump = Path(folder) / "stream.pgn"
        with dump.open("wb") as file:
            file.writelines(seed.read(min(largest, SPREAD_BYTES)))
        kinds = {"one worker": [str(dump), "--workers", "1"], "two workers": [str(dump), "--workers", "2"]}
        if importlib.util.find_spec("ray") is not None:
            kinds["two workers of Ray"] = [str(dump), "--workers", "2", "--engine", "ray"]
        spread = _turns(kinds, config)
    progress(Tick(len(sizes) + 1, len(sizes) + 1, "streams"))

    def per_position(run: Run) -> float:
        return (run.seconds - start) / run.positions

    result: dict[str, Any] = {
        "pgn": pgn.name,
        "planes": config.planes,
        "history": config.history,
        "start_seconds": round(start, 2),
        "memory_ratio": round(runs[-1].peak_mib / runs[0].peak_mib, 3),
        "time_ratio": round(per_position(runs[-1]) / per_position(runs[0]), 3),
        "two_workers_speedup": round(spread["one worker"].seconds / spread["two workers"].seconds, 3),
    }
    if address is not None:
        apart = _turns({"here": [str(pgn), "--workers", "1"], "there": [address, "--workers", "1"]}, config)
        result["address_over_file"] = round(apart["here"].seconds / apart["there"].seconds, 3)
    rows = [_row(f"{size:,} bytes", run) for size, run in zip(sizes, runs, strict=True)]
    return result | {"runs": rows + [_row(name, run) for name, run in spread.items()]}


def _row(name: str, run: Run) -> dict[str, Any]:
    """Return a run as a row of the table."""
    return {
        "run": name,
        "games": run.games,
        "positions": run.positions,
        "seconds": round(run.seconds, 2),
        "positions_per_second": round(run.rate),
        "peak_mib": round(run.peak_mib),
        "bytes_per_position": round(run.shard_bytes / run.positions, 2),
    }
