"""The training loop on batches from disk, beside the same loop on one batch in memory."""

import time
from collections.abc import Iterator
from functools import partial
from itertools import repeat
from pathlib import Path
from statistics import median
from typing import Any

from engine.progress import Progress, Tick, silent
from pipeline.dataset.batches import Batches
from pipeline.dataset.files.shards import Batch
from pipeline.training.train import columns_of

STEPS = 25
ROUNDS = 6
BLOCK_ROWS = 4096
"""Rows of a shuffle block: few, so that every round reads row groups from disk."""


def _rate(run: Any, batches: Iterator[Batch]) -> float:
    """Take STEPS steps, as a run does, and return positions/s."""
    from model.data.prefetch import Prefetcher
    from model.training.state import prepare, take_step

    rows = 0
    with Prefetcher(batches, partial(prepare, run), run.device) as feed:
        began = time.perf_counter()
        for _ in range(STEPS):
            parts = feed.take()
            assert parts is not None  # both streams are endless
            rows += sum(len(part["planes"]) for part in parts)
            take_step(run, parts, 0.5)
        return rows / (time.perf_counter() - began)


def measure(positions: Path, progress: Progress = silent, preset_name: str = "fianchetto-xs") -> dict[str, Any]:
    """Measure both loops in turns, so that a machine that slows down slows both."""
    from model.network.presets import preset
    from model.training.config import TrainConfig
    from model.training.state import begin

    config = TrainConfig(steps=10_000)
    run = begin(config, preset(preset_name))
    columns = columns_of(config, preset(preset_name))
    stream = Batches(
        [positions], "train", batch_size=config.batch_size, columns=columns, block_rows=BLOCK_ROWS
    ).from_step(0)
    held = repeat(next(stream))
    _rate(run, held)  # warm
    fed_rates, held_rates = [], []
    for number in range(ROUNDS):
        progress(Tick(number, ROUNDS, "rounds"))
        fed_rates.append(_rate(run, stream))
        held_rates.append(_rate(run, held))
    fed, in_memory = median(fed_rates), median(held_rates)
    return {
        "preset": preset_name,
        "batch_size": config.batch_size,
        "fed_positions_per_second": round(fed),
        "held_positions_per_second": round(in_memory),
        "fed_ratio": round(fed / in_memory, 4),
    }
