"""Benchmark reading shuffled packed rows from shards."""

import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import one_core
from pipeline.dataset.batches import Batches
from pipeline.dataset.files.columns import PLANE_FORMATS
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest

BATCH_SIZE = 512
MIN_ROWS = 2_000_000
"""Minimum number of rows that one measurement reads."""
RUNS = 2
"""Measurements of each storage form; the fastest counts, since machines are shared."""


def _measure_reading(positions: Path) -> float:
    """Read shuffled batches and return rows per second.

    At least an epoch and MIN_ROWS are read. Timing starts once both memory blocks are filled,
    because a training run allocates them only once.
    """
    batches = Batches([positions], "train", batch_size=BATCH_SIZE)
    stream = batches.from_step(0)
    for _ in range(2 * min(batches.block_rows, batches.rows) // BATCH_SIZE):
        next(stream)
    rows, began = 0, time.perf_counter()
    while rows < max(batches.rows, MIN_ROWS):
        rows += len(next(stream)["planes"])
    return rows / (time.perf_counter() - began)


def measure(pgn: Path) -> dict[str, Any]:
    """Measure shuffled reads from disk, alternating between both storage forms of planes."""
    with tempfile.TemporaryDirectory(prefix="fianchetto-bench-") as folder, one_core():
        forms = {form: Path(folder) / form for form in PLANE_FORMATS}
        for form, positions in forms.items():
            ingest([str(pgn)], positions, IngestConfig(planes=form), workers=1)
        rates = dict.fromkeys(PLANE_FORMATS, 0.0)
        for form in PLANE_FORMATS * RUNS:
            rates[form] = max(rates[form], _measure_reading(forms[form]))
    return {
        "positions_per_second": round(rates["all"]),
        "compact_positions_per_second": round(rates["compact"]),
    }
