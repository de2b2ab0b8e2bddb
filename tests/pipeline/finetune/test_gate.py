"""Simulate which candidates the gate promotes: pairs of games at a known Elo, the SPRT, its limit
of games.

A game's chances follow the Bradley-Terry-Rao-Kupper model (BayesElo): a player d Elo ahead wins
with the chance 1 / (1 + 10^((draw_elo - d) / 400)). Both games of a pair begin with the same bias
for White, drawn for each opening.
"""

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.match.sprt import MIN_COUNT, SprtConfig, llr, score_from_elo
from pipeline.finetune.config import GateConfig

DRAWISH = {100.0: 0.25, 220.0: 0.5}
"""draw_elo, and about the share of draws that it makes; 64 simulations of the embedded network draw
15 to 30 % of games."""
OPENINGS = 60.0 * np.array([-1.5, -0.5, 0.5, 1.5])
"""White's bias by the opening, Elo."""


def chances(elo: float, draw_elo: float, bias: float) -> NDArray[np.float64]:
    """Return loss, draw and win of a player `elo` ahead who has White and `bias`, in BayesElo."""
    win, loss = (1 / (1 + 10 ** ((draw_elo - ahead) / 400)) for ahead in (elo + bias, -elo - bias))
    return np.array([loss, 1 - win - loss, win])


def pair_chances(elo: float, draw_elo: float) -> NDArray[np.float64]:
    """Return the five chances of a pair, for a player whose expected score is that of `elo` in
    logistic Elo."""

    def mixed(ahead: float) -> NDArray[np.float64]:
        pairs = [
            np.convolve(chances(ahead, draw_elo, bias), chances(ahead, draw_elo, -bias))
            for bias in OPENINGS
        ]
        return np.asarray(np.mean(pairs, axis=0))

    low, high = -400.0, 400.0
    for _ in range(60):
        middle = (low + high) / 2
        below = mixed(middle) @ np.arange(5) / 4 < score_from_elo(elo)
        low, high = (middle, high) if below else (low, middle)
    return mixed(low)


def ratios(counts_MC: NDArray[np.int64], test: SprtConfig) -> NDArray[np.float64]:
    """Return the log-likelihood ratio of each row of counts (engine.match.sprt.llr), by
    bisection."""
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


def let_through(elo: float, draw_elo: float, gate: GateConfig, matches: int) -> tuple[float, float]:
    """Simulate matches: the share that the gate lets through, and the mean number of games."""
    chance = np.random.default_rng(7)
    pairs_MT = chance.choice(5, size=(matches, gate.games // 2), p=pair_chances(elo, draw_elo))
    counts_MC = np.zeros((matches, 5), np.int64)
    going_M, lengths_M = np.arange(matches), np.full(matches, gate.games)
    passed_M = np.zeros(matches, np.bool_)
    for pair in range(gate.games // 2):
        counts_MC[going_M, pairs_MT[going_M, pair]] += 1
        ratio_M = ratios(counts_MC[going_M], gate.sprt)
        accepted_M = ratio_M >= gate.sprt.upper
        over_M = accepted_M | (ratio_M <= gate.sprt.lower)
        passed_M[going_M[accepted_M]] = True
        lengths_M[going_M[over_M]] = 2 * (pair + 1)
        going_M = going_M[~over_M]
    return float(passed_M.mean()), float(lengths_M.mean())


def test_the_vectorized_ratio_equals_the_products() -> None:
    chance = np.random.default_rng(1)
    counts_MC = chance.multinomial(30, [0.1, 0.2, 0.4, 0.2, 0.1], size=60)
    counts_MC[0], counts_MC[1] = (0, 0, 0, 0, 3), (2, 0, 0, 0, 0)
    test = GateConfig().sprt
    real = [llr(row.tolist(), test) for row in counts_MC]
    assert ratios(counts_MC, test) == pytest.approx(real, abs=1e-9)


@pytest.mark.parametrize("draw_elo", DRAWISH)
def test_a_network_that_is_20_elo_worse_is_promoted_less_than_once_in_20_times(
    draw_elo: float,
) -> None:
    share, games = let_through(-20.0, draw_elo, GateConfig(), 2000)
    assert share + 2 * (share * (1 - share) / 2000) ** 0.5 < 0.05
    assert games < 200


def test_a_network_50_elo_better_is_nearly_always_promoted() -> None:
    share, games = let_through(50.0, 100.0, GateConfig(), 500)
    assert share > 0.93
    assert games < 200
