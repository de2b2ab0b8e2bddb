"""Networks: presets, losses, the trainer, checkpoints, and a checkpoint as an evaluator.

`load("datasets/checkpoints/xs").choose(board)` gives a move, the probabilities of all moves and a
value.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from model.inference.player import Player

__all__ = ["load"]

# Where another process uses the cores, torch's threads spend nine tenths of their time spinning
# until the others arrive. The OpenMP library reads this limit once, when torch is imported.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

# oneDNN keeps the kernels that it compiled for a shape, by default those of 1,024 shapes in each of
# two caches. Each number of legal moves in a batch is another shape: an hour of training kept
# gigabytes of kernels that were never used again.
for _cache in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
    os.environ.setdefault(_cache, "128")


def load(directory: str | Path, *, device: str = "auto", amp: str = "auto") -> "Player":
    """Load a checkpoint as a player (model/inference/player.py); torch is imported only now."""
    from model.inference.player import load as load_player

    return load_player(directory, device=device, amp=amp)
