"""Strata of positions: bands of the mover's rating and classes of time control, and thinning to wanted shares of them.

Axes: R rows, B bands (the last one: rating unknown), C classes.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.dataset.files.columns import BATCH_SENTINELS
from pipeline.dataset.hashing import splitmix64, unit_interval
from pipeline.errors import ConfigError

CLASSES = ("ultraBullet", "bullet", "blitz", "rapid", "classical", "unknown")
"""Lichess's classes of time control."""
CLASS_EDGES = (30, 180, 480, 1500)
"""Seconds of base + 40 x increment that a class begins at, from the second class on: lichess.org/faq#time-controls."""
RATING_EDGES = (1200, 1600, 2000, 2400)


def speed_class(base: NDArray[Any], increment: NDArray[Any]) -> NDArray[np.int64]:
    """Return the index into CLASSES of time controls in seconds, all of them known."""
    return np.searchsorted(CLASS_EDGES, base.astype(np.int64) + 40 * increment.astype(np.int64), side="right")


def time_class(base_R: NDArray[Any], increment_R: NDArray[Any]) -> NDArray[np.int64]:
    """Give each row's index into CLASSES from its time control in seconds, as batches hold it."""
    known = (base_R != BATCH_SENTINELS["base"]) & (increment_R != BATCH_SENTINELS["increment"])
    return np.where(known, speed_class(base_R, increment_R), len(CLASSES) - 1)


def rating_band(elo_R: NDArray[Any], edges: Sequence[int]) -> NDArray[np.int64]:
    """Give each row's band: 0 below the first edge, then between edges, from the last on; unknown ones come last."""
    band = np.searchsorted(np.asarray(edges), elo_R, side="right")
    return np.where(elo_R == BATCH_SENTINELS["elo"], len(edges) + 1, band)


def band_names(edges: Sequence[int], unit: str = "") -> list[str]:
    """Name the bands that `rating_band` numbers."""
    between = [f"{low}-{high - 1}{unit}" for low, high in itertools.pairwise(edges)]
    return [f"below {edges[0]}{unit}", *between, f"{edges[-1]}{unit} and on", "unknown"]


@dataclass(frozen=True, slots=True)
class Thinning:
    """Which rows of a shard stay, by chance: a rate for each band and class. A row's chance is a hash, ever the same."""

    edges: tuple[int, ...]
    """Edges of the bands of rating."""
    rates: tuple[tuple[float, ...], ...]
    """[B][C] share of rows that stay."""
    salt: int
    """What makes the chances of one dataset and seed independent of another's, uint64."""

    def kept(self, rows: Mapping[str, NDArray[Any]]) -> NDArray[np.bool_]:
        """Tell which rows stay (bool[R]), from THINNED_BY, the columns that it goes by."""
        place = rows["game"].astype(np.uint64) << np.uint64(16) | rows["ply"].astype(np.uint64)
        chance = unit_interval(splitmix64(place ^ np.uint64(self.salt)))
        rates_BC = np.asarray(self.rates)
        where = rating_band(rows["elo"], self.edges), time_class(rows["base"], rows["increment"])
        kept: NDArray[np.bool_] = chance < rates_BC[where]
        return kept


THINNED_BY = ("game", "ply", "elo", "base", "increment")


def rake(counts_BC: NDArray[np.int64], bands: Sequence[float], classes: Sequence[float]) -> NDArray[np.float64]:
    """Find the rates [B, C], at most 1, that thin counts to wanted shares of bands and of classes (none: as they come).

    Iterative proportional fitting (Deming and Stephan 1940): each rate is a factor of the band times one of the class.
    Raises ConfigError where a wanted stratum is empty, or the two wishes exclude each other.
    """
    weights_BC = (counts_BC > 0).astype(np.float64)
    wishes = [(axis, _normal(wish)) for axis, wish in ((1, bands), (0, classes)) if len(wish)]
    for axis, wish in wishes:
        empty = (wish > 0) & (counts_BC.sum(axis=axis) == 0)
        if empty.any():
            what = "band of rating" if axis else "class of time control"
            raise ConfigError(f"no position is in the {what} number {int(np.argmax(empty)) + 1}: its share must be 0")
    for _ in range(1000):
        worst = 0.0
        for axis, wish in wishes:
            shares = (counts_BC * weights_BC).sum(axis=axis) / max((counts_BC * weights_BC).sum(), 1e-300)
            worst = max(worst, float(np.abs(shares - wish).max()))
            factor = np.divide(wish, shares, out=np.zeros_like(wish), where=shares > 0)
            weights_BC *= factor[:, None] if axis else factor[None, :]
        if worst < 1e-9:
            break
    if wishes and worst > 1e-4:
        raise ConfigError("no thinning gives these shares by rating and by time control at once: change one of them")
    rates_BC: NDArray[np.float64] = weights_BC / weights_BC.max()
    return rates_BC


def _normal(wish: Sequence[float]) -> NDArray[np.float64]:
    """Scale shares to the sum 1."""
    shares = np.asarray(wish, dtype=np.float64)
    shares /= shares.sum()
    return shares
