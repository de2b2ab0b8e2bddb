"""The figures of a report against published tables, arithmetic and a bootstrap over games."""

import math
import statistics

import numpy as np
import polars as pl
import pytest

from pipeline.evaluation.figures import (
    bin_reliability,
    calibration_error,
    clustered_interval,
    clustered_mean,
    compute_details,
    measure_baselines,
    measure_value_baselines,
    paired_difference,
    wilson_interval,
)


def top1_interval(table: pl.DataFrame) -> tuple[float, float] | None:
    return clustered_interval(table["rank"].to_numpy() == 1, table["game"].to_numpy())


def rows(count: int, **columns: object) -> pl.DataFrame:
    """Make a table of measured positions; columns that are not given have default values."""
    values: dict[str, object] = {"rank": 1, "nll": 0.5, "brier": 0.25, "game": 0, "legal_moves": 20}
    values |= {"hand_written_rank": 2, "hand_written_nll": 3.0, "hand_written_brier": 0.25}
    values |= {"expected": 0.5, "score": 0.5, "elo": 1500, "opponent_elo": 1500}
    values |= columns
    return pl.DataFrame({name: np.broadcast_to(value, count) for name, value in values.items()})


def test_scores_predicted_from_ratings_are_those_of_elos_table() -> None:
    """The table in FIDE's Rating Regulations, 8.1.2, has the normal curve, not the logistic one."""
    for difference, expected in ((0, 0.50), (100, 0.64), (200, 0.76), (400, 0.92), (-200, 0.24)):
        lost_game = rows(1, elo=1500 + difference, score=0.0)
        error = measure_value_baselines(lost_game)["rating_value_brier"] ** 0.5
        assert error == pytest.approx(expected, abs=0.012)


def test_the_interval_of_independent_positions_is_wilsons() -> None:
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
        assert top1_interval(table) == pytest.approx((low, high), abs=6e-5)


def test_equal_positions_of_one_game_count_as_one() -> None:
    once = rows(50, game=np.arange(50), rank=np.where(np.arange(50) < 20, 1, 2))
    often = pl.concat([once] * 40)
    assert top1_interval(often) == pytest.approx(wilson_interval(0.4, 50), rel=0.02)
    all_hits = rows(500, game=np.arange(500) % 20)
    assert top1_interval(all_hits) == pytest.approx(wilson_interval(1.0, 20))


def correlated_games(seed: int, games: int = 150) -> pl.DataFrame:
    """Return games of 5 to 40 positions with different shares of hits."""
    chance = np.random.default_rng(seed)
    parts = []
    for game in range(games):
        count = int(chance.integers(5, 40))
        rank = np.where(chance.random(count) < chance.beta(4, 4), 1, 2)
        parts.append(rows(count, game=game, rank=rank, key=np.arange(count) + 100 * game))
    return pl.concat(parts)


def bootstrap_error(table: pl.DataFrame, draws: int = 2000) -> float:
    """Return the standard error of top-1 over samples of games, drawn with replacement."""
    chance = np.random.default_rng(1)
    games = table.group_by("game").agg(hits=(pl.col("rank") == 1).sum(), positions=pl.len())
    drawn = chance.integers(0, len(games), (draws, len(games)))
    hits, positions = (games[name].to_numpy()[drawn] for name in ("hits", "positions"))
    return float(np.std(hits.sum(axis=1) / positions.sum(axis=1)))


def test_a_calibrated_value_has_a_second_diagram() -> None:
    """The predicted score is 0.9, after calibration 0.6, and the mean of the scores is 0.5."""
    score = np.arange(400) % 2 * 1.0
    table = rows(400, game=np.arange(400) // 4, expected=0.6, score=score, choice_probability=0.5)
    assert compute_details(table)["value_reliability_before"] == []
    found = compute_details(table.with_columns(expected_before=0.9))
    assert found["value_calibration_error_before"] == pytest.approx(0.4)
    assert found["value_brier_before"] == pytest.approx((0.9**2 + 0.1**2) / 2)
    assert calibration_error(found["value_reliability"]) == pytest.approx(0.1)
    (row,) = found["value_reliability_before"]
    assert (row["positions"], row["score"]) == (400, 0.5)


def test_the_interval_of_a_mean_is_the_bootstraps_and_of_single_rows_the_textbooks() -> None:
    table = correlated_games(2)
    _, low, high = clustered_mean(
        (table["rank"] == 1).to_numpy().astype(float), table["game"].to_numpy()
    )
    assert low is not None
    assert high is not None
    assert (high - low) / 2 == pytest.approx(1.96 * bootstrap_error(table), rel=0.08)
    values = np.random.default_rng(3).normal(size=50)
    mean, low, high = clustered_mean(values, np.arange(50))
    assert mean == pytest.approx(statistics.fmean(values))
    assert low is not None
    assert mean - low == pytest.approx(1.95996 * statistics.stdev(values) / math.sqrt(50), rel=1e-4)
    assert clustered_mean(values, np.arange(50) % 9)[1:] == (None, None), "nine games are too few"


def test_a_paired_difference_has_a_narrower_interval_than_its_parts() -> None:
    first = correlated_games(4)
    chance = np.random.default_rng(5)
    rank = np.where(chance.random(len(first)) < 0.1, 1, first["rank"].to_numpy())
    other = first.with_columns(pl.Series("rank", rank), pl.col("nll") - 0.1)
    found = paired_difference(first, other)
    gained = (rank == 1).mean() - (first["rank"] == 1).to_numpy().mean()
    assert found["top1_difference"] == pytest.approx(gained)
    assert 0 < found["top1_low"] < gained < found["top1_high"]
    assert found["cross_entropy_difference"] == pytest.approx(-0.1)
    assert found["cross_entropy_high"] - found["cross_entropy_low"] == pytest.approx(0, abs=1e-9)
    part = clustered_mean((first["rank"] == 1).to_numpy().astype(float), first["game"].to_numpy())
    assert part[1] is not None
    assert found["top1_difference"] - found["top1_low"] < (part[0] - part[1]) / 2
    same = paired_difference(first, first)
    assert (same["top1_difference"], same["top1_low"], same["top1_high"]) == (0, 0, 0)


def test_a_reliability_diagram_has_a_point_for_each_tenth() -> None:
    hits = np.concatenate([np.arange(40) < 6, np.arange(40) < 22, np.arange(40) < 40])
    likely = np.repeat([0.15, 0.55, 0.95], 40)
    table = rows(120, game=np.arange(120), likely=likely, hit=hits)
    found = bin_reliability(table, "likely", "hit")
    counted = [(row["tenth"], row["positions"], row["score"]) for row in found]
    assert counted == [(1, 40, 0.15), (5, 40, 0.55), (9, 40, 1.0)]
    assert calibration_error(found) == pytest.approx(0.05 / 3)
    assert all(row["low"] <= row["score"] <= row["high"] + 1e-12 for row in found)
    scores = [0.0, 0.5, 0.5, 1.0] * 10
    with_draws = rows(40, game=np.arange(40), expected=0.5, score=np.array(scores))
    (point,) = bin_reliability(with_draws, "expected", "score")
    assert (point["expected"], point["score"]) == (0.5, 0.5)
    half = 1.96 * statistics.stdev(scores) / math.sqrt(40)
    assert point["low"] == pytest.approx(0.5 - half, abs=1e-4)


def test_the_accuracy_of_chance_follows_from_the_numbers_of_legal_moves() -> None:
    table = rows(20, game=np.arange(20), legal_moves=np.tile([1, 2, 4, 20], 5))
    uniform = {row["name"]: row for row in measure_baselines(table)}["chance"]
    assert uniform["top1"] == pytest.approx((1 + 1 / 2 + 1 / 4 + 1 / 20) / 4)
    assert uniform["top3"] == pytest.approx((1 + 1 + 3 / 4 + 3 / 20) / 4)
    assert uniform["cross_entropy"] == pytest.approx(math.log(1 * 2 * 4 * 20) / 4)
