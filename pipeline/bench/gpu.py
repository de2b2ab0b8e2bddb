"""What a GPU gives, in under eight minutes: feed, training steps, search and self-play; on a CPU with tiny settings too.

Axes: B batch.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from engine.progress import Progress, Tick, silent
from engine.search import SearchConfig
from engine.selfplay.generate import SelfPlayConfig, play_games
from model.costs import size
from model.data.inputs import network_input, to_device
from model.inference.evaluator import NetworkEvaluator
from model.network.network import build
from model.network.presets import preset
from model.training.config import TrainConfig
from model.training.precision import device_for, dtype_for
from model.training.state import begin, prepare, take_step
from pipeline.bench.search import SIMULATIONS, efficiency
from pipeline.dataset.batches import HUMAN_COLUMNS, Batches
from pipeline.dataset.files.columns import EARLIER_MOVES
from pipeline.dataset.files.shards import Batch

PEAK_TFLOPS = {
    "B200": 2250.0,
    "H200": 989.0,
    "H100 PCIe": 756.0,
    "H100": 989.0,
    "A100": 312.0,
    "L40S": 362.0,
    "L4": 121.0,
    "RTX 4090": 165.2,
    "RTX 3090": 71.0,
}
"""bf16 TFLOP/s of dense matrix products by the makers' data sheets; the first name that is in the device's counts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuSettings:
    """What is measured, and for how long."""

    presets: tuple[str, ...] = ("fianchetto-s", "fianchetto-m", "fianchetto-l", "fianchetto-squares")
    """Networks that are trained."""
    player: str = "fianchetto-s"
    """Network that searches and plays itself."""
    batch_size: int = 1024
    """Positions of a training step."""
    seconds: float = 8.0
    """Time of each measurement, without compiling."""
    games: int = 1024
    """Games that are searched at once."""
    plies: int = 8
    """Half-moves of each self-play game."""
    matrix: int = 8192
    """Rows of the square matrices whose product is the yardstick."""
    budget: float = 360.0
    """Seconds after which no more training begins, so that the whole stays under eight minutes."""


CPU = GpuSettings(player="fianchetto-xs", batch_size=8, seconds=0.5, games=8, plies=2, matrix=512, budget=90.0)
"""Settings where there is no GPU: to see that it works, not how fast."""


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _per_second(work: Callable[[], int], seconds: float, device: torch.device) -> float:
    """Call until the time is over, twice before it, and return the units that calls return per second."""
    for _ in range(2):
        work()
    _wait(device)
    began, done = time.perf_counter(), 0
    while time.perf_counter() - began < seconds or done == 0:
        done += work()
        _wait(device)
    return done / (time.perf_counter() - began)


def _matmul_tflops(device: torch.device, rows: int, seconds: float) -> float:
    """Return the TFLOP/s of a bf16 matrix product: what this device really gives."""
    left = torch.randn(rows, rows, device=device, dtype=torch.bfloat16)

    def work() -> int:
        torch.mm(left, left)
        return 2 * rows**3

    return _per_second(work, seconds, device) / 1e12


def _feed(batches: Iterator[Batch], name: str, device: torch.device, seconds: float) -> dict[str, float]:
    """Return positions/s from shards to packed batches, and on into the inputs of a network on the device."""
    row, dtype, held = preset(name), dtype_for("auto", device), next(batches)

    def read() -> int:
        return len(next(batches)["planes"])

    def carried() -> int:
        network_input(row, to_device(held, row, device), dtype)
        return len(held["planes"])

    return {
        "batches_positions_per_second": round(_per_second(read, seconds, device)),
        "inputs_positions_per_second": round(_per_second(carried, seconds, device)),
    }


def _training(batch: Batch, name: str, device: torch.device, compiled: bool, seconds: float) -> dict[str, Any]:
    """Return positions/s of training steps on a batch in memory, their TFLOP/s, and peak memory; or why not."""
    try:
        return _steps(batch, name, device, compiled, seconds)
    except torch.OutOfMemoryError:
        return {"preset": name, "compile": compiled, "skipped": f"{len(batch['planes'])} positions need more memory"}


def _steps(batch: Batch, name: str, device: torch.device, compiled: bool, seconds: float) -> dict[str, Any]:
    """Measure training steps."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    rows = len(batch["planes"])
    config = TrainConfig(steps=1_000_000, batch_size=rows, device=device.type, compile=compiled)  # type: ignore[arg-type]
    run = begin(config, preset(name))

    def step() -> int:
        take_step(run, prepare(run, batch), 0.5)
        return rows

    began = time.perf_counter()
    step()
    _wait(device)
    first = time.perf_counter() - began
    rate = _per_second(step, seconds, device)
    flops = 3 * size(preset(name))["flops"]  # the way back is two passes
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    return {
        "preset": name,
        "compile": compiled,
        "dtype": str(run.dtype).removeprefix("torch."),
        "positions_per_second": round(rate, 1),
        "tflops": round(rate * flops / 1e12, 4),
        "first_step_seconds": round(first, 2),
        "peak_memory_mib": None if peak is None else round(peak / 2**20),
    }


def _playing(settings: GpuSettings, device: torch.device) -> dict[str, Any]:
    """Return evaluations/s of a search and moves/s of self-play by the same network."""
    evaluator = NetworkEvaluator(build(preset(settings.player), seed=0), device=device.type)
    share, searched, ready = efficiency(evaluator, settings.games, 1, 2)
    search = SearchConfig(simulations=SIMULATIONS, dirichlet_fraction=0.25)
    config = SelfPlayConfig(width=settings.games, most_plies=settings.plies)
    began = time.perf_counter()
    moves = sum(len(game.labels) for game in play_games(evaluator, search, config, games=settings.games))
    return {
        "preset": settings.player,
        "games": settings.games,
        "simulations": SIMULATIONS,
        "search_evaluations_per_second": round(searched),
        "ready_evaluations_per_second": round(ready),
        "search_efficiency": round(share, 4),
        "selfplay_moves_per_second": round(moves / (time.perf_counter() - began), 1),
    }


def measure(
    pgn: Path, progress: Progress = silent, *, device: str = "auto", settings: GpuSettings | None = None
) -> dict[str, Any]:
    """Measure the device on positions of a dump; raises DeviceError where there is no such device.

    `mfu` is a training step's TFLOP/s over those of the maker's data sheet, null for a device that is not in PEAK_TFLOPS;
    `share_of_matmul` is over a matrix product's, measured in this run.
    """
    from pipeline.ingest.job import ingest

    where, began = device_for(device), time.perf_counter()
    settings = settings or (GpuSettings() if where.type == "cuda" else CPU)
    name = torch.cuda.get_device_name(where) if where.type == "cuda" else "CPU"
    spec = next((tflops for known, tflops in PEAK_TFLOPS.items() if known in name), None)
    stages = 2 * len(settings.presets) + 3
    matmul = _matmul_tflops(where, settings.matrix, min(2.0, settings.seconds))
    progress(Tick(1, stages, "stages"))
    with tempfile.TemporaryDirectory(prefix="fianchetto-bench-") as folder:
        ingest([str(pgn)], Path(folder), workers=1)
        columns = (*HUMAN_COLUMNS, *EARLIER_MOVES)
        batches = Batches([Path(folder)], "train", batch_size=settings.batch_size, columns=columns).from_step(0)
        batch = next(batches)
        feed = _feed(batches, settings.player, where, settings.seconds)
        batches.close()  # type: ignore[attr-defined]
    progress(Tick(2, stages, "stages"))
    playing = _playing(settings, where)
    progress(Tick(3, stages, "stages"))
    training: list[dict[str, Any]] = []
    for compiled in (False, True):  # all that need no compiler first
        for one in settings.presets:
            if time.perf_counter() - began > settings.budget:
                training.append({"preset": one, "compile": compiled, "skipped": "the time was over"})
            else:
                training.append(_training(batch, one, where, compiled, settings.seconds))
            progress(Tick(3 + len(training), stages, "stages"))
    for row in training:
        if "tflops" in row:
            row["mfu"] = None if spec is None else round(row["tflops"] / spec, 4)
            row["share_of_matmul"] = round(row["tflops"] / matmul, 4)
    result = {
        "device": name,
        "torch": torch.__version__,
        "peak_tflops": spec,
        "matmul_tflops": round(matmul, 3),
        "batch_size": settings.batch_size,
        "feed": feed,
        "training": training,
        "playing": playing,
        "seconds": round(time.perf_counter() - began, 1),
    }
    return result | {"text": _table(result)}


def _table(result: dict[str, Any]) -> str:
    """Return the figures as text."""
    feed, playing = result["feed"], result["playing"]
    peak = "unknown" if result["peak_tflops"] is None else f"{result['peak_tflops']:,.0f}"
    lines = [
        f"{result['device']}, torch {result['torch']}; bf16 matmul {result['matmul_tflops']:,.2f} TFLOP/s, data sheet {peak}",
        f"feed: {feed['batches_positions_per_second']:,} positions/s to batches,"
        f" {feed['inputs_positions_per_second']:,} positions/s to the device",
        "",
        f"{'training':<20}{'compile':>8}{'positions/s':>13}{'TFLOP/s':>9}{'MFU':>8}{'matmul':>8}{'MiB':>9}{'first s':>9}",
    ]
    for row in result["training"]:
        if "skipped" in row:
            lines.append(f"{row['preset']:<20}{row['compile']!s:>8}  {row['skipped']}")
            continue
        mfu = "" if row["mfu"] is None else f"{100 * row['mfu']:.1f} %"
        memory = "" if row["peak_memory_mib"] is None else f"{row['peak_memory_mib']:,}"
        lines.append(
            f"{row['preset']:<20}{row['compile']!s:>8}{row['positions_per_second']:>13,.0f}{row['tflops']:>9.2f}{mfu:>8}"
            f"{100 * row['share_of_matmul']:>6.1f} %{memory:>9}{row['first_step_seconds']:>9.1f}"
        )
    lines += [
        "",
        f"{playing['preset']}, {playing['games']:,} games: {playing['search_evaluations_per_second']:,} evaluations/s"
        f" in search ({100 * playing['search_efficiency']:.0f} % of ready batches),"
        f" {playing['selfplay_moves_per_second']:,} self-play moves/s at {playing['simulations']} simulations",
        f"{result['seconds']:.0f} s in all",
    ]
    return "\n".join(lines)
