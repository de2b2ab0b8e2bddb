"""Assign rows to rating bands and to classes of time controls. Axes: R rows."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.dataset.files.columns import BATCH_SENTINELS

TIME_CLASSES = ("ultraBullet", "bullet", "blitz", "rapid", "classical", "unknown")
"""Names of Lichess's classes of time controls; the last one is for rows without a time control."""
TIME_CLASS_EDGES = (30, 180, 480, 1500)
"""Lower edges of the second and later classes, in seconds of base + 40 x increment
(lichess.org/faq#time-controls)."""
RATING_EDGES = (1200, 1600, 2000, 2400)
"""Lower edges of the second and later rating bands of reports."""


def classify_speeds(base: NDArray[Any], increment: NDArray[Any]) -> NDArray[np.int64]:
    """Return the index into TIME_CLASSES of each known time control, given in seconds."""
    return np.searchsorted(
        TIME_CLASS_EDGES, base.astype(np.int64) + 40 * increment.astype(np.int64), side="right"
    )


def classify_time_controls(base_R: NDArray[Any], increment_R: NDArray[Any]) -> NDArray[np.int64]:
    """Return each row's index into TIME_CLASSES; the sentinels of a batch count as unknown."""
    known = (base_R != BATCH_SENTINELS["base"]) & (increment_R != BATCH_SENTINELS["increment"])
    return np.where(known, classify_speeds(base_R, increment_R), len(TIME_CLASSES) - 1)


def assign_rating_bands(elo_R: NDArray[Any], edges: Sequence[int]) -> NDArray[np.int64]:
    """Return each row's index into `name_bands(edges)`; unknown ratings have the last one."""
    band = np.searchsorted(np.asarray(edges), elo_R, side="right")
    return np.where(elo_R == BATCH_SENTINELS["elo"], len(edges) + 1, band)


def name_bands(edges: Sequence[int], unit: str = "") -> list[str]:
    """Return names for the bands below, between and above the edges, and last "unknown"."""
    between = [f"{low}-{high - 1}{unit}" for low, high in itertools.pairwise(edges)]
    return [f"below {edges[0]}{unit}", *between, f"{edges[-1]}{unit} and on", "unknown"]
