"""The figures of the report page against sums by hand, python's statistics, and a bootstrap over games."""

import math
import statistics

import numpy as np
import polars as pl
import pytest

from pipeline.evaluation.details import baseline_rows, equal_bands, paired
from pipeline.evaluation.figures import calibration_error, clustered_mean, reliability, value_reliability
from tests.pipeline.evaluation.test_figures import rows


def correlated(seed: int, games: int = 150) -> pl.DataFrame:
    """Return rows whose hits go by game, of three rating bands; games have 5 to 40 rows, some with two bands."""
    chance = np.random.default_rng(seed)
    parts = []
    for game in range(games):
        count = int(chance.integers(5, 40))
        skill = chance.beta(4, 4)
        band = (game % 3) + (chance.random(count) < 0.3) * 1
        hit = chance.random(count) < skill
        parts.append(
            rows(count, game=game, rank=np.where(hit, 1, 2)).with_columns(
                pl.Series("band", band), pl.Series("key", np.arange(count) + 100 * game)
            )
        )
    return pl.concat(parts)


def bootstrap(table: pl.DataFrame, figure: str, draws: int = 2000) -> float:
    """Return the standard error of a figure when games are drawn with replacement."""
    chance = np.random.default_rng(1)
    game = table["game"].to_numpy()
    hit = (table["rank"] == 1).to_numpy().astype(float)
    band = table["band"].to_numpy()
    _, place = np.unique(game, return_inverse=True)
    count = place.max() + 1
    sums = np.zeros((2, band.max() + 1, count))
    np.add.at(sums[0], (band, place), hit)
    np.add.at(sums[1], (band, place), 1)
    found = []
    for _ in range(draws):
        hits, positions = sums[:, :, chance.integers(0, count, count)].sum(axis=2)
        found.append((hits / positions).mean() if figure == "equal" else hits.sum() / positions.sum())
    return float(np.std(found))


def test_equal_bands_are_the_mean_of_bands_with_the_bootstraps_interval() -> None:
    table = correlated(0)
    found = equal_bands(table)
    rates = table.group_by("band").agg((pl.col("rank") == 1).mean().alias("rate"))["rate"].to_list()
    assert found["top1"] == pytest.approx(statistics.fmean(rates))
    half = (found["top1_high"] - found["top1_low"]) / 2
    assert half == pytest.approx(1.96 * bootstrap(table, "equal"), rel=0.08)
    one_more = pl.concat([table, table.head(1).with_columns(pl.lit(7, pl.Int64).alias("band"))])
    assert equal_bands(one_more) == found, "a band of one game has no weight"
    unknown = table.with_columns(pl.lit(9).cast(table["band"].dtype).alias("band"))
    assert equal_bands(unknown)["positions"] == 0


def test_a_mean_of_games_has_the_bootstraps_interval_and_of_single_rows_the_textbooks() -> None:
    table = correlated(2)
    _, low, high = clustered_mean((table["rank"] == 1).to_numpy().astype(float), table["game"].to_numpy())
    assert low is not None
    assert high is not None
    assert (high - low) / 2 == pytest.approx(1.96 * bootstrap(table, "plain"), rel=0.08)
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
    found = paired(first, other)
    gained = (rank == 1).mean() - (first["rank"] == 1).to_numpy().mean()
    assert found["top1_difference"] == pytest.approx(gained)
    assert 0 < found["top1_low"] < gained < found["top1_high"]
    assert found["cross_entropy_difference"] == pytest.approx(-0.1)
    assert found["cross_entropy_high"] - found["cross_entropy_low"] == pytest.approx(0, abs=1e-9)
    apart = clustered_mean((first["rank"] == 1).to_numpy().astype(float), first["game"].to_numpy())
    assert apart[1] is not None
    assert found["top1_difference"] - found["top1_low"] < (apart[0] - apart[1]) / 2, (
        "pairing takes the games' share out"
    )
    same = paired(first, first)
    assert (same["top1_difference"], same["top1_low"], same["top1_high"]) == (0, 0, 0)


def test_reliability_is_counted_by_tenths() -> None:
    said = np.repeat([0.15, 0.55, 0.95], 40)
    came = np.concatenate([np.arange(40) < 6, np.arange(40) < 22, np.arange(40) < 40])
    table = rows(120, game=np.arange(120), rank=np.where(came, 1, 3)).with_columns(
        pl.Series("choice_probability", said)
    )
    found = reliability(table)
    assert [(row["tenth"], row["positions"], row["score"]) for row in found] == [
        (1, 40, 0.15),
        (5, 40, 0.55),
        (9, 40, 1.0),
    ]
    assert calibration_error(found) == pytest.approx(0.05 / 3)
    assert all(row["low"] <= row["score"] <= row["high"] + 1e-12 for row in found)
    drawn = rows(40, game=np.arange(40), expected=0.5, score=np.tile([0.0, 0.5, 0.5, 1.0], 10))
    (value,) = value_reliability(drawn)
    assert (value["expected"], value["score"]) == (0.5, 0.5)
    assert value["low"] == pytest.approx(0.5 - 1.96 * statistics.stdev([0, 0.5, 0.5, 1] * 10) / math.sqrt(40), abs=1e-4)


def test_the_uniform_baseline_is_the_arithmetic_of_legal_moves() -> None:
    table = rows(20, game=np.arange(20), legal_moves=np.tile([1, 2, 4, 20], 5))
    uniform = {row["name"]: row for row in baseline_rows(table)}["uniform"]
    assert uniform["top1"] == pytest.approx((1 + 1 / 2 + 1 / 4 + 1 / 20) / 4)
    assert uniform["top3"] == pytest.approx((1 + 1 + 3 / 4 + 3 / 20) / 4)
    assert uniform["perplexity"] == pytest.approx((1 * 2 * 4 * 20) ** (1 / 4))
