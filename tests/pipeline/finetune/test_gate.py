"""Simulate the gate: how often does it promote a candidate of known Elo?

The probabilities of a game's results follow the Bradley-Terry-Rao-Kupper model (BayesElo): a player
d Elo ahead wins with probability 1 / (1 + 10^((draw_elo - d) / 400)). Each opening favors White by
a number of Elo, in both games of the pair.

Axes: M matches, T pairs of a match, C the five results of a pair.
"""

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.match.sprt import MIN_COUNT, SprtConfig, llr, score_from_elo
from pipeline.finetune.config import GateConfig

DRAW_ELOS = (100.0, 220.0)
"""Values of draw_elo that give about 25 % and 50 % of draws; with 64 simulations, the embedded
network draws 15 to 30 % of its games."""
OPENING_ELOS = (-90.0, -30.0, 30.0, 90.0)
"""White's advantage in each opening, in Elo."""


def game_probabilities(elo: float, draw_elo: float, bias: float) -> NDArray[np.float64]:
    """Return the probabilities of loss, draw and win of White, who is `elo` + `bias` ahead."""
    win, loss = (1 / (1 + 10 ** ((draw_elo - ahead) / 400)) for ahead in (elo + bias, -elo - bias))
    return np.array([loss, 1 - win - loss, win])


def pair_probabilities(elo: float, draw_elo: float) -> NDArray[np.float64]:
    """Return the probabilities of a pair's results, float64[C], for a player `elo` ahead.

    `elo` is logistic: the BayesElo difference is chosen so that the expected score is the same.
    """

    def average_openings(ahead: float) -> NDArray[np.float64]:
        pairs = [
            np.convolve(*(game_probabilities(ahead, draw_elo, side * bias) for side in (1, -1)))
            for bias in OPENING_ELOS
        ]
        return np.asarray(np.mean(pairs, axis=0))

    low, high = -400.0, 400.0
    for _ in range(60):
        middle = (low + high) / 2
        is_below = average_openings(middle) @ np.arange(5) / 4 < score_from_elo(elo)
        low, high = (middle, high) if is_below else (low, middle)
    return average_openings(low)


def llr_of_rows(counts_MC: NDArray[np.int64], test: SprtConfig) -> NDArray[np.float64]:
    """Compute engine.match.sprt.llr of each row of counts, by bisection, float64[M]."""
    filled_MC = np.where(counts_MC == 0, MIN_COUNT, counts_MC)
    total_M = filled_MC.sum(1)
    shares_MC = filled_MC / total_M[:, None]

    def logarithms(score: float) -> NDArray[np.float64]:
        gaps_C = np.arange(5) / 4 - score
        low_M = np.full(len(filled_MC), -1 / gaps_C.max())
        high_M = np.full(len(filled_MC), -1 / gaps_C.min())
        for _ in range(40):
            x_M = (low_M + high_M) / 2
            above_M = (shares_MC * gaps_C / (1 + x_M[:, None] * gaps_C)).sum(1) > 0
            low_M, high_M = np.where(above_M, x_M, low_M), np.where(above_M, high_M, x_M)
        return np.log1p(((low_M + high_M) / 2)[:, None] * gaps_C)

    difference_MC = logarithms(score_from_elo(test.elo0)) - logarithms(score_from_elo(test.elo1))
    return np.asarray(total_M * (shares_MC * difference_MC).sum(1))


def simulate(elo: float, draw_elo: float, gate: GateConfig, matches: int) -> tuple[float, float]:
    """Simulate matches; return the share of promotions, and the mean number of games."""
    rng, size = np.random.default_rng(7), (matches, gate.games // 2)
    pairs_MT = rng.choice(5, size=size, p=pair_probabilities(elo, draw_elo))
    counts_MC = np.zeros((matches, 5), np.int64)
    ongoing_M, lengths_M = np.arange(matches), np.full(matches, gate.games)
    passed_M = np.zeros(matches, np.bool_)
    for pair in range(gate.games // 2):
        counts_MC[ongoing_M, pairs_MT[ongoing_M, pair]] += 1
        ratio_M = llr_of_rows(counts_MC[ongoing_M], gate.sprt)
        accepted_M = ratio_M >= gate.sprt.upper
        over_M = accepted_M | (ratio_M <= gate.sprt.lower)
        passed_M[ongoing_M[accepted_M]] = True
        lengths_M[ongoing_M[over_M]] = 2 * (pair + 1)
        ongoing_M = ongoing_M[~over_M]
    return float(passed_M.mean()), float(lengths_M.mean())


def test_the_vectorized_llr_equals_the_matches_llr() -> None:
    counts_MC = np.random.default_rng(1).multinomial(30, [0.1, 0.2, 0.4, 0.2, 0.1], size=60)
    counts_MC[0], counts_MC[1] = (0, 0, 0, 0, 3), (2, 0, 0, 0, 0)
    test = GateConfig().sprt
    expected = [llr(row.tolist(), test) for row in counts_MC]
    assert llr_of_rows(counts_MC, test) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("draw_elo", DRAW_ELOS)
def test_a_network_that_is_20_elo_worse_is_promoted_less_than_once_in_20_times(
    draw_elo: float,
) -> None:
    share, games = simulate(-20.0, draw_elo, GateConfig(), 2000)
    assert share + 2 * (share * (1 - share) / 2000) ** 0.5 < 0.05
    assert games < 200


def test_a_network_50_elo_better_is_nearly_always_promoted() -> None:
    share, games = simulate(50.0, 100.0, GateConfig(), 500)
    assert share > 0.93
    assert games < 200
