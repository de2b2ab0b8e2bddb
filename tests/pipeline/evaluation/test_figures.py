"""The figures of a report against published tables, arithmetic, and a bootstrap over games."""

import math
import statistics

import numpy as np
import polars as pl
import pytest

from pipeline.evaluation.figures import (
    baseline_rows,
    calibration_error,
    clustered_interval,
    clustered_mean,
    page_details,
    paired_difference,
    reliability,
    value_baselines,
    wilson_interval,
)


def top1_interval(table: pl.DataFrame) -> tuple[float, float] | None:
    return clustered_interval(table["rank"].to_numpy() == 1, table["game"].to_numpy())


def rows(count: int, **columns: object) -> pl.DataFrame:
    """Make measured rows; columns that are not given have plain values."""
    plain = {"rank": 1, "nll": 0.5, "legal_mass": 1.0, "brier": 0.25, "wdl_brier": 0.5}
    plain |= {"expected": 0.5, "score": 0.5, "legal_moves": 20, "ply": 0, "clock": 60, "game": 0}
    plain |= {"classical_rank": 2, "classical_nll": 3.0, "classical_brier": 0.25}
    plain |= {"elo": 1500, "opponent_elo": 1500}
    values = {name: columns.get(name, value) for name, value in plain.items()}
    return pl.DataFrame({name: np.broadcast_to(one, count) for name, one in values.items()})


def test_ratings_alone_expect_what_elos_table_says() -> None:
    """The table in FIDE's Rating Regulations, 8.1.2, has the normal curve, not the logistic one."""
    for difference, expected in ((0, 0.50), (100, 0.64), (200, 0.76), (400, 0.92), (-200, 0.24)):
        lost = value_baselines(rows(1, elo=1500 + difference, score=0.0))["rating_value_brier"]
        assert lost**0.5 == pytest.approx(expected, abs=0.012)


def test_an_interval_of_independent_positions_is_wilsons() -> None:
    for hits, count, low, high in (
        # Newcombe (1998), Statistics in Medicine 17, table I, method 3
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0000, 0.1611),
        (1, 29, 0.0061, 0.1718),
        # scipy 1.14: binomtest(hits, count).proportion_ci(method="wilson_interval")
        (10, 10, 0.7225, 1.0),
        (5, 10, 0.2366, 0.7634),
    ):
        assert wilson_interval(hits / count, count) == pytest.approx((low, high), abs=6e-5)
        table = rows(count, game=np.arange(count), rank=np.where(np.arange(count) < hits, 1, 2))
        assert top1_interval(table) == pytest.approx((low, high), abs=6e-5), "one row per game"


def test_equal_positions_of_one_game_count_as_one() -> None:
    once = rows(50, game=np.arange(50), rank=np.where(np.arange(50) < 20, 1, 2))
    often = pl.concat([once] * 40)
    assert top1_interval(often) == pytest.approx(wilson_interval(0.4, 50), rel=0.02)
    every = rows(500, game=np.arange(500) % 20)
    assert top1_interval(every) == pytest.approx(wilson_interval(1.0, 20)), "each game counts once"


def correlated(seed: int, games: int = 150) -> pl.DataFrame:
    """Return games of 5 to 40 rows with different shares of hits."""
    chance = np.random.default_rng(seed)
    parts = []
    for game in range(games):
        count = int(chance.integers(5, 40))
        rank = np.where(chance.random(count) < chance.beta(4, 4), 1, 2)
        keys = pl.Series("key", np.arange(count) + 100 * game)
        parts.append(rows(count, game=game, rank=rank).with_columns(keys))
    return pl.concat(parts)


def bootstrap(table: pl.DataFrame, draws: int = 2000) -> float:
    """Return the standard error of top-1 when games are drawn with replacement."""
    chance = np.random.default_rng(1)
    hit = (table["rank"] == 1).to_numpy().astype(float)
    _, place = np.unique(table["game"].to_numpy(), return_inverse=True)
    count = place.max() + 1
    hits, positions = np.bincount(place, weights=hit), np.bincount(place)
    found = []
    for _ in range(draws):
        chosen = chance.integers(0, count, count)
        found.append(hits[chosen].sum() / positions[chosen].sum())
    return float(np.std(found))


def test_a_calibrated_value_has_a_diagram_from_before() -> None:
    """The value of positions that score 0.5 is 0.9, and after calibration 0.6."""
    table = rows(400, game=np.arange(400) // 4, expected=0.6, score=np.arange(400) % 2 * 1.0)
    table = table.with_columns(pl.lit(0.5).alias("choice_probability"))
    assert page_details(table)["value_reliability_before"] == []
    found = page_details(table.with_columns(pl.lit(0.9).alias("expected_before")))
    assert found["value_calibration_error_before"] == pytest.approx(0.4)
    assert found["value_brier_before"] == pytest.approx((0.9**2 + 0.1**2) / 2)
    assert calibration_error(found["value_reliability"]) == pytest.approx(0.1)
    (row,) = found["value_reliability_before"]
    assert (row["positions"], row["score"]) == (400, 0.5)


def test_a_mean_of_games_has_the_bootstraps_interval_and_of_single_rows_the_textbooks() -> None:
    table = correlated(2)
    _, low, high = clustered_mean(
        (table["rank"] == 1).to_numpy().astype(float), table["game"].to_numpy()
    )
    assert low is not None
    assert high is not None
    assert (high - low) / 2 == pytest.approx(1.96 * bootstrap(table), rel=0.08)
    values = np.random.default_rng(3).normal(size=50)
    mean, low, high = clustered_mean(values, np.arange(50))
    assert mean == pytest.approx(statistics.fmean(values))
    assert low is not None
    assert mean - low == pytest.approx(1.95996 * statistics.stdev(values) / math.sqrt(50), rel=1e-4)
    assert clustered_mean(values, np.arange(50) % 9)[1:] == (None, None), "nine games are too few"


def test_a_paired_difference_is_of_the_same_rows() -> None:
    first = correlated(4)
    chance = np.random.default_rng(5)
    rank = np.where(chance.random(len(first)) < 0.1, 1, first["rank"].to_numpy())
    other = first.with_columns(pl.Series("rank", rank), pl.col("nll") - 0.1)
    found = paired_difference(first, other)
    gained = (rank == 1).mean() - (first["rank"] == 1).to_numpy().mean()
    assert found["top1_difference"] == pytest.approx(gained)
    assert 0 < found["top1_low"] < gained < found["top1_high"]
    assert found["cross_entropy_difference"] == pytest.approx(-0.1)
    assert found["cross_entropy_high"] - found["cross_entropy_low"] == pytest.approx(0, abs=1e-9)
    apart = clustered_mean((first["rank"] == 1).to_numpy().astype(float), first["game"].to_numpy())
    assert apart[1] is not None
    # pairing removes the variance between games
    assert found["top1_difference"] - found["top1_low"] < (apart[0] - apart[1]) / 2
    same = paired_difference(first, first)
    assert (same["top1_difference"], same["top1_low"], same["top1_high"]) == (0, 0, 0)


def test_reliability_is_counted_by_tenths() -> None:
    hits = np.concatenate([np.arange(40) < 6, np.arange(40) < 22, np.arange(40) < 40])
    table = rows(120, game=np.arange(120))
    table = table.with_columns(likely=np.repeat([0.15, 0.55, 0.95], 40), hit=hits)
    found = reliability(table, "likely", "hit")
    counted = [(row["tenth"], row["positions"], row["score"]) for row in found]
    assert counted == [(1, 40, 0.15), (5, 40, 0.55), (9, 40, 1.0)]
    assert calibration_error(found) == pytest.approx(0.05 / 3)
    assert all(row["low"] <= row["score"] <= row["high"] + 1e-12 for row in found)
    drawn = rows(40, game=np.arange(40), expected=0.5, score=np.tile([0.0, 0.5, 0.5, 1.0], 10))
    (value,) = reliability(drawn, "expected", "score")
    assert (value["expected"], value["score"]) == (0.5, 0.5)
    assert value["low"] == pytest.approx(
        0.5 - 1.96 * statistics.stdev([0, 0.5, 0.5, 1] * 10) / math.sqrt(40), abs=1e-4
    )


def test_the_uniform_baseline_is_the_arithmetic_of_legal_moves() -> None:
    table = rows(20, game=np.arange(20), legal_moves=np.tile([1, 2, 4, 20], 5))
    uniform = {row["name"]: row for row in baseline_rows(table)}["chance"]
    assert uniform["top1"] == pytest.approx((1 + 1 / 2 + 1 / 4 + 1 / 20) / 4)
    assert uniform["top3"] == pytest.approx((1 + 1 + 3 / 4 + 3 / 20) / 4)
    assert uniform["cross_entropy"] == pytest.approx(math.log(1 * 2 * 4 * 20) / 4)
