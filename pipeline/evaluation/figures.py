"""Compute the figures of a report from a table of measured positions, and describe them.

The table (measure.py) has a row for each position, with these columns:

    rank nll legal_mass legal_moves              the network's policy (model/metrics.py)
    choice choice_probability                    its first choice
    expected score brier wdl_brier               its value, and the result (model/metrics.py)
    hand_written_rank hand_written_nll ...       the same of the hand-written player
    key game                                     hashes of the position and of the game
    ply elo clock piece phase capture ...        columns that define the slices

Scores are from the mover's view: 1, 1/2 or 0. Axes: R rows, G games.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipeline.dataset.files.columns import BATCH_SENTINELS
from pipeline.dataset.strata import (
    TIME_CLASSES,
    assign_rating_bands,
    classify_time_controls,
    name_bands,
)

PIECE_NAMES = ("pawn", "knight", "bishop", "rook", "queen", "king")
MOVE_KINDS = ("capture", "recapture", "check", "castling", "promotion", "quiet")
"""Kinds of moves; a move can be of several kinds. A recapture takes the piece that moved last. A
quiet move is of no other kind."""
PHASE_NAMES = ("opening", "middlegame", "endgame")
REPORT_RATING_EDGES = (1000, 1200, 1400, 1600, 1800, 2000, 2200, 2400)
BAND_SLICES = {
    "ply": ("ply", (10, 20, 30, 40, 60, 80), ""),
    "clock": ("clock", (10, 30, 60, 180, 600), " s"),
    "legal moves": ("legal_moves", (2, 5, 10, 20, 30, 40), ""),
}
"""Column, boundaries between bands, and unit of each slice by a number."""
IN_TRAIN_NAMES = ("not in train", "in train too")
"""Names of two groups: positions that are not in the train split, and positions that are."""
RELIABILITY_BINS = 10
"""Number of bins of a reliability diagram."""
SEEN_GAMES = {
    "yes": "games that it was trained on",
    "unknown": "games, some of which it may have seen in training",
}
"""Names of a report's games by its `seen_in_training`; the others are "unseen games"."""
SEEN_IN_TRAINING = {
    "yes": "was trained on these games",
    "no": "was not trained on these games",
    "unknown": "may have been trained on some of these games",
    "no, another dump": "was trained on games of other dumps",
}
"""Phrases about a network's training, by the report's `seen_in_training`."""
MIN_INTERVAL_GAMES = 10
"""Minimum number of games for an interval: fewer do not show how much games differ."""
NORMAL_95 = NormalDist().inv_cdf(0.975)
"""Half-width of a 95 % interval of the normal distribution, in standard deviations."""

Rows = list[dict[str, Any]]


def add_strata(table: pl.DataFrame) -> pl.DataFrame:
    """Add the columns `band` (of the mover's rating) and `speed` (time control), as indices."""
    elo, base, increment = (table[name].to_numpy() for name in ("elo", "base", "increment"))
    return table.with_columns(
        band=assign_rating_bands(elo, REPORT_RATING_EDGES),
        speed=classify_time_controls(base, increment),
    )


def summarize_slices(table: pl.DataFrame) -> dict[str, Rows]:
    """Return the figures by rating, time control, phase, ply, clock, piece and kind of move.

    `table` has the columns of `add_strata`. If it also has the column `in_train`, the figures of
    positions in and outside the train split are added.
    """
    found = {
        "rating": _slice_by_number(table, "band", name_bands(REPORT_RATING_EDGES)),
        "time control": _slice_by_number(table, "speed", TIME_CLASSES),
        "phase": _slice_by_number(table, "phase", PHASE_NAMES),
        **{name: _slice_by_band(table, *band) for name, band in BAND_SLICES.items()},
        "piece moved": _slice_by_number(table, "piece", PIECE_NAMES),
        "kind of move": [
            summarize_group(kind, rows)
            for kind in MOVE_KINDS
            if len(rows := table.filter(pl.col(kind)))
        ],
    }
    if "in_train" in table.columns:
        found["in train"] = _slice_by_number(table, "in_train", IN_TRAIN_NAMES)
    return found


def _slice_by_number(table: pl.DataFrame, column: str, names: Sequence[str]) -> Rows:
    """Return the figures for each value of a column of indices into `names`, in order."""
    groups = {int(key[0]): rows for key, rows in table.partition_by(column, as_dict=True).items()}
    return [summarize_group(names[at], groups[at]) for at in sorted(groups)]


def _slice_by_band(table: pl.DataFrame, column: str, edges: Sequence[int], unit: str) -> Rows:
    """Return the figures for each band of a column's values; rows without a value are skipped."""
    if column in BATCH_SENTINELS:
        table = table.filter(pl.col(column) != BATCH_SENTINELS[column])
    place = np.searchsorted(edges, table[column].to_numpy(), side="right")
    return _slice_by_number(table.with_columns(place=place), "place", name_bands(edges, unit))


def summarize_group(name: str, rows: pl.DataFrame) -> dict[str, Any]:
    """Return the figures of one group of rows, with their intervals."""
    return {
        "band": name,
        "positions": len(rows),
        "games": rows["game"].n_unique(),
        **_count_hits(rows),
        **_estimate_mean(rows, "nll", "cross_entropy"),
        **_estimate_mean(rows, "brier", "value_brier"),
        "hand_written_top1": float((rows["hand_written_rank"] == 1).to_numpy().mean()),
    }


def _count_hits(rows: pl.DataFrame, prefix: str = "") -> dict[str, float | None]:
    """Return top-1 with its interval, top-3 and top-5; `prefix` selects the player's columns."""
    rank = rows[f"{prefix}rank"].to_numpy()
    low, high = clustered_interval(rank == 1, rows["game"].to_numpy()) or (None, None)
    shares = {f"top{k}": float((rank <= k).mean()) for k in (1, 3, 5)}
    return {**shares, "top1_low": low, "top1_high": high}


def _estimate_mean(rows: pl.DataFrame, column: str, name: str) -> dict[str, float | None]:
    """Return the mean of non-null values and the ends of its 95 % interval clustered by game."""
    names, known = (name, f"{name}_low", f"{name}_high"), rows.drop_nulls(column)
    if not len(known):
        return dict.fromkeys(names)
    mean = clustered_mean(known[column].to_numpy(), known["game"].to_numpy())
    return dict(zip(names, mean, strict=True))


def bin_reliability(table: pl.DataFrame, expected: str, observed: str) -> Rows:
    """Return the points of a reliability diagram: predicted and observed means of each bin.

    `expected` and `observed` name columns; rows are put into RELIABILITY_BINS equal bins by the
    first. `score low high` are the observed mean and its 95 % interval by game. Rows in which
    `observed` is null are skipped.
    """
    tenth = (pl.col(expected) * RELIABILITY_BINS).cast(pl.Int8).clip(0, RELIABILITY_BINS - 1)
    known = table.select(expected, observed, "game").drop_nulls(observed).with_columns(tenth=tenth)
    bins = known.partition_by("tenth", as_dict=True)
    rows = []
    for (number,), group in sorted(bins.items()):
        score, game = group[observed].cast(pl.Float64).to_numpy(), group["game"].to_numpy()
        mean, low, high = clustered_mean(score, game)
        if bool(((score == 0) | (score == 1)).all()):  # Wilson's interval stays within 0 to 1
            low, high = clustered_interval(score == 1, game) or (None, None)
        row: dict[str, Any] = {"tenth": number, "positions": len(group)}
        row["expected"] = float(group[expected].to_numpy().mean())
        rows.append(row | {"score": mean, "low": low, "high": high})
    return rows


def calibration_error(rows: Rows) -> float:
    """Return the expected calibration error of a reliability diagram (Naeini 2015)."""
    errors = [row["positions"] * abs(row["expected"] - row["score"]) for row in rows]
    return float(sum(errors) / max(sum(row["positions"] for row in rows), 1))


def summarize_positions(table: pl.DataFrame) -> dict[str, Any]:
    """Return the network's means over all rows, the interval of top-1, and the baselines."""
    from model.metrics import average_metrics

    calibration = bin_reliability(table, "expected", "score")
    columns = ("rank", "nll", "legal_mass", "brier", "wdl_brier")
    means = average_metrics({name: table[name].to_numpy() for name in columns})
    return {
        **means,
        **({} if calibration else {"value_brier": None, "wdl_brier": None}),
        **_count_hits(table),
        "games": table["game"].n_unique(),
        "value_calibration_error": calibration_error(calibration) if calibration else None,
        **measure_value_baselines(table),
        "hand_written_top1": float((table["hand_written_rank"] == 1).to_numpy().mean()),
        "hand_written_cross_entropy": float(table["hand_written_nll"].to_numpy().mean()),
        "hand_written_value_brier": table["hand_written_brier"].mean(),
        "chance_top1": float((1 / table["legal_moves"].to_numpy()).mean()),
    }


def describe_result(
    report: dict[str, Any],
    reference: dict[str, Any] | None = None,
    gain: dict[str, Any] | None = None,
) -> dict[str, str]:
    """Return the sentences `headline` and `compared` of a report.

    With the report of another network as the `reference`, the sentences compare the two; `gain` is
    their `paired_difference`.
    """
    low, high = report["top1_low"], report["top1_high"]
    name = _capitalize(report["name"])
    games = SEEN_GAMES.get(report["seen_in_training"], "unseen games")
    headline = f"{name} finds {100 * report['top1']:.1f} % of the moves of {games}"
    if reference is None:
        interval = "" if low is None else f" (95 % interval: {100 * low:.1f} to {100 * high:.1f} %)"
        return {"headline": f"{headline}{interval}.", "compared": _describe_rows(report)}
    assert gain is not None
    other, seen = reference["name"], reference["seen_in_training"]
    compared = (
        f"{name} finds {gain['gained']:,} moves that {other} misses, and misses {gain['lost']:,} "
        f"that it finds. {_describe_rows(report)}"
    )
    if seen in SEEN_GAMES:
        compared += f" {_capitalize(other)} {SEEN_IN_TRAINING[seen]}."
    return {"headline": f"{headline}, {describe_gain(gain, other)}.", "compared": compared}


def describe_gain(gain: Mapping[str, Any], other: str) -> str:
    """Return a difference of top-1 in words; `gain` is the `paired_difference` from `other`."""
    points, low, high = (100 * (gain[f"top1_{end}"] or 0) for end in ("difference", "low", "high"))
    difference = f"{abs(points):.1f} points {'fewer' if points < 0 else 'more'} than {other}"
    chance = ", which may be chance" if low * high <= 0 else ""
    interval = "too few games for an interval"
    if gain["top1_low"] is not None:
        interval = f"95 % interval: {low:+.1f} to {high:+.1f}"
    return f"{difference}{chance} ({interval})"


def _describe_rows(report: dict[str, Any]) -> str:
    """Return sentences on the measured positions and the accuracy of the baselines on them."""
    hand_written, chance = (
        f"{100 * report[f'{name}_top1']:.1f} %" for name in ("hand_written", "chance")
    )
    published = ""
    if report["published"] is not None:
        name, share = report["published"]
        published = f" {name} published {100 * share:.1f} % on its own test games."
    return (
        f"Measured on {report['positions']:,} positions of {report['measured_on']}. There, the "
        "hand-written player, a program that has learned nothing from games, finds "
        f"{hand_written}, and a random legal move {chance}.{published}"
    )


def _capitalize(name: str) -> str:
    """Return a name for the start of a sentence: names of folders stay as they are."""
    return "The" + name[3:] if name.startswith("the ") else name


def measure_value_baselines(table: pl.DataFrame) -> dict[str, float | None]:
    """Return the Brier scores of two simple predictions: one constant score, and ratings alone.

    The constant is the mean score of these rows, which no other constant beats. The ratings predict
    a score by Elo's formula (Elo 1978), 1 / (1 + 10^(-difference / 400)), or the constant if one of
    them is unknown. Both Brier scores are None if no row has a score.
    """
    table = table.drop_nulls("score")
    if not len(table):
        return {"constant_value_brier": None, "rating_value_brier": None}
    score = table["score"].to_numpy().astype(float)
    elo, other = (table[name].to_numpy().astype(float) for name in ("elo", "opponent_elo"))
    by_rating = 1 / (1 + 10 ** ((other - elo) / 400))
    expected = np.where((elo > 0) & (other > 0), by_rating, score.mean())
    return {
        "constant_value_brier": float(score.var()),
        "rating_value_brier": float(np.square(expected - score).mean()),
    }


def measure_baselines(table: pl.DataFrame) -> Rows:
    """Return a row of figures for the network and for each baseline; missing figures are None."""
    legal = table["legal_moves"].to_numpy()
    rows: Rows = [
        {
            "name": name,
            **_count_hits(table, prefix),
            "cross_entropy": float(table[f"{prefix}nll"].to_numpy().mean()),
            "value_brier": table[f"{prefix}brier"].mean(),
        }
        for name, prefix in (("network", ""), ("hand-written player", "hand_written_"))
    ]
    uniform = {f"top{k}": float(np.minimum(k / legal, 1).mean()) for k in (1, 3, 5)}
    rows.append({"name": "chance", **uniform, "cross_entropy": float(np.log(legal).mean())})
    return [{"top1_low": None, "top1_high": None, "value_brier": None} | row for row in rows]


def paired_difference(first: pl.DataFrame, other: pl.DataFrame) -> dict[str, Any]:
    """Return the differences `other` - `first` in top-1 and cross-entropy, with intervals by game.

    Both tables must have the same positions in the same order, since the differences are paired.
    `gained` and `lost` are the numbers of moves that only `other` and only `first` find.
    """
    assert first["key"].equals(other["key"]), "the tables differ in their positions or their order"
    hits = [(table["rank"] == 1).to_numpy().astype(float) for table in (first, other)]
    change_R = hits[1] - hits[0]
    figures: dict[str, Any] = {
        "gained": int((change_R > 0).sum()),
        "lost": int((change_R < 0).sum()),
    }
    nats_R = other["nll"].to_numpy() - first["nll"].to_numpy()
    for name, values_R in (("top1", change_R), ("cross_entropy", nats_R)):
        names = (f"{name}_difference", f"{name}_low", f"{name}_high")
        figures |= zip(names, clustered_mean(values_R, first["game"].to_numpy()), strict=True)
    return figures


def compute_details(table: pl.DataFrame) -> dict[str, Any]:
    """Return the figures that only the page shows: baselines and calibration.

    The entries `*_before` describe the value before it was calibrated. They are empty or None if it
    was not.
    """
    hits = table.with_columns(hit=pl.col("rank") == 1)
    policy = bin_reliability(hits, "choice_probability", "hit")
    before, brier = [], None
    if "expected_before" in table.columns:
        before = bin_reliability(table, "expected_before", "score")
        brier = table.select((pl.col("expected_before") - pl.col("score")).pow(2).mean()).item()
    return {
        "value_brier_before": brier,
        "value_reliability_before": before,
        "value_calibration_error_before": calibration_error(before) if before else None,
        "policy_reliability": policy,
        "policy_calibration_error": calibration_error(policy),
        "value_reliability": bin_reliability(table, "expected", "score"),
        "baselines": measure_baselines(table),
    }


# ---------------------------------------------------------------- intervals by game


def wilson_interval(rate: float, count: float) -> tuple[float, float]:
    """Return the 95 % interval of a rate that was observed in `count` trials (Wilson 1927)."""
    square = NORMAL_95**2 / count
    middle = (rate + square / 2) / (1 + square)
    half = math.sqrt(rate * (1 - rate) * square + square**2 / 4) / (1 + square)
    return max(0.0, middle - half), min(1.0, middle + half)


def clustered_interval(
    hit_R: NDArray[np.bool_], game_R: NDArray[Any]
) -> tuple[float, float] | None:
    """Return the 95 % interval of the share of hits; None with fewer than MIN_INTERVAL_GAMES games.

    It is Wilson's interval for the effective number of positions: the number of positions divided
    by the design effect (Kish 1965). The design effect is the variance of the ratio estimator
    divided by that of independent positions, and at least 1. If all positions are hits, or none is,
    it cannot be estimated, and each game counts as one position.
    """
    _, place_R = np.unique(game_R, return_inverse=True)
    rows_G = np.bincount(place_R).astype(float)
    hits_G = np.bincount(place_R, weights=hit_R)
    games, rows = len(rows_G), rows_G.sum()
    if games < MIN_INTERVAL_GAMES:
        return None
    rate = float(hits_G.sum() / rows)
    independent = rate * (1 - rate) / (rows - 1)
    clustered = np.square(hits_G - rate * rows_G).sum() * games / (games - 1) / rows**2
    effect = clustered / independent if independent else rows / games
    return wilson_interval(rate, float(rows / max(effect, 1.0)))


def clustered_mean(
    values_R: NDArray[Any], game_R: NDArray[Any]
) -> tuple[float, float | None, float | None]:
    """Return the mean of rows and the ends of its 95 % interval.

    The ends are None with fewer than MIN_INTERVAL_GAMES games. The variance is that of the ratio
    estimator (Cochran 1977, 6.3), with residuals summed by game.
    """
    mean = float(np.mean(values_R))
    _, place_R = np.unique(game_R, return_inverse=True)
    residuals_G = np.bincount(place_R, weights=values_R - mean)
    if (games := len(residuals_G)) < MIN_INTERVAL_GAMES:
        return mean, None, None
    variance = float(np.square(residuals_G).sum()) * games / (games - 1)
    half = NORMAL_95 * math.sqrt(variance) / len(values_R)
    return mean, mean - half, mean + half
