"""The figures of a report that see no board, against tables and sums that are published or small
enough to do by hand."""

import numpy as np
import polars as pl
import pytest

from pipeline.evaluation.figures import (
    FEWEST_GAMES,
    headline,
    top1_interval,
    value_baselines,
    wilson,
)


def rows(count: int, **columns: object) -> pl.DataFrame:
    """Make measured rows; what is not given is a plain value."""
    plain = {
        "rank": 1,
        "nll": 0.5,
        "legal_mass": 1.0,
        "brier": 0.25,
        "wdl_brier": 0.5,
        "expected": 0.5,
        "score": 0.5,
        "legal_moves": 20,
        "classical_rank": 2,
        "classical_nll": 3.0,
        "classical_brier": 0.25,
        "elo": 1500,
        "opponent_elo": 1500,
        "ply": 0,
        "clock": 60,
        "game": 0,
    }
    return pl.DataFrame(
        {name: np.broadcast_to(columns.get(name, value), count) for name, value in plain.items()}
    )


@pytest.mark.parametrize(
    ("difference", "expected"),  # from the table in FIDE's Rating Regulations, 8.1.2 (two places)
    [(0, 0.50), (100, 0.64), (200, 0.76), (400, 0.92), (-200, 0.24)],
)
def test_ratings_alone_expect_what_elos_table_says(difference: int, expected: float) -> None:
    lost = value_baselines(rows(1, elo=1500 + difference, score=0.0))["rating_value_brier"]
    assert lost**0.5 == pytest.approx(expected, abs=0.012), (
        "the table is of the normal curve, the formula the logistic one"
    )


def test_no_constant_is_better_than_the_constant_baseline() -> None:
    score = np.random.default_rng(0).choice([0.0, 0.5, 1.0], 1000, p=[0.4, 0.1, 0.5])
    found = value_baselines(rows(1000, score=score))["constant_value_brier"]
    tried = [np.square(score - constant).mean() for constant in np.linspace(0, 1, 101)]
    assert found <= min(tried)
    assert found == pytest.approx(min(tried), abs=1e-4)


def test_an_unknown_rating_speaks_as_the_constant_does() -> None:
    score = np.array([1.0, 1.0, 0.0, 0.0])
    table = rows(
        4, elo=np.array([0, 1500, 0, 1500]), opponent_elo=np.array([1500, 0, 0, 0]), score=score
    )
    found = value_baselines(table)
    assert found["rating_value_brier"] == found["constant_value_brier"] == 0.25


def test_the_headline_holds_the_baselines() -> None:
    table = rows(10, game=np.arange(10))
    found = headline(table)
    assert found["top1"] == 1.0
    assert found["constant_value_brier"] == 0.0
    assert found["value_calibration_error"] == 0.0
    assert found["games"] == 10


@pytest.mark.parametrize(
    ("hits", "count", "low", "high"),
    [  # Newcombe (1998), Statistics in Medicine 17, table I, method 3
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0000, 0.1611),
        (1, 29, 0.0061, 0.1718),
        # scipy 1.14: binomtest(hits, count).proportion_ci(method="wilson")
        (10, 10, 0.7225, 1.0),
        (5, 10, 0.2366, 0.7634),
    ],
)
def test_an_interval_of_independent_positions_is_wilsons(
    hits: int, count: int, low: float, high: float
) -> None:
    """A position a game: what the games add is nothing, and the interval is that of the published
    table."""
    assert wilson(hits / count, count) == pytest.approx((low, high), abs=6e-5)
    table = rows(count, game=np.arange(count), rank=np.where(np.arange(count) < hits, 1, 2))
    assert top1_interval(table) == pytest.approx((low, high), abs=6e-5)


def test_positions_of_one_game_that_are_alike_count_as_one() -> None:
    """Each game 40 times over is worth what it is once."""
    once = rows(50, game=np.arange(50), rank=np.where(np.arange(50) < 20, 1, 2))
    often = pl.concat([once] * 40)
    assert top1_interval(often) == pytest.approx(wilson(0.4, 50), rel=0.02)
    every = rows(500, game=np.arange(500) % 20)
    assert top1_interval(every) == pytest.approx(wilson(1.0, 20)), (
        "nothing tells how games differ: each counts once"
    )


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("games", [10, 12, 40])
def test_the_ends_of_an_interval_are_shares(seed: int, games: int) -> None:
    chance = np.random.default_rng(seed)
    table = rows(60, game=np.arange(60) % games, rank=np.where(chance.random(60) < 0.03, 1, 2))
    low, high = top1_interval(table) or (np.nan, np.nan)
    assert 0 <= low <= (table["rank"] == 1).mean() <= high <= 1


def test_a_handful_of_games_has_no_interval_and_says_so() -> None:
    table = rows(30, game=np.arange(30) % 3, rank=np.where(np.arange(30) % 3 == 0, 1, 2))
    found = headline(table)
    assert (found["top1_low"], found["top1_high"]) == (None, None)
    assert found["top1_interval"] == "none: 3 games, and at least 10 are needed"
    enough = headline(rows(30, game=np.arange(30) % FEWEST_GAMES))
    assert enough["top1_interval"] == "95 %, by game"
    assert 0 < enough["top1_low"] < enough["top1_high"] == 1.0
