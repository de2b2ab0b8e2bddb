"""Shards to shuffled packed rows, beside a torch Dataset that reads the same columns row by row from pandas."""

import time
from pathlib import Path
from typing import Any

import numpy as np

from engine.progress import Progress, Tick, silent
from pipeline.bench.cores import one_core
from pipeline.dataset.batches import HUMAN_COLUMNS, Batches
from pipeline.dataset.files.shards import shard_paths
from pipeline.errors import ConfigError

BATCH = 512
ROWS_AT_LEAST = 2_000_000
FILLED = 2
"""Blocks read before the clock starts: as many as are in memory."""
SECONDS_BESIDE = 5.0


def _stream_rate(positions: Path) -> tuple[float, float, int]:
    """Read shuffled batches of an epoch or ROWS_AT_LEAST; return rows/s, rows per CPU-second, and rows.

    The clock starts when both blocks of memory have been filled: a training run touches new memory only once.
    """
    batches = Batches([positions], "train", batch_size=BATCH)
    wanted = max(batches.rows, ROWS_AT_LEAST)
    stream = batches.from_step(0)
    for _ in range(FILLED * batches.block_rows // BATCH):
        next(stream)
    rows = 0
    began, cpu = time.perf_counter(), time.process_time()
    while rows < wanted:
        rows += len(next(stream)["planes"])
    return rows / (time.perf_counter() - began), rows / (time.process_time() - cpu), rows


def _pandas_rate(positions: Path) -> float:
    """Read rows from a torch Dataset over a pandas frame, shuffled by its DataLoader; return rows/s."""
    try:
        import pandas as pd
    except ImportError as error:
        raise ConfigError("this benchmark needs pandas: pip install pandas") from error
    import torch
    from torch.utils.data import DataLoader, Dataset

    frame = pd.read_parquet(shard_paths(positions, "train")[0], columns=list(HUMAN_COLUMNS))

    class Rows(Dataset[dict[str, torch.Tensor | float]]):
        def __len__(self) -> int:
            return len(frame)

        def __getitem__(self, index: int) -> dict[str, torch.Tensor | float]:
            row = frame.iloc[index]
            fields = {name: float(row[name]) for name in HUMAN_COLUMNS if name != "planes"}  # pandas reads null as NaN
            return {"planes": torch.tensor(np.frombuffer(row["planes"], dtype=np.int64)), **fields}

    rows = 0
    began = time.perf_counter()
    for batch in DataLoader(Rows(), batch_size=BATCH, shuffle=True):
        rows += len(batch["planes"])
        if time.perf_counter() - began > SECONDS_BESIDE:
            break
    return rows / (time.perf_counter() - began)


def measure(positions: Path, progress: Progress = silent) -> dict[str, Any]:
    """Measure shuffled packed rows from disk, and their ratio to rows from pandas."""
    with one_core():
        pandas_rate = _pandas_rate(positions)
        progress(Tick(1, 2, "stages"))
        rate, cpu_rate, rows = _stream_rate(positions)
    progress(Tick(2, 2, "stages"))
    return {
        "rows": rows,
        "positions_per_second": round(rate),
        "positions_per_cpu_second": round(cpu_rate),
        "pandas_rows_per_second": round(pandas_rate),
        "ratio_pandas": round(rate / pandas_rate, 1),
    }
