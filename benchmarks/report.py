"""Time a report of the embedded network, by its exported network and by torch."""

import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from engine.progress import Progress, Tick, silent
from model.card import ONNX
from pipeline.evaluation.render import write_report
from pipeline.evaluation.report import report
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from pipeline.samples.shipped import EMBEDDED


def measure(pgn: Path, progress: Progress = silent) -> dict[str, Any]:
    """Time a report of the default size on half of the dump's games; ingest is not counted.

    `torch_seconds` is the time for a checkpoint without an exported network, as training leaves it,
    in the same process.
    """
    with tempfile.TemporaryDirectory(prefix="fianchetto-bench-") as name:
        folder = Path(name)
        ingest([str(pgn)], folder / "positions", IngestConfig(planes="compact", test_share=0.5))
        progress(Tick(1, 3, "stages"))
        began = time.perf_counter()
        found = report(EMBEDDED, positions=folder / "positions")
        measured = time.perf_counter()
        write_report(found, folder / "report")
        ended = time.perf_counter()
        progress(Tick(2, 3, "stages"))
        bare = shutil.copytree(EMBEDDED, folder / "bare", ignore=shutil.ignore_patterns(ONNX))
        again = time.perf_counter()
        beside = report(bare, positions=folder / "positions")
        torch_seconds = time.perf_counter() - again
        progress(Tick(3, 3, "stages"))
    return {
        "positions": found["positions"],
        "seconds": round(ended - began, 1),
        "page_seconds": round(ended - measured, 1),
        "evaluated_by": found["evaluated_by"],
        "torch_seconds": round(torch_seconds, 1),
        "top1_difference": round(found["top1"] - beside["top1"], 5),
    }
