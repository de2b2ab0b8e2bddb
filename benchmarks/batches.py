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

BATCH = 512
MIN_ROWS = 2_000_000
TURNS = 2


def _stream_rate(positions: Path) -> float:
    """Read shuffled batches and return rows per second.

    At least an epoch and MIN_ROWS are read. Timing starts once both memory blocks are filled,
    because a training run allocates them only once.
    """
    batches = Batches([positions], "train", batch_size=BATCH)
    stream = batches.from_step(0)
    for _ in range(2 * min(batches.block_rows, batches.rows) // BATCH):
        next(stream)
    rows, began = 0, time.perf_counter()
    while rows < max(batches.rows, MIN_ROWS):
        rows += len(next(stream)["planes"])
    return rows / (time.perf_counter() - began)


def measure(pgn: Path) -> dict[str, Any]:
    """Measure shuffled reads of all planes from disk, alternating between both storage forms."""
    with tempfile.TemporaryDirectory(prefix="fianchetto-bench-") as folder, one_core():
        forms = {form: Path(folder) / form for form in PLANE_FORMATS}
        for form, positions in forms.items():
            ingest([str(pgn)], positions, IngestConfig(planes=form), workers=1)
        rates = dict.fromkeys(PLANE_FORMATS, 0.0)
        for form in PLANE_FORMATS * TURNS:
            rates[form] = max(rates[form], _stream_rate(forms[form]))
    return {
        "positions_per_second": round(rates["all"]),
        "compact_positions_per_second": round(rates["compact"]),
    }
