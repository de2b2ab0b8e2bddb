"""The figures of a report, from a table of measured rows: headline, baselines, intervals and slices.

A row of the table is a position: `rank nll legal_mass brier wdl_brier expected score legal_moves` of the network
(model/metrics.py says what each is), `classical_*` of the hand-written evaluator, and the columns it is sliced by.
Scores are the mover's: 1, 1/2 or 0.
"""

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipeline.dataset.files.columns import BATCH_SENTINELS

FEWEST_GAMES = 10
"""Games that an interval needs: fewer do not tell how games differ from each other."""
NORMAL_95 = NormalDist().inv_cdf(0.975)
"""Standard deviations of a normal distribution on either side of its mean that hold 95 %."""


def wilson(rate: float, count: float) -> tuple[float, float]:
    """Return the 95 % interval of a share that was found in `count` independent draws (Wilson 1927); within 0..1."""
    square = NORMAL_95**2 / count
    middle = (rate + square / 2) / (1 + square)
    half = math.sqrt(rate * (1 - rate) * square + square**2 / 4) / (1 + square)
    return max(0.0, middle - half), min(1.0, middle + half)


def interval(table: pl.DataFrame) -> tuple[float, float] | None:
    """Return the 95 % interval of top-1 with games as the sampling unit; None below FEWEST_GAMES.

    It is Wilson's for as many independent positions as these are worth: their number over the design effect (Kish 1965),
    which is the ratio estimator's variance over that of independent positions, and at least 1. Where every position was
    hit, or none, nothing tells the effect, and a game counts as one position.
    """
    return clustered_interval(table["rank"].to_numpy() == 1, table["game"].to_numpy())


def clustered_interval(hit_R: NDArray[np.bool_], game_R: NDArray[Any]) -> tuple[float, float] | None:
    """Return `interval` of any share of rows: `hit_R` counts as 1, `game_R` says which rows belong together."""
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
    values_R: NDArray[Any], game_R: NDArray[Any], weights_R: NDArray[Any] | None = None
) -> tuple[float, float | None, float | None]:
    """Return the weighted mean of rows and its 95 % interval with games as the sampling unit; None below FEWEST_GAMES.

    The variance is that of the ratio estimator (Cochran 1977, 6.3), its residuals added up by game.
    """
    weights_R = np.ones(len(values_R)) if weights_R is None else weights_R
    mean = float(np.average(values_R, weights=weights_R))
    _, place_R = np.unique(game_R, return_inverse=True)
    residuals = np.bincount(place_R, weights=weights_R * (values_R - mean))
    if (count := len(residuals)) < FEWEST_GAMES:
        return mean, None, None
    half = NORMAL_95 * math.sqrt(float(np.square(residuals).sum()) * count / (count - 1)) / float(weights_R.sum())
    return mean, mean - half, mean + half


TENTHS, FIFTHS = 10, 5
"""Bins of a reliability diagram of all rows, and of one of a slice."""
Rows = list[dict[str, Any]]

BANDS: dict[str, tuple[str, tuple[int, ...], str]] = {
    "by_ply": ("ply", (10, 20, 40, 60, 80), ""),
    "by_elo": ("elo", (1000, 1200, 1400, 1600, 1800, 2000, 2200, 2400), ""),
    "by_legal_moves": ("legal_moves", (2, 5, 10, 20, 30, 40), ""),
    "by_clock": ("clock", (10, 30, 60, 180, 600), " s"),
}
"""Slice: its column, the edges between its bands, the unit."""


def _by_band(table: pl.DataFrame, column: str, edges: Sequence[int], unit: str) -> Rows:
    """Return the figures by bands of a column: below the first edge, between edges, from the last on."""
    names = [f"{low}-{high - 1}{unit}" for low, high in zip((0, *edges[:-1]), edges, strict=True)]
    names.append(f"{edges[-1]}{unit} and on")
    return _by_place(placed(table, column, edges), names)


def placed(table: pl.DataFrame, column: str, edges: Sequence[int]) -> pl.DataFrame:
    """Return the rows whose column is known, with `place`: 0 below the first edge, then between edges, from the last on."""
    if column in BATCH_SENTINELS:
        table = table.filter(pl.col(column) != BATCH_SENTINELS[column])
    return table.with_columns(pl.Series("place", np.searchsorted(edges, table[column].to_numpy(), side="right")))


def _by_place(table: pl.DataFrame, names: Sequence[str]) -> Rows:
    """Return the figures by the column `place`, which numbers `names`."""
    rows = (
        table.group_by("place")
        .agg(
            pl.len().alias("positions"),
            (pl.col("rank") == 1).mean().alias("top1"),
            (pl.col("classical_rank") == 1).mean().alias("hand_written_top1"),
            pl.col("nll").mean().alias("cross_entropy"),
            pl.col("brier").mean().alias("value_brier"),
        )
        .sort("place")
    )
    return [{"band": names[row.pop("place")], **row} for row in rows.to_dicts()]


TRAIN_BANDS = ("not in train", "in train too")
"""Whether train has the position (not the game)."""


def by_train(table: pl.DataFrame, seen: NDArray[np.bool_]) -> Rows:
    """Return the figures of the positions that train does not have, and of those that it has."""
    return _by_place(table.with_columns(pl.Series("place", seen.astype(np.int64))), TRAIN_BANDS)


def slices(table: pl.DataFrame) -> dict[str, Rows]:
    """Return the tables by ply, rating, legal moves and clock, and the calibration of the value."""
    kept = ("tenth", "positions", "expected", "score")
    calibration = [{name: row[name] for name in kept} for row in value_reliability(table)]
    return {**{name: _by_band(table, *band) for name, band in BANDS.items()}, "calibration": calibration}


def reliability(table: pl.DataFrame, bins: int = TENTHS) -> Rows:
    """Return, for each bin of the first choice's probability, its mean and the share of hits with its interval."""
    return _reliability(table, "choice_probability", pl.col("rank") == 1, bins)


def value_reliability(table: pl.DataFrame, bins: int = TENTHS) -> Rows:
    """Return, for each bin of the value's expected score, its mean and the mean score with its interval."""
    return _reliability(table.filter(pl.col("score").is_not_null()), "expected", pl.col("score"), bins)


def _reliability(table: pl.DataFrame, said: str, came: pl.Expr, bins: int) -> Rows:
    """Return the table of a reliability diagram: `expected` against `score`; `tenth` is where the bin begins."""
    tenth = (pl.col(said) * bins).floor().clip(0, bins - 1).cast(pl.Int8) * (TENTHS // bins)
    frame = table.select(pl.col(said).alias("said"), came.cast(pl.Float64).alias("came"), "game", tenth.alias("tenth"))
    rows = []
    for key, group in sorted(frame.partition_by("tenth", as_dict=True).items()):
        score, game = group["came"].to_numpy(), group["game"].to_numpy()
        shares = bool(((score == 0) | (score == 1)).all())
        mean, low, high = clustered_mean(score, game)
        if shares:  # Wilson's stays within 0..1 and is not empty where all rows are alike
            low, high = clustered_interval(score == 1, game) or (None, None)
        rows.append(
            {
                "tenth": int(key[0]),
                "positions": len(group),
                "expected": float(group["said"].to_numpy().mean()),
                "score": mean,
                "low": low,
                "high": high,
            }
        )
    return rows


def calibration_error(rows: Rows) -> float:
    """Return the expected calibration error of a reliability diagram: mean distance from the diagonal (Naeini 2015)."""
    total = sum(row["positions"] for row in rows)
    return float(sum(row["positions"] * abs(row["expected"] - row["score"]) for row in rows) / max(total, 1))


def headline(table: pl.DataFrame, calibration: Rows) -> dict[str, Any]:
    """Return the headline figures."""
    from model.metrics import summary

    found, games = interval(table), table["game"].n_unique()
    low, high = found or (None, None)
    known = sum(row["positions"] for row in calibration)
    means = summary({name: table[name].to_numpy() for name in ("rank", "nll", "legal_mass", "brier", "wdl_brier")})
    return {
        **means,
        **({} if known else {"value_brier": None, "wdl_brier": None}),
        "top1_low": low,
        "top1_high": high,
        "top1_interval": "95 %, games drawn" if found else f"none: {games} games, and it takes {FEWEST_GAMES} or more",
        "games": games,
        "value_calibration_error": calibration_error(calibration) if known else None,
        **baselines(table),
        "hand_written_top1": float((table["classical_rank"] == 1).to_numpy().mean()),
        "hand_written_cross_entropy": float(table["classical_nll"].to_numpy().mean()),
        "hand_written_value_brier": table["classical_brier"].mean(),
        "chance_top1": float((1 / table["legal_moves"].to_numpy()).mean()),
    }


def baselines(table: pl.DataFrame) -> dict[str, float | None]:
    """Return the Brier scores of values that see no board: one constant for all rows, and the players' ratings alone.

    The constant is the mean score of these rows, the best of all constants. Ratings predict by Elo's formula (Elo 1978),
    1 / (1 + 10^(-difference / 400)); where one is unknown, the constant is predicted.
    """
    table = table.filter(pl.col("score").is_not_null())
    if not len(table):
        return {"constant_value_brier": None, "rating_value_brier": None}
    score = table["score"].to_numpy().astype(float)
    elo, other = (table[name].to_numpy().astype(float) for name in ("elo", "opponent_elo"))
    known = (elo > 0) & (other > 0)
    expected = np.where(known, 1 / (1 + 10 ** ((other - elo) / 400)), score.mean())
    return {
        "constant_value_brier": float(score.var()),
        "rating_value_brier": float(np.square(expected - score).mean()),
    }
