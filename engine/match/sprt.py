"""Compute statistics of a match: Elo with its 95 % interval, likelihood of superiority, SPRT.

Both games of a pair have the same opening, with colors reversed, so their results are correlated.
So the statistics use counts of pairs, `(LL, LD, DD or WL, WD, WW)`: the pentanomial model of
fishtest and fastchess. Three counts of single games (losses, draws, wins) also work.

Elo is logistic: 400 * log10(s / (1 - s)) for the score s. The generalized likelihood ratio is
exact, as in fishtest's LLRcalc.py, after Van den Bergh, "Comments on normalized Elo"
(cantate.be/Fishtest/normalized_elo_practical.pdf).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal, NamedTuple

from engine.errors import UserError

MIN_COUNT = 1e-3
"""Replacement for counts of zero, and minimum distance of a score from 0 and 1, which limits Elo to
1200; both as in fishtest."""
_NORMAL = NormalDist()
_TOLERANCE = 1e-12


class SprtError(UserError):
    """Elo bounds or error rates of a test are out of range."""


class Estimate(NamedTuple):
    """Estimated strength of a player relative to its opponent."""

    score: float
    """Points per game, 0..1."""
    elo: float
    """Logistic Elo difference; 1200 if the player won all points, -1200 if it won none."""
    elo_low: float
    """Lower end of the 95 % interval."""
    elo_high: float
    """Upper end of the 95 % interval."""
    los: float
    """Likelihood of superiority: the probability that the player is the stronger one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SprtConfig:
    """A sequential probability ratio test of H0: Elo = elo0 against H1: Elo = elo1."""

    elo0: float = 0.0
    """Elo difference under H0 (no improvement)."""
    elo1: float = 50.0
    """Elo difference under H1 (improvement)."""
    alpha: float = 0.05
    """Probability of accepting H1 if the true difference is elo0."""
    beta: float = 0.05
    """Probability of accepting H0 if the true difference is elo1."""

    def __post_init__(self) -> None:
        if not -1000 < self.elo0 < self.elo1 < 1000:
            raise SprtError(
                f"elo0 must be below elo1, and both between -1000 and 1000, got elo0 = "
                f"{self.elo0:g} and elo1 = {self.elo1:g}"
            )
        if not (self.alpha > 0 and self.beta > 0 and self.alpha + self.beta < 1):
            raise SprtError(
                "alpha and beta must be above 0 and their sum below 1, got alpha = "
                f"{self.alpha:g} and beta = {self.beta:g}"
            )

    @property
    def lower(self) -> float:
        """The log-likelihood ratio at which H0 is accepted."""
        return math.log(self.beta / (1 - self.alpha))

    @property
    def upper(self) -> float:
        """The log-likelihood ratio at which H1 is accepted."""
        return math.log((1 - self.beta) / self.alpha)


def elo_from_score(score: float) -> float:
    """Return the logistic Elo difference of a score in 0..1, from -1200 to 1200."""
    score = min(max(score, MIN_COUNT), 1 - MIN_COUNT)
    return 400.0 * math.log10(score / (1 - score))


def score_from_elo(elo: float) -> float:
    """Return the expected score for a logistic Elo difference."""
    return 1.0 / (1.0 + math.pow(10.0, -elo / 400.0))


def estimate(counts: Sequence[int]) -> Estimate:
    """Estimate Elo and its interval from counts of pairs or games; 0, -1200 and 1200 without any.

    The interval contains the scores that a likelihood-ratio test at 5 % does not reject (Owen
    1988), with the likelihood of the SPRT. The likelihood of superiority comes from the signed root
    of the same test. For many pairs, both agree with the normal approximations of fishtest and
    fastchess; unlike these, they stay valid if every game is won.
    """
    if not any(counts):
        return Estimate(0.5, 0.0, elo_from_score(0.0), elo_from_score(1.0), 0.5)
    total, values, shares = _shares_of_counts(counts)
    mean = sum(value * share for value, share in zip(values, shares, strict=True))
    deviance = max(0.0, 2 * total * _likelihood_loss(values, shares, 0.5))
    signed_root = math.copysign(math.sqrt(deviance), mean - 0.5)
    points = sum(index * count for index, count in enumerate(counts))
    score = points / (sum(counts) * (len(counts) - 1))
    return Estimate(
        score=score,
        elo=elo_from_score(score),
        elo_low=elo_from_score(_confidence_limit(total, values, shares, MIN_COUNT, mean)),
        elo_high=elo_from_score(_confidence_limit(total, values, shares, 1 - MIN_COUNT, mean)),
        los=_NORMAL.cdf(signed_root),
    )


def llr(counts: Sequence[int], config: SprtConfig) -> float:
    """Return the generalized log-likelihood ratio of H1 over H0, or 0 without counts."""
    if not any(counts):
        return 0.0
    total, values, shares = _shares_of_counts(counts)
    likely0 = _fit_mean(values, shares, score_from_elo(config.elo0))
    likely1 = _fit_mean(values, shares, score_from_elo(config.elo1))
    return total * sum(
        share * math.log(one / zero)
        for share, zero, one in zip(shares, likely0, likely1, strict=True)
    )


def verdict(ratio: float, config: SprtConfig) -> Literal["H0", "H1", "undecided"]:
    """Return the hypothesis that is accepted at a log-likelihood ratio, or `undecided`."""
    if ratio >= config.upper:
        return "H1"
    return "H0" if ratio <= config.lower else "undecided"


def count_pairs(scores: Sequence[float]) -> tuple[int, int, int, int, int]:
    """Count pairs of games by their points: 0, 0.5, 1, 1.5 or 2.

    `scores` are 0, 0.5 or 1. Games 2k and 2k + 1 are a pair; an unpaired last game is ignored.
    """
    counts = [0] * 5
    for first, second in zip(scores[::2], scores[1::2], strict=False):
        counts[round(2 * (first + second))] += 1
    return counts[0], counts[1], counts[2], counts[3], counts[4]


def _shares_of_counts(counts: Sequence[int]) -> tuple[float, list[float], list[float]]:
    """Return the total of the counts, and the points per game and the share of each count.

    MIN_COUNT replaces counts of zero.
    """
    positive = [float(count) or MIN_COUNT for count in counts]
    total = sum(positive)
    values = [index / (len(positive) - 1) for index in range(len(positive))]
    return total, values, [count / total for count in positive]


def _solve_multiplier(gaps: Sequence[float], shares: Sequence[float]) -> float:
    """Return the root x of sum(share * gap / (1 + x * gap)), which decreases with x.

    Newton's method inside a bracket, with bisection where a step would leave it.
    """
    low, high = -1.0 / max(gaps), -1.0 / min(gaps)
    x = 0.0
    for _ in range(200):
        terms = [gap / (1.0 + x * gap) for gap in gaps]
        total = sum(share * term for share, term in zip(shares, terms, strict=True))
        slope = sum(share * term * term for share, term in zip(shares, terms, strict=True))
        if total > 0:
            low = x
        else:
            high = x
        newton = x + total / slope
        next_x = newton if low < newton < high else (low + high) / 2
        if abs(next_x - x) <= _TOLERANCE * max(1.0, abs(x)):
            return next_x
        x = next_x
    return x


def _fit_mean(values: Sequence[float], shares: Sequence[float], mean: float) -> list[float]:
    """Return the probabilities with a given mean under which the shares are likeliest.

    Source: Van den Bergh, proposition 1.1.
    """
    gaps = [value - mean for value in values]
    x = _solve_multiplier(gaps, shares)
    return [share / (1.0 + x * gap) for gap, share in zip(gaps, shares, strict=True)]


def _likelihood_loss(values: Sequence[float], shares: Sequence[float], score: float) -> float:
    """Return how much log-likelihood per count is lost if the mean must be `score`."""
    likely = _fit_mean(values, shares, score)
    return sum(
        share * math.log(share / probability)
        for share, probability in zip(shares, likely, strict=True)
    )


def _confidence_limit(
    total: float, values: Sequence[float], shares: Sequence[float], end: float, mean: float
) -> float:
    """Return the confidence limit between the mean and `end`, an end of the range of scores.

    A likelihood-ratio test at 5 % rejects the scores beyond it.
    """
    allowed = _NORMAL.inv_cdf(0.975) ** 2 / 2
    if (end - mean) * (end - 0.5) <= 0:
        return end  # the mean lies outside the range of scores
    inside, outside = mean, end
    for _ in range(40):
        middle = (inside + outside) / 2
        if total * _likelihood_loss(values, shares, middle) > allowed:
            outside = middle
        else:
            inside = middle
    return (inside + outside) / 2
