"""Assign rows to rating bands and time-control classes for counting. Axes: R rows."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.dataset.files.columns import BATCH_SENTINELS

CLASSES = ("ultraBullet", "bullet", "blitz", "rapid", "classical", "unknown")
"""Lichess's classes of time control."""
CLASS_EDGES = (30, 180, 480, 1500)
"""Lower edges of the second and later classes, in seconds of base + 40 x increment
(lichess.org/faq#time-controls)."""
RATING_EDGES = (1200, 1600, 2000, 2400)


def speed_class(base: NDArray[Any], increment: NDArray[Any]) -> NDArray[np.int64]:
    """Return the indices into CLASSES of time controls in seconds; none may be unknown."""
    return np.searchsorted(
        CLASS_EDGES, base.astype(np.int64) + 40 * increment.astype(np.int64), side="right"
    )


def time_class(base_R: NDArray[Any], increment_R: NDArray[Any]) -> NDArray[np.int64]:
    """Return each row's index into CLASSES; sentinels of a batch count as unknown."""
    known = (base_R != BATCH_SENTINELS["base"]) & (increment_R != BATCH_SENTINELS["increment"])
    return np.where(known, speed_class(base_R, increment_R), len(CLASSES) - 1)


def rating_band(elo_R: NDArray[Any], edges: Sequence[int]) -> NDArray[np.int64]:
    """Return each row's index into `band_names`; unknown ratings come last."""
    band = np.searchsorted(np.asarray(edges), elo_R, side="right")
    return np.where(elo_R == BATCH_SENTINELS["elo"], len(edges) + 1, band)


def band_names(edges: Sequence[int], unit: str = "") -> list[str]:
    """Return the band names: below the first edge, between edges, from the last on, unknown."""
    between = [f"{low}-{high - 1}{unit}" for low, high in itertools.pairwise(edges)]
    return [f"below {edges[0]}{unit}", *between, f"{edges[-1]}{unit} and on", "unknown"]
