"""Match statistics: results of fastchess, results computed by hand, and simulated tests."""

import math
import random

import pytest

from engine.match.sprt import (
    SprtConfig,
    SprtError,
    elo_from_score,
    estimate,
    llr,
    score_from_elo,
    verdict,
)

# fastchess, app/tests/elo_test.cpp: counts, Elo, half of the 95 % interval, LOS.
FASTCHESS_ELO = [
    ((34, 54, 63, 64, 75), 55.58, 27.65, 1.0),
    ((332, 433, 498, 333, 334), -8.64, 10.33, 0.0505),
    ((7895, 8757, 5685, 568, 9999), -21.04, 2.95, 0.0),
    ((96, 111, 136), 40.70, 30.43, 0.9960),
    ((89, 123, 76), None, None, 0.1553),
    ((356, 0, 34), None, None, 0.0),
]
# fastchess, app/tests/sprt_test.cpp: counts, elo0, elo1, log-likelihood ratio.
FASTCHESS_LLR = [
    ((223, 9863, 21279, 10037, 246), 0.5, 2.5, -3.07),
    ((871, 26175, 55983, 26678, 821), 0, 2, -4.98),
    ((21184, 40708, 21404), 0.5, 2.5, -1.57),
    ((57030, 106593, 57433), 0, 2, -2.59),
]
# FIDE's conversion table prints scores with two digits; the logistic curve's published steps.
ELO_TABLE = [(0.50, 0), (0.64, 100), (0.76, 200), (0.85, 301), (0.91, 402), (0.36, -100)]


@pytest.mark.parametrize(("score", "elo"), ELO_TABLE)
def test_elo_is_that_of_published_tables(score: float, elo: float) -> None:
    assert elo_from_score(score) == pytest.approx(elo, abs=1)
    assert score_from_elo(elo) == pytest.approx(score, abs=0.002)


@pytest.mark.parametrize(("counts", "elo", "error", "los"), FASTCHESS_ELO)
def test_estimates_are_those_of_fastchess(
    counts: tuple[int, ...], elo: float | None, error: float | None, los: float
) -> None:
    found = estimate(counts)
    assert found.los == pytest.approx(los, abs=0.001)
    if elo is not None and error is not None:
        assert found.elo == pytest.approx(elo, abs=0.006)
        assert (found.elo_high - found.elo_low) / 2 == pytest.approx(error, rel=0.01)


@pytest.mark.parametrize(("counts", "elo0", "elo1", "expected"), FASTCHESS_LLR)
def test_ratios_are_those_of_fastchess(
    counts: tuple[int, ...], elo0: float, elo1: float, expected: float
) -> None:
    config = SprtConfig(elo0=elo0, elo1=elo1)
    assert llr(counts, config) == pytest.approx(expected, abs=0.006)


def test_the_ratio_of_one_sided_results_is_as_computed_by_hand() -> None:
    # With only wins, the likeliest distribution with score s wins with probability s, so that each
    # pair adds log(s1 / s0).
    by_hand = 104 * math.log(score_from_elo(50) / 0.5)
    assert llr((0, 0, 0, 0, 104), SprtConfig(elo0=0, elo1=50)) == pytest.approx(by_hand, rel=1e-3)


def test_a_perfect_score_is_not_certain() -> None:
    for pairs in (1, 5, 100):
        found = estimate((0, 0, 0, 0, pairs))
        # the score s at which s ** pairs has fallen to exp(-3.84 / 2)
        limit = math.exp(-(1.959964**2) / 2 / pairs)
        assert found.elo_low == pytest.approx(elo_from_score(limit), abs=1.5)
        assert (found.elo, found.elo_high) == pytest.approx((1199.83, 1199.83), abs=0.01)
    assert estimate((0, 0, 0, 0, 1)).los < 0.9
    level = estimate((0, 0, 40, 0, 0))
    assert level.elo == 0
    assert -25 < level.elo_low < -5 < 5 < level.elo_high < 25
    assert level.los == pytest.approx(0.5)


def test_without_games_nothing_is_known() -> None:
    found = estimate((0, 0, 0, 0, 0))
    assert (found.elo, found.los) == (0, 0.5)
    assert found.elo_low < -1000 < 1000 < found.elo_high
    assert llr((0, 0, 0, 0, 0), SprtConfig()) == 0


def test_bounds_are_those_of_wald_and_impossible_settings_are_errors() -> None:
    config = SprtConfig(alpha=0.01, beta=0.2)
    assert config.lower == pytest.approx(math.log(0.2 / 0.99))
    assert config.upper == pytest.approx(math.log(80))
    found = [verdict(ratio, SprtConfig()) for ratio in (-3, -2.9, 0, 2.9, 3)]
    assert found == ["H0", *["undecided"] * 3, "H1"]
    for wrong in (
        {"elo0": 5, "elo1": 5},
        {"alpha": 0},
        {"beta": 1},
        {"alpha": 0.6, "beta": 0.5},
        {"elo1": 5000},
        {"elo0": math.nan},
    ):
        with pytest.raises(SprtError):
            SprtConfig(**wrong)


def sample_pair(rng: random.Random, draws: float) -> int:
    """Return twice the points of a pair of equal players; the opening favors one color."""
    points = 0
    imbalance = rng.gauss(0, 60)
    for side in (imbalance, -imbalance):
        score = score_from_elo(side)
        draw = draws * 4 * score * (1 - score)
        number = rng.random()
        points += 2 if number < score - draw / 2 else (1 if number < score + draw / 2 else 0)
    return points


def run_test(seed: int, config: SprtConfig, draws: float, max_pairs: int) -> str:
    """Run a sequential test of two equal players; return its verdict."""
    rng, counts = random.Random(seed), [0] * 5
    for _ in range(max_pairs):
        counts[sample_pair(rng, draws)] += 1
        accepted = verdict(llr(counts, config), config)
        if accepted != "undecided":
            return accepted
    return "undecided"


SLOW = [
    pytest.param(elo1, draws, 2000, 0.02, marks=pytest.mark.slow)
    for elo1 in (30.0, 80.0)
    for draws in (0.1, 0.7)
]


@pytest.mark.parametrize(("elo1", "draws", "runs", "min_share"), [(80.0, 0.4, 100, 0.0), *SLOW])
def test_equal_players_are_rarely_promoted(
    elo1: float, draws: float, runs: int, min_share: float
) -> None:
    config = SprtConfig(elo0=0.0, elo1=elo1)
    verdicts = [run_test(seed, config, draws, 20_000) for seed in range(runs)]
    assert "undecided" not in verdicts
    # a correct test exceeds this in 1 % of the cases, and one that hardly errs is too long
    limit = 0.05 + 2.33 * math.sqrt(0.05 * 0.95 / runs)
    assert min_share < verdicts.count("H1") / runs <= limit
