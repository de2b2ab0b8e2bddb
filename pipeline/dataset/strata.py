"""Bands of ratings and classes of time control, by which rows are counted. Axes: R rows."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.dataset.files.columns import BATCH_SENTINELS

CLASSES = ("ultraBullet", "bullet", "blitz", "rapid", "classical", "unknown")
"""Lichess's classes of time control."""
CLASS_EDGES = (30, 180, 480, 1500)
"""Seconds of base + 40 x increment at which the second and later classes begin:
lichess.org/faq#time-controls."""
RATING_EDGES = (1200, 1600, 2000, 2400)


def speed_class(base: NDArray[Any], increment: NDArray[Any]) -> NDArray[np.int64]:
    """Return the index into CLASSES of time controls in seconds, all of them known."""
    return np.searchsorted(
        CLASS_EDGES, base.astype(np.int64) + 40 * increment.astype(np.int64), side="right"
    )


def time_class(base_R: NDArray[Any], increment_R: NDArray[Any]) -> NDArray[np.int64]:
    """Return each row's index into CLASSES; a batch's sentinels stand for unknown seconds."""
    known = (base_R != BATCH_SENTINELS["base"]) & (increment_R != BATCH_SENTINELS["increment"])
    return np.where(known, speed_class(base_R, increment_R), len(CLASSES) - 1)


def rating_band(elo_R: NDArray[Any], edges: Sequence[int]) -> NDArray[np.int64]:
    """Return each row's band, as `band_names` names them; unknown ratings come last."""
    band = np.searchsorted(np.asarray(edges), elo_R, side="right")
    return np.where(elo_R == BATCH_SENTINELS["elo"], len(edges) + 1, band)


def band_names(edges: Sequence[int], unit: str = "") -> list[str]:
    """Return names: below the first edge, between edges, from the last edge on, and unknown."""
    between = [f"{low}-{high - 1}{unit}" for low, high in itertools.pairwise(edges)]
    return [f"below {edges[0]}{unit}", *between, f"{edges[-1]}{unit} and on", "unknown"]
