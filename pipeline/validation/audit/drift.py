"""How far two distributions lie apart: Jensen-Shannon divergence in bits, and the population stability index.

The first is 0 for equal ones and 1 for ones without anything in common (Lin 1991). The second is the one that credit scoring
reads as: below 0.1 the same, above 0.25 another population (Siddiqi 2006); bins that are empty on one side count as FLOOR.

Axes: K bins.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

FLOOR = 1e-4
"""Least share of a bin in the population stability index."""

SAME, OTHER = 0.1, 0.25
"""Population stability index below which two populations are the same, and above which one is another."""

Histograms = Mapping[str, NDArray[np.int64]]
"""Counts [K] by column."""


def divergence(first_K: NDArray[Any], second_K: NDArray[Any]) -> float:
    """Return the Jensen-Shannon divergence of two counts in bits."""
    first, second = first_K / first_K.sum(), second_K / second_K.sum()
    middle = (first + second) / 2
    total = 0.0
    for side in (first, second):
        some = side > 0
        total += float((side[some] * np.log2(side[some] / middle[some])).sum()) / 2
    return max(total, 0.0)


def stability(before_K: NDArray[Any], after_K: NDArray[Any]) -> float:
    """Return the population stability index of two counts."""
    used = (before_K > 0) | (after_K > 0)
    before = np.maximum(before_K[used] / before_K.sum(), FLOOR)
    after = np.maximum(after_K[used] / after_K.sum(), FLOOR)
    return float(((after - before) * np.log(after / before)).sum())


def compared(before: Histograms, after: Histograms) -> list[dict[str, Any]]:
    """Compare two populations by column, those that moved most first; a column that one knows nothing of is left out."""
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


def chain(names: Sequence[str], histograms: Sequence[Histograms]) -> list[dict[str, Any]]:
    """Compare each population with the one before it."""
    found = []
    for at in range(1, len(names)):
        for row in compared(histograms[at - 1], histograms[at]):
            found.append({"from": names[at - 1], "to": names[at], **row})
    return found


def by_step(rows: Sequence[Mapping[str, Any]], most: int | None = None) -> list[dict[str, Any]]:
    """Return a row for each step from one population to another: the divergence of each column, and which moved most.

    With `most`, only so many steps, those that moved most, in their order.
    """
    columns = list(dict.fromkeys(row["column"] for row in sorted(rows, key=lambda row: str(row["column"]))))
    steps: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        steps.setdefault((row["from"], row["to"]), {})[row["column"]] = row
    found = []
    for (before, after), step in steps.items():
        worst = max(step.values(), key=lambda row: float(row["jensen_shannon"]))
        words = f"{worst['column']}: {verdict(worst['psi'])} (PSI {worst['psi']:.3f})"
        values = {name: round(step[name]["jensen_shannon"], 4) if name in step else None for name in columns}
        found.append({"from": before, "to": after, **values, "moved most": words})
    if most is None or len(found) <= most:
        return found
    far = [max(row["jensen_shannon"] for row in step.values()) for step in steps.values()]
    floor = sorted(far, reverse=True)[most - 1]
    return [row for row, value in zip(found, far, strict=True) if value >= floor][:most]


def verdict(psi: float) -> str:
    """Return a population stability index in words."""
    return "the same population" if psi < SAME else "some drift" if psi < OTHER else "another population"
