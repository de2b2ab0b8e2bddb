"""A GPU in under eight minutes: feed, training steps, search and self-play; on a CPU with tiny settings, to see that it works.

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
from model.data.inputs import move_to_device, network_input
from model.inference.evaluator import NetworkEvaluator
from model.network.network import build
from model.network.presets import preset
from model.training.config import TrainConfig
from model.training.precision import device_for, dtype_for
from model.training.step import new_run, prepare, take_step
from pipeline.bench.search import SIMULATIONS, efficiency
from pipeline.dataset.batches import HUMAN_COLUMNS, Batches
from pipeline.dataset.files.columns import EARLIER_MOVES
from pipeline.dataset.files.shards import Batch
from pipeline.ingest.job import ingest


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuSettings:
    """What is measured, and for how long."""

    presets: tuple[str, ...] = ("fianchetto-s", "fianchetto-m", "fianchetto-l", "fianchetto-squares")
    """Networks that are trained."""
    player: str = "fianchetto-s"
    """Network that searches and plays itself."""
    batch_size: int = 1024
    seconds: float = 8.0
    """Time of each measurement, without compiling."""
    games: int = 1024
    """Games that are searched at once."""
    plies: int = 8
    """Half-moves of each self-play game."""
    matrix: int = 8192
    """Rows of the square matrices whose product is the yardstick."""
    budget: float = 360.0
    """Seconds after which no more training begins."""


CPU = GpuSettings(player="fianchetto-xs", batch_size=8, seconds=0.5, games=8, plies=2, matrix=512, budget=90.0)


def _per_second(work: Callable[[], int], seconds: float, device: torch.device) -> float:
    """Return the units per second that calls return, after two calls that are not counted."""

    def call() -> int:
        units = work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return units

    call(), call()
    began, done = time.perf_counter(), call()
    while time.perf_counter() - began < seconds:
        done += call()
    return done / (time.perf_counter() - began)


def _matmul_tflops(device: torch.device, rows: int, seconds: float) -> float:
    """Return the TFLOP/s of a bf16 matrix product, the yardstick of this device."""
    left = torch.randn(rows, rows, device=device, dtype=torch.bfloat16)

    def work() -> int:
        torch.mm(left, left)
        return 2 * rows**3

    return _per_second(work, seconds, device) / 1e12


def _feed(batches: Iterator[Batch], name: str, device: torch.device, seconds: float) -> float:
    """Return positions per second from shards to the inputs of a network on the device."""
    row, dtype = preset(name), dtype_for("auto", device)

    def work() -> int:
        batch = next(batches)
        network_input(row, move_to_device(batch, row, device), dtype)
        return len(batch["planes"])

    return _per_second(work, seconds, device)


def _training(batch: Batch, name: str, device: torch.device, compiled: bool, seconds: float) -> dict[str, Any]:
    """Return positions per second of training steps on a batch in memory, and their TFLOP/s."""
    rows = len(batch["planes"])
    config = TrainConfig(steps=1_000_000, batch_size=rows, norm_rows=rows, device=device.type, compile=compiled)  # type: ignore[arg-type]
    run = new_run(config, preset(name))

    def step() -> int:
        take_step(run, prepare(run, batch), 0.5)
        return rows

    rate = _per_second(step, seconds, device)
    flops = 3 * size(preset(name))["flops"]  # the backward pass costs two forward passes
    return {"positions_per_second": round(rate, 1), "tflops": round(rate * flops / 1e12, 4)}


def _playing(settings: GpuSettings, device: torch.device) -> dict[str, Any]:
    """Return evaluations per second of a search, and moves per second of self-play, by the same network."""
    evaluator = NetworkEvaluator(build(preset(settings.player), seed=0), device=device.type)
    share, searched, ready = efficiency(evaluator, settings.games, 1, 2)
    search = SearchConfig(simulations=SIMULATIONS, dirichlet_fraction=0.25)
    config, began = SelfPlayConfig(width=settings.games, most_plies=settings.plies), time.perf_counter()
    moves = sum(len(game.labels) for game in play_games(evaluator, search, config, games=settings.games))
    return {
        "player": settings.player,
        "games": settings.games,
        "simulations": SIMULATIONS,
        "search_evaluations_per_second": round(searched),
        "ready_evaluations_per_second": round(ready),
        "search_efficiency": round(share, 4),
        "selfplay_moves_per_second": round(moves / (time.perf_counter() - began), 1),
    }


def measure(
    pgn: Path, *, device: str = "auto", settings: GpuSettings | None = None, progress: Progress = silent
) -> dict[str, Any]:
    """Measure the device on positions of a dump; raises DeviceError where there is no such device.

    `share_of_matmul` is a training step's TFLOP/s over those of a matrix product, measured in this run.
    """
    where, began = device_for(device), time.perf_counter()
    settings = settings or (GpuSettings() if where.type == "cuda" else CPU)
    kinds = [(name, compiled) for compiled in (False, True) for name in settings.presets]
    matmul = _matmul_tflops(where, settings.matrix, min(2.0, settings.seconds))
    with tempfile.TemporaryDirectory(prefix="fianchetto-bench-") as folder:
        ingest([str(pgn)], Path(folder), workers=1)
        columns = (*HUMAN_COLUMNS, *EARLIER_MOVES)
        batches = Batches([Path(folder)], "train", batch_size=settings.batch_size, columns=columns).from_step(0)
        batch = next(batches)
        feed = _feed(batches, settings.player, where, settings.seconds)
        batches.close()  # type: ignore[attr-defined]
    progress(Tick(1, len(kinds) + 2, "stages"))
    playing = _playing(settings, where)
    progress(Tick(2, len(kinds) + 2, "stages"))
    training: list[dict[str, Any]] = []
    for name, compiled in kinds:
        row: dict[str, Any] = {"preset": name, "compile": compiled}
        if time.perf_counter() - began > settings.budget:
            row["skipped"] = "no time left"
        else:
            try:
                row |= _training(batch, name, where, compiled, settings.seconds)
                row["share_of_matmul"] = round(row["tflops"] / matmul, 4)
            except torch.OutOfMemoryError:
                row["skipped"] = f"{settings.batch_size} positions need more memory"
        training.append(row)
        progress(Tick(2 + len(training), len(kinds) + 2, "stages"))
    return {
        "device": torch.cuda.get_device_name(where) if where.type == "cuda" else "CPU",
        "torch": torch.__version__,
        "matmul_tflops": round(matmul, 6),
        "batch_size": settings.batch_size,
        "feed_positions_per_second": round(feed),
        **playing,
        "seconds": round(time.perf_counter() - began, 1),
        "training": training,
    }
