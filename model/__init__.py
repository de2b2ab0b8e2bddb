"""Networks: presets, losses, the trainer, checkpoints and evaluators.

`load("datasets/checkpoints/xs").choose(board)` returns a move, the probabilities of all legal moves
and a value.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from model.inference.player import Player

__all__ = ["load"]

# Beside other busy processes, torch's threads spend 90 % of their time spinning at barriers. This
# limit makes them sleep instead; the OpenMP library reads it once, when torch is imported.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

# oneDNN caches compiled kernels by shape: by default 1,024 shapes in each of two caches. Every
# different number of legal moves in a batch is a new shape. An hour of training cached gigabytes of
# kernels that were never used again.
for _limit in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
    os.environ.setdefault(_limit, "128")


def load(
    directory: str | Path, *, device: str = "auto", amp: str = "auto", threads: int = 1
) -> "Player":
    """Load a checkpoint as a `model.inference.player.Player`. The first call imports torch."""
    from model.inference.player import load as load_player

    return load_player(directory, device=device, amp=amp, threads=threads)
