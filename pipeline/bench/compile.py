"""Compile times of all Numba kernels without a cache, and a second start that must compile none."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from engine.progress import Progress, Tick, silent

_START = """
import json, sys, tempfile, time
from pathlib import Path
began = time.perf_counter()
from engine.evaluation.handwritten import evaluate
from engine.board.movegen import perft
from engine.evaluation.move_features import legal_move_features
from engine.board.position import from_fen
from pipeline.ingest.job import ingest
from pipeline.dataset.batches import Batches
import chess
perft(from_fen(chess.STARTING_FEN), 2)
with tempfile.TemporaryDirectory() as folder:
    ingest([sys.argv[1]], Path(folder), workers=1)
    planes = next(Batches([Path(folder)], "train", batch_size=1).from_step(0))["planes"]
    evaluate(planes), legal_move_features(planes)
seconds = time.perf_counter() - began
from numba.core.dispatcher import Dispatcher
kernels = {}
for module in list(sys.modules.values()):
    if getattr(module, "__name__", "").split(".")[0] in ("engine", "pipeline"):
        kernels |= {id(value): value for value in vars(module).values() if isinstance(value, Dispatcher)}
hits = sum(sum(kernel.stats.cache_hits.values()) for kernel in kernels.values())
misses = sum(sum(kernel.stats.cache_misses.values()) for kernel in kernels.values())
print(json.dumps({"seconds": seconds, "kernels": len(kernels), "hits": hits, "misses": misses}))
"""


def _start(cache: str, pgn: Path) -> dict[str, Any]:
    """Run a small job in a new process with Numba's cache in `cache`."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": cache}
    command = [sys.executable, "-c", _START, str(pgn)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def measure(pgn: Path, progress: Progress = silent) -> dict[str, Any]:
    """Measure two starts, without and with a cache: each ingests a few games and evaluates one position."""
    from pipeline.bench.ingest import first_games

    with tempfile.TemporaryDirectory(prefix="fianchetto-bench-") as folder:
        small = Path(folder) / "small.pgn"
        small.write_bytes(first_games(pgn, 1 << 17))
        cold = _start(str(Path(folder) / "cache"), small)
        progress(Tick(1, 2, "starts"))
        warm = _start(str(Path(folder) / "cache"), small)
    return {
        "kernels": cold["kernels"],
        "cold_seconds": round(cold["seconds"], 2),
        "warm_seconds": round(warm["seconds"], 2),
        "compile_seconds": round(cold["seconds"] - warm["seconds"], 2),
        "cold_misses": cold["misses"],
        "warm_misses": warm["misses"],
    }
