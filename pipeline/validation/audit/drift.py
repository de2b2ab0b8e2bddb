"""Distance of two distributions: Jensen-Shannon divergence in bits, and the population stability index.

The divergence is 0 for equal distributions and 1 for disjoint ones (Lin 1991). The index is read as in credit scoring: below
0.1 the same population, above 0.25 another one (Siddiqi 2006); bins that are empty on one side count as FLOOR.

Axes: K bins.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

FLOOR = 1e-4
"""Least share of a bin in the population stability index."""

SAME, OTHER = 0.1, 0.25
"""Population stability index below which two populations are the same, and above which they differ."""

Histograms = Mapping[str, NDArray[np.int64]]
"""Counts [K] by column."""


def divergence(first_K: NDArray[Any], second_K: NDArray[Any]) -> float:
    """Return the Jensen-Shannon divergence of two histograms in bits."""
    first, second = first_K / first_K.sum(), second_K / second_K.sum()
    middle = (first + second) / 2
    total = 0.0
    for side in (first, second):
        some = side > 0
        total += float((side[some] * np.log2(side[some] / middle[some])).sum()) / 2
    return max(total, 0.0)


def stability(before_K: NDArray[Any], after_K: NDArray[Any]) -> float:
    """Return the population stability index of two histograms."""
    used = (before_K > 0) | (after_K > 0)
    before = np.maximum(before_K[used] / before_K.sum(), FLOOR)
    after = np.maximum(after_K[used] / after_K.sum(), FLOOR)
    return float(((after - before) * np.log(after / before)).sum())


def compare(before: Histograms, after: Histograms) -> dict[str, Any]:
    """Return each column's divergence, and which column moved most; columns without rows on one side are left out."""
    far = {name: divergence(one, after[name]) for name, one in before.items() if one.sum() and after[name].sum()}
    if not far:
        return {}
    most = max(far, key=lambda name: far[name])
    psi = stability(before[most], after[most])
    verdict = "the same population" if psi < SAME else "some drift" if psi < OTHER else "another population"
    return {name: round(value, 4) for name, value in far.items()} | {"moved most": f"{most}: {verdict} (PSI {psi:.3f})"}
