"""Shards to shuffled packed rows, beside a torch Dataset that reads the same columns row by row from pandas."""

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from engine.progress import Progress, Tick, silent
from pipeline.bench.machine import one_core
from pipeline.dataset.batches import HUMAN_COLUMNS, Batches
from pipeline.dataset.files.columns import FORMS
from pipeline.dataset.files.shard_files import open_shard
from pipeline.dataset.training_set import split_shards
from pipeline.errors import ConfigError
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest

BATCH = 512
ROWS_AT_LEAST = 2_000_000
FILLED = 2
"""Blocks read before the clock starts: as many as are in memory."""
SECONDS_BESIDE = 5.0
TURNS = 2


def _stream_rate(positions: Path) -> float:
    """Read shuffled batches of an epoch or ROWS_AT_LEAST; return rows per second.

    The clock starts when both blocks of memory have been filled: a training run touches new memory only once.
    """
    batches = Batches([positions], "train", batch_size=BATCH)
    wanted = max(batches.rows, ROWS_AT_LEAST)
    stream = batches.from_step(0)
    for _ in range(FILLED * batches.block_rows // BATCH):
        next(stream)
    rows = 0
    began = time.perf_counter()
    while rows < wanted:
        rows += len(next(stream)["planes"])
    return rows / (time.perf_counter() - began)


def _pandas_rate(positions: Path) -> float:
    """Read rows from a torch Dataset over a pandas frame, shuffled by its DataLoader; return rows/s."""
    try:
        import pandas as pd
    except ImportError as error:
        raise ConfigError("this benchmark needs pandas: pip install pandas") from error
    import torch
    from torch.utils.data import DataLoader, Dataset

    with open_shard(split_shards(positions, "train")[0].path) as reader:
        groups = [reader.read(group, HUMAN_COLUMNS) for group in range(len(reader.groups))]
    columns = {name: np.concatenate([rows[name] for rows in groups]) for name in HUMAN_COLUMNS}
    frame: Any = pd.DataFrame({name: list(values) for name, values in columns.items()})

    class Rows(Dataset[dict[str, torch.Tensor | float]]):
        def __len__(self) -> int:
            return len(frame)

        def __getitem__(self, index: int) -> dict[str, torch.Tensor | float]:
            row = frame.iloc[index]
            fields = {name: float(row[name]) for name in HUMAN_COLUMNS if name != "planes"}
            return {"planes": torch.tensor(row["planes"].view(np.int64)), **fields}

    rows = 0
    began = time.perf_counter()
    for batch in DataLoader(Rows(), batch_size=BATCH, shuffle=True):
        rows += len(batch["planes"])
        if time.perf_counter() - began > SECONDS_BESIDE:
            break
    return rows / (time.perf_counter() - began)


def measure(pgn: Path, progress: Progress = silent) -> dict[str, Any]:
    """Measure shuffled rows from disk with all their planes, of both forms in turns, and rows from pandas."""
    with tempfile.TemporaryDirectory(prefix="fianchetto-bench-") as folder, one_core():
        forms = {form: Path(folder) / form for form in FORMS}
        for form, positions in forms.items():
            ingest([str(pgn)], positions, IngestConfig(planes=form), workers=1)
        pandas_rate = _pandas_rate(forms["all"])
        progress(Tick(1, 1 + TURNS, "stages"))
        rates = dict.fromkeys(FORMS, 0.0)
        for turn in range(TURNS):
            for form in FORMS:
                rates[form] = max(rates[form], _stream_rate(forms[form]))
            progress(Tick(2 + turn, 1 + TURNS, "stages"))
    return {
        "positions_per_second": round(rates["all"]),
        "compact_positions_per_second": round(rates["compact"]),
        "pandas_rows_per_second": round(pandas_rate),
        "ratio_pandas": round(rates["all"] / pandas_rate, 1),
    }
