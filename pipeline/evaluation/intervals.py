"""95 % intervals that treat a game as the sampling unit, since the positions of one game are alike.

Axes: R rows.
"""

import math
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

FEWEST_GAMES = 10
"""Games that an interval needs; fewer do not show how games differ."""
NORMAL_95 = NormalDist().inv_cdf(0.975)
"""Standard deviations of a normal distribution on either side of its mean that hold 95 %."""


def wilson(rate: float, count: float) -> tuple[float, float]:
    """Return the 95 % interval of a share in `count` independent draws (Wilson 1927)."""
    square = NORMAL_95**2 / count
    middle = (rate + square / 2) / (1 + square)
    half = math.sqrt(rate * (1 - rate) * square + square**2 / 4) / (1 + square)
    return max(0.0, middle - half), min(1.0, middle + half)


def clustered_interval(
    hit_R: NDArray[np.bool_], game_R: NDArray[Any]
) -> tuple[float, float] | None:
    """Return the 95 % interval of the share of hits; None below FEWEST_GAMES.

    It is Wilson's for the effective number of positions: their number over the design effect (Kish
    1965), which is the ratio estimator's variance over that of independent positions, and at least
    1. If every position was a hit, or none, the effect cannot be estimated, and each game counts as
    one position.
    """
    _, place_R = np.unique(game_R, return_inverse=True)
    n = np.bincount(place_R).astype(float)
    hits = np.bincount(place_R, weights=hit_R)
    count, rows = len(n), n.sum()
    if count < FEWEST_GAMES:
        return None
    rate = float(hits.sum() / rows)
    alone = rate * (1 - rate) / (rows - 1)
    clustered = np.square(hits - rate * n).sum() * count / (count - 1) / rows**2
    effect = clustered / alone if alone else rows / count
    return wilson(rate, float(rows / max(effect, 1.0)))


def clustered_mean(
    values_R: NDArray[Any], game_R: NDArray[Any]
) -> tuple[float, float | None, float | None]:
    """Return the mean of rows and the ends of its 95 % interval, which are None below FEWEST_GAMES.

    The variance is that of the ratio estimator (Cochran 1977, 6.3), with residuals summed by game.
    """
    mean = float(np.mean(values_R))
    _, place_R = np.unique(game_R, return_inverse=True)
    residuals = np.bincount(place_R, weights=values_R - mean)
    if (count := len(residuals)) < FEWEST_GAMES:
        return mean, None, None
    half = (
        NORMAL_95
        * math.sqrt(float(np.square(residuals).sum()) * count / (count - 1))
        / len(values_R)
    )
    return mean, mean - half, mean + half
