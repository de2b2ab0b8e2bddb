"""Distance of two distributions: Jensen-Shannon divergence in bits, and the population stability index.

The divergence is 0 for equal distributions and 1 for disjoint ones (Lin 1991). The index is read as in credit scoring: below
0.1 the same population, above 0.25 another one (Siddiqi 2006); bins that are empty on one side count as FLOOR.

Axes: K bins.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
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


def compare(before: Histograms, after: Histograms) -> list[dict[str, Any]]:
    """Compare two populations by column, the largest divergence first; columns that are empty on one side are left out."""
    rows = [
        {
            "column": name,
            "jensen_shannon": round(divergence(mine, after[name]), 6),
            "psi": round(stability(mine, after[name]), 6),
        }
        for name, mine in before.items()
        if mine.sum() and after[name].sum()
    ]
    return sorted(rows, key=lambda row: (-row["jensen_shannon"], row["column"]))


def compare_in_order(names: Sequence[str], histograms: Sequence[Histograms]) -> list[dict[str, Any]]:
    """Compare each population with the one before it."""
    steps = zip(pairwise(names), pairwise(histograms), strict=True)
    return [{"from": old, "to": new, **row} for (old, new), (one, two) in steps for row in compare(one, two)]


def by_step(rows: Sequence[Mapping[str, Any]], most: int | None = None) -> list[dict[str, Any]]:
    """Return a row for each step from one population to another: each column's divergence, and which column moved most.

    With `most`, only so many steps, those that moved most, in their order.
    """
    columns = sorted({str(row["column"]) for row in rows})
    steps: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        steps.setdefault((row["from"], row["to"]), {})[row["column"]] = row
    found: list[tuple[float, dict[str, Any]]] = []
    for (before, after), step in steps.items():
        worst = max(step.values(), key=lambda row: float(row["jensen_shannon"]))
        words = f"{worst['column']}: {verdict(worst['psi'])} (PSI {worst['psi']:.3f})"
        values = {name: round(step[name]["jensen_shannon"], 4) if name in step else None for name in columns}
        found.append((worst["jensen_shannon"], {"from": before, "to": after, **values, "moved most": words}))
    floor = sorted((far for far, _ in found), reverse=True)[:most][-1:]
    return [row for far, row in found if far >= floor[0]][:most]


def verdict(psi: float) -> str:
    """Describe a population stability index."""
    return "the same population" if psi < SAME else "some drift" if psi < OTHER else "another population"
