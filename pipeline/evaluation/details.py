"""The figures of the report page: finer slices, calibration of the policy, protocols, baselines and paired differences.

The table is that of `figures`, with these columns beside: `choice_probability choice_hit` of the network's first choice,
`NAME_*` of each of BASELINES, and what `moves` and `strata` say of the row.

Axes: R rows.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from pipeline.dataset.strata import CLASSES, band_names, rating_band, time_class
from pipeline.evaluation.figures import (
    FEWEST_GAMES,
    FIFTHS,
    calibration_error,
    clustered_interval,
    clustered_mean,
    interval,
    placed,
    reliability,
    value_reliability,
)
from pipeline.evaluation.moves import KINDS, PHASES, PIECES

FINE_RATING_EDGES = (1000, 1200, 1400, 1600, 1800, 2000, 2200, 2400)
PLY_EDGES = (10, 20, 30, 40, 60, 80)
CLOCK_EDGES = (10, 30, 60, 180, 600)
MOVES_EDGES = (2, 5, 10, 20, 30, 40)

Rows = list[dict[str, Any]]


def with_strata(table: pl.DataFrame) -> pl.DataFrame:
    """Return the table with the columns `band` (mover's rating) and `speed` (class of time control), as numbers."""
    columns = {name: table[name].to_numpy() for name in ("elo", "base", "increment")}
    return table.with_columns(
        pl.Series("band", rating_band(columns["elo"], FINE_RATING_EDGES)),
        pl.Series("speed", time_class(columns["base"], columns["increment"])),
    )


def group_figures(name: str, rows: pl.DataFrame) -> dict[str, Any]:
    """Return the figures of one group of rows, with their intervals, and how well policy and value are calibrated there."""
    found = interval(rows) or (None, None)
    rank = rows["rank"]
    cross_entropy, low, high = clustered_mean(rows["nll"].to_numpy(), rows["game"].to_numpy())
    return {
        "band": name,
        "positions": len(rows),
        "games": rows["game"].n_unique(),
        **{f"top{k}": float((rank <= k).to_numpy().mean()) for k in (1, 3, 5)},
        "top1_low": found[0],
        "top1_high": found[1],
        "cross_entropy": cross_entropy,
        "cross_entropy_low": low,
        "cross_entropy_high": high,
        "perplexity": math.exp(min(cross_entropy, 700.0)),
        **_value_brier(rows),
        "hand_written_top1": float((rows["classical_rank"] == 1).to_numpy().mean()),
        **_calibration("policy", rows, "choice_probability", pl.col("rank") == 1, reliability(rows, FIFTHS)),
        **_calibration("value", rows, "expected", pl.col("score"), value_reliability(rows, FIFTHS)),
    }


def _value_brier(rows: pl.DataFrame) -> dict[str, float | None]:
    """Return the Brier score of the value and its interval; None for rows of no result."""
    known = rows.filter(pl.col("brier").is_not_null())
    means: Sequence[float | None] = (None, None, None)
    if len(known):
        means = clustered_mean(known["brier"].to_numpy(), known["game"].to_numpy())
    return dict(zip(("value_brier", "value_brier_low", "value_brier_high"), means, strict=True))


def _calibration(name: str, rows: pl.DataFrame, said: str, came: pl.Expr, diagram: Rows) -> dict[str, Any]:
    """Return the reliability diagram, its expected calibration error, and the bias with its interval.

    The bias is the mean of what was expected less the mean of what came: above 0, too sure or too hopeful.
    """
    known = rows.select(came.cast(pl.Float64).alias("came"), pl.col(said).alias("said"), "game").drop_nulls("came")
    bias: Sequence[float | None] = (None, None, None)
    if len(known):
        bias = clustered_mean((known["said"] - known["came"]).to_numpy(), known["game"].to_numpy())
    return {
        f"{name}_reliability": diagram,
        f"{name}_calibration_error": calibration_error(diagram) if diagram else None,
        **dict(zip((f"{name}_bias", f"{name}_bias_low", f"{name}_bias_high"), bias, strict=True)),
    }


def _by_number(table: pl.DataFrame, column: str, names: Sequence[str]) -> Rows:
    """Return the figures of each value of a column that numbers `names`, in their order."""
    groups = {int(key[0]): rows for key, rows in table.partition_by(column, as_dict=True).items()}
    return [group_figures(names[at], groups[at]) for at in sorted(groups)]


def _by_edges(table: pl.DataFrame, column: str, edges: Sequence[int], unit: str = "") -> Rows:
    """Return the figures between edges of a column; unknown values are left out."""
    return _by_number(placed(table, column, edges), "place", band_names(edges, unit))


def detailed_slices(table: pl.DataFrame) -> dict[str, Rows]:
    """Return the tables of the page: by rating, time control, phase, ply, clock, piece, legal moves and kind of move."""
    return {
        "rating": _by_number(table, "band", band_names(FINE_RATING_EDGES)),
        "time control": _by_number(table, "speed", CLASSES),
        "phase": _by_number(table, "phase", PHASES),
        "ply": _by_edges(table, "ply", PLY_EDGES),
        "clock": _by_edges(table, "clock", CLOCK_EDGES, " s"),
        "piece moved": _by_number(table, "piece", PIECES),
        "legal moves": _by_edges(table, "legal_moves", MOVES_EDGES),
        "kind of move": [group_figures(kind, rows) for kind in KINDS if len(rows := table.filter(pl.col(kind)))],
    }


def by_band_and_speed(table: pl.DataFrame) -> Rows:
    """Return the figures of each rating band and time control that has rows, with both names."""
    bands = band_names(FINE_RATING_EDGES)
    groups = table.partition_by(["band", "speed"], as_dict=True)
    return [
        {"rating": bands[int(band)], "time_control": CLASSES[int(speed)]} | group_figures("", groups[band, speed])
        for band, speed in sorted(groups)
    ]


HIT = pl.col("rank") == 1


def equal_bands(table: pl.DataFrame, hit: pl.Expr = HIT) -> dict[str, Any]:
    """Return top-1 with equal weight for each rating band, with its interval; `hit` is the share of a row that counts.

    Rows of unknown rating and bands of fewer than FEWEST_GAMES games are left out. The interval treats a game as the sampling
    unit, also where its two players are of different bands.
    """
    known = table.filter(pl.col("band") <= len(FINE_RATING_EDGES)).with_columns(hit.cast(pl.Float64).alias("hit"))
    rate = pl.col("hit").mean().alias("rate")
    sizes = known.group_by("band").agg(pl.len().alias("size"), rate, pl.col("game").n_unique().alias("games"))
    sizes = sizes.filter(pl.col("games") >= FEWEST_GAMES).sort("band")
    if not len(sizes):
        return {"positions": 0, "bands": 0}
    rows = known.join(sizes, on="band", how="inner", maintain_order="left")
    weights = 1 / (rows["size"].to_numpy().astype(float) * len(sizes))
    top1 = float(sizes["rate"].to_numpy().mean())
    # each band is centred at its own rate: the bands' shares are set, not drawn
    _, low, high = clustered_mean((rows["hit"] - rows["rate"]).to_numpy(), rows["game"].to_numpy(), weights)
    return {
        "positions": len(rows),
        "bands": len(sizes),
        "top1": top1,
        "top1_low": None if low is None else max(0.0, top1 + low),
        "top1_high": None if high is None else min(1.0, top1 + high),
    }


BASELINES = {
    "book": "same position in train",
    "logistic": "logistic regression",
    "classical": "hand-written",
    "frequent": "most frequent move",
}
"""Baselines by the beginning of their columns' names, in the order of the table."""


def _measured_baselines(table: pl.DataFrame) -> list[tuple[str, str]]:
    """Return name and title of the baselines that were measured."""
    return [(name, title) for name, title in BASELINES.items() if f"{name}_rank" in table.columns]


def baseline_rows(table: pl.DataFrame) -> Rows:
    """Return the network and what it is compared with, by the same rows: a figure that a baseline lacks is None."""
    legal = table["legal_moves"].to_numpy()
    rows = [_ranked("network", table, "")]
    for name, title in _measured_baselines(table):
        rows.append(_ranked(title, table, f"{name}_") | ({} if name == "classical" else {"value_brier": None}))
    uniform = {f"top{k}": float(np.minimum(k / legal, 1).mean()) for k in (1, 3, 5)}
    entropy = float(np.log(legal).mean())
    rows.append({"name": "uniform", **uniform, "cross_entropy": entropy, "perplexity": math.exp(entropy)})
    return [{"top1_low": None, "top1_high": None, "value_brier": None} | row for row in rows]


def baseline_table(rows: Rows) -> Rows:
    """Return `baseline_rows` as a table of plain columns, names first."""
    names = ("name", "top1", "top1_low", "top1_high", "top3", "top5", "cross_entropy", "value_brier")
    return [{name: row[name] for name in names} for row in rows]


def equal_band_rows(table: pl.DataFrame) -> Rows:
    """Return the network and its baselines with equal weight for each rating band."""
    hits = {"network": HIT} | {title: pl.col(f"{name}_rank") == 1 for name, title in _measured_baselines(table)}
    hits["uniform"] = 1 / pl.col("legal_moves")
    found = [{"name": name, **equal_bands(table, hit)} for name, hit in hits.items()]
    return [row for row in found if row["positions"]]


def _ranked(name: str, table: pl.DataFrame, prefix: str) -> dict[str, Any]:
    """Return the figures of one player whose ranks are in the table."""
    rank = table[f"{prefix}rank"].to_numpy()
    low, high = clustered_interval(rank == 1, table["game"].to_numpy()) or (None, None)
    entropy = float(table[f"{prefix}nll"].to_numpy().mean())
    brier = table[f"{prefix}brier"].mean() if f"{prefix}brier" in table.columns else None
    figures = {"cross_entropy": entropy, "perplexity": math.exp(min(entropy, 700.0)), "value_brier": brier}
    tops = {f"top{k}": float((rank <= k).mean()) for k in (1, 3, 5)}
    return {"name": name, **tops, "top1_low": low, "top1_high": high, **figures}


def paired(first: pl.DataFrame, other: pl.DataFrame) -> dict[str, Any]:
    """Return how much more often `other` hits than `first` on the same rows, with the interval by games."""
    assert first["key"].equals(other["key"]), "both tables are of the same rows in the same order"
    game = first["game"].to_numpy()
    hits = [(table["rank"] == 1).to_numpy().astype(float) for table in (first, other)]
    difference, low, high = clustered_mean(hits[1] - hits[0], game)
    nll, nll_low, nll_high = clustered_mean(other["nll"].to_numpy() - first["nll"].to_numpy(), game)
    top1 = {"top1_difference": difference, "top1_low": low, "top1_high": high}
    return {**top1, "cross_entropy_difference": nll, "cross_entropy_low": nll_low, "cross_entropy_high": nll_high}


def details(table: pl.DataFrame) -> dict[str, Any]:
    """Return everything of the page that is counted from the measured rows; `table` has gone through `with_strata`."""
    policy, value = reliability(table), value_reliability(table)
    return {
        "slices": detailed_slices(table),
        "rating_by_time_control": by_band_and_speed(table),
        "policy_reliability": policy,
        "policy_calibration_error": calibration_error(policy),
        "value_reliability": value,
        "equal_bands": equal_bands(table),
        "equal_band_baselines": equal_band_rows(table),
        "baselines": baseline_rows(table),
    }
