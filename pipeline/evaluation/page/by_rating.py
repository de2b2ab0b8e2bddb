"""What the page shows by rating: a heat map of likelihoods, and curves of what moves lose."""

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.evaluation.page import charts

SHADE = 70
"""Percent of the color in the best cell of a row."""
CURVES = (("score", "expected score lost"), ("centipawns", "centipawns lost"), ("blunder", "share of blunders"))
NAMES = {
    "people": "people",
    "network": "network at their rating",
    "first": "its first choice",
    "unconditioned": "no rating",
}


def matrix_page(matrix: Mapping[str, Any]) -> dict[str, Any]:
    """Return the heat map: each row with its cells, shaded from the row's least to its most likely rating."""
    rows = []
    for row in matrix["rows"]:
        likelihoods: Sequence[float] = row["log_likelihood"]
        low, high = min(likelihoods), max(likelihoods)
        cells = [
            {
                "log_likelihood": likelihood,
                "top1": top1,
                "shade": round(SHADE * (likelihood - low) / (high - low)) if high > low else 0,
                "own": rating == row["rating"],
                "best": rating == row["best"],
            }
            for rating, likelihood, top1 in zip(matrix["ratings"], likelihoods, row["top1"], strict=True)
        ]
        rows.append({"row": row, "cells": cells})
    return {"ratings": matrix["ratings"], "rows": rows}


def losses_page(losses: Mapping[str, Any]) -> dict[str, Any]:
    """Return the curves, titles and SVG, and the rows of the table."""
    rows, found = losses["rows"], []
    for term, title in CURVES if rows else ():
        curve = [
            {
                "rating": row["rating"],
                "low": row[f"people_{term}_low"],
                "high": row[f"people_{term}_high"],
                **{name: row[f"{key}_{term}"] for key, name in NAMES.items()},
            }
            for row in rows
        ]
        found.append((title, charts.lines(curve, "rating", tuple(NAMES.values()), band=("low", "high"))))
    return {"charts": found, "rows": rows}
