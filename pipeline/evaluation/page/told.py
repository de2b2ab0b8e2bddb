"""What the page shows of told ratings: a heat map of likelihoods, and curves of what moves lose."""

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.evaluation.page import charts

SHADE = 70
"""Percent of the colour that the best cell of a row has."""
CURVES = (("score", "expected score lost"), ("centipawns", "centipawns lost"), ("blunder", "share of blunders"))


def told_page(matrix: Mapping[str, Any]) -> dict[str, Any]:
    """Return the heat map: each row with its cells, shaded from the least likely told rating of the row to the likeliest."""
    rows = []
    for row in matrix["rows"]:
        likelihoods: Sequence[float] = row["log_likelihood"]
        low, high = min(likelihoods), max(likelihoods)
        cells = [
            {
                "log_likelihood": likelihood,
                "top1": top1,
                "shade": round(SHADE * (likelihood - low) / (high - low)) if high > low else 0,
                "own": told == row["told"],
                "best": told == row["best"],
            }
            for told, likelihood, top1 in zip(matrix["told"], likelihoods, row["top1"], strict=True)
        ]
        rows.append({"row": row, "cells": cells})
    return {"told": matrix.get("told", []), "rows": rows}


def losses_page(losses: Mapping[str, Any]) -> dict[str, Any]:
    """Return the curves with their titles, and the rows of the table."""
    rows, found = losses["rows"], []
    for term, title in CURVES if rows else ():
        curve = [
            {
                "rating": row["told"],
                "people": row[f"people_{term}"],
                "low": row[f"people_{term}_low"],
                "high": row[f"people_{term}_high"],
                "network, told their rating": row[f"network_{term}"],
                "its first choice": row[f"first_{term}"],
                "told nothing": row[f"untold_{term}"],
            }
            for row in rows
        ]
        names = ("people", "network, told their rating", "its first choice", "told nothing")
        found.append((title, charts.lines(curve, "rating", names, band=("low", "high"))))
    if rows:
        by_told = [{"rating told": row["told"], "score": row["score"]} for row in losses["by_told"]]
        found.append(
            ("expected score lost by told rating, all positions", charts.lines(by_told, "rating told", ("score",)))
        )
    return {"charts": found, "rows": rows}
