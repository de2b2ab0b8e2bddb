"""The figures of a report that see no board, against tables and sums that are published or small enough to do by hand."""

import numpy as np
import polars as pl
import pytest

from pipeline.figures import baselines, headline, slices


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
    return pl.DataFrame({name: np.broadcast_to(columns.get(name, value), count) for name, value in plain.items()})


@pytest.mark.parametrize(
    ("difference", "expected"),  # from the table in FIDE's Rating Regulations, 8.1.2 (two places)
    [(0, 0.50), (100, 0.64), (200, 0.76), (400, 0.92), (-200, 0.24)],
)
def test_ratings_alone_expect_what_elos_table_says(difference: int, expected: float) -> None:
    lost = baselines(rows(1, elo=1500 + difference, score=0.0))["rating_value_brier"]
    assert lost**0.5 == pytest.approx(expected, abs=0.012), (
        "the table is of the normal curve, the formula the logistic one"
    )


def test_no_constant_is_better_than_the_constant_baseline() -> None:
    score = np.random.default_rng(0).choice([0.0, 0.5, 1.0], 1000, p=[0.4, 0.1, 0.5])
    found = baselines(rows(1000, score=score))["constant_value_brier"]
    tried = [np.square(score - constant).mean() for constant in np.linspace(0, 1, 101)]
    assert found <= min(tried)
    assert found == pytest.approx(min(tried), abs=1e-4)


def test_an_unknown_rating_speaks_as_the_constant_does() -> None:
    score = np.array([1.0, 1.0, 0.0, 0.0])
    table = rows(4, elo=np.array([0, 1500, 0, 1500]), opponent_elo=np.array([1500, 0, 0, 0]), score=score)
    found = baselines(table)
    assert found["rating_value_brier"] == found["constant_value_brier"] == 0.25


def test_the_headline_holds_the_baselines() -> None:
    table = rows(10, game=np.arange(10))
    found = headline(table, slices(table)["calibration"])
    assert found["top1"] == 1.0
    assert found["constant_value_brier"] == 0.0
    assert found["value_calibration_error"] == 0.0
    assert found["games"] == 10
