"""Statistics of a match: Elo and its 95 % interval, likelihood of superiority, SPRT.

Games are played in pairs from one opening with the colors reversed, and the two results of a pair
are correlated. So the statistics use counts of pairs, `(LL, LD, DD or WL, WD, WW)`: the
pentanomial model of fishtest and fastchess. Three counts of single games (losses, draws, wins) also
work.

Elo is logistic: 400 * log10(s / (1 - s)) of the score s. The generalized likelihood ratio is exact,
after Van den Bergh, "Comments on normalized Elo"
(cantate.be/Fishtest/normalized_elo_practical.pdf), as in fishtest's LLRcalc.py.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal, NamedTuple

from engine.errors import UserError

RAREST = 1e-3
"""Replacement of zero counts, and minimum distance of a score from 0 and 1, which limits Elo to
1200; as in fishtest."""
_NORMAL = NormalDist()
_TOLERANCE = 1e-12


class SprtError(UserError):
    """Bounds or error rates are out of range."""


class Estimate(NamedTuple):
    """Estimated strength of a player relative to its opponent."""

    score: float
    """Points per game, 0..1."""
    elo: float
    """Logistic Elo difference; +-1200 if every point was won or lost."""
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
                f"{self.elo0:g} "
                f"and elo1 = {self.elo1:g}"
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


def elo_of(score: float) -> float:
    """Return the logistic Elo difference of a score in 0..1, at most 1200 either way."""
    score = min(max(score, RAREST), 1 - RAREST)
    return 400.0 * math.log10(score / (1 - score))


def score_of(elo: float) -> float:
    """Return the expected score for a logistic Elo difference."""
    return 1.0 / (1.0 + math.pow(10.0, -elo / 400.0))


def estimate(counts: Sequence[int]) -> Estimate:
    """Estimate Elo from counts.

    The interval holds the scores that a likelihood-ratio test at 5 % does not reject (Owen 1988),
    with the likelihood of the SPRT; LOS is that test's signed root. For many pairs, both agree with
    the normal approximations of fishtest and fastchess, and they stay valid if every game is won.
    Without counts, Elo is 0 with the interval -1200..1200.
    """
    if not any(counts):
        return Estimate(0.5, 0.0, elo_of(0.0), elo_of(1.0), 0.5)
    total, values, shares = _distribution(counts)
    mean = sum(value * share for value, share in zip(values, shares, strict=True))
    root = math.copysign(math.sqrt(max(0.0, 2 * total * _misfit(values, shares, 0.5))), mean - 0.5)
    points = sum(index * count for index, count in enumerate(counts))
    score = points / (sum(counts) * (len(counts) - 1))
    return Estimate(
        score=score,
        elo=elo_of(score),
        elo_low=elo_of(_limit(total, values, shares, RAREST, mean)),
        elo_high=elo_of(_limit(total, values, shares, 1 - RAREST, mean)),
        los=_NORMAL.cdf(root),
    )


def llr(counts: Sequence[int], config: SprtConfig) -> float:
    """Return the generalized log-likelihood ratio of H1 over H0, or 0 without counts."""
    if not any(counts):
        return 0.0
    total, values, shares = _distribution(counts)
    zeros, ones = (_fit_mean(values, shares, score_of(elo)) for elo in (config.elo0, config.elo1))
    return total * sum(
        share * math.log(one / zero) for share, zero, one in zip(shares, zeros, ones, strict=True)
    )


def verdict(ratio: float, config: SprtConfig) -> Literal["H0", "H1", "undecided"]:
    """Return the hypothesis accepted at a log-likelihood ratio, or `undecided`."""
    if ratio >= config.upper:
        return "H1"
    return "H0" if ratio <= config.lower else "undecided"


def pair_counts(scores: Sequence[float]) -> tuple[int, int, int, int, int]:
    """Count pairs by their points; `scores` are 0, 0.5 or 1.

    Games 2k and 2k + 1 are a pair; an unpaired last game is ignored.
    """
    counts = [0] * 5
    for first, second in zip(scores[::2], scores[1::2], strict=False):
        counts[round(2 * (first + second))] += 1
    return counts[0], counts[1], counts[2], counts[3], counts[4]


def _distribution(counts: Sequence[int]) -> tuple[float, list[float], list[float]]:
    """Return total, values (points per game) and shares; RAREST replaces zero counts."""
    filled = [float(count) or RAREST for count in counts]
    total = sum(filled)
    return (
        total,
        [index / (len(filled) - 1) for index in range(len(filled))],
        [count / total for count in filled],
    )


def _multiplier(gaps: Sequence[float], shares: Sequence[float]) -> float:
    """Solve sum of share * gap / (1 + x * gap) = 0 by Newton's method inside a bracket.

    The sum decreases with x.
    """
    low, high = -1.0 / max(gaps), -1.0 / min(gaps)
    x = 0.0
    for _ in range(200):
        terms = [gap / (1.0 + x * gap) for gap in gaps]
        excess = sum(share * term for share, term in zip(shares, terms, strict=True))
        slope = sum(share * term * term for share, term in zip(shares, terms, strict=True))
        if excess > 0:
            low = x
        else:
            high = x
        step = x + excess / slope
        following = step if low < step < high else (low + high) / 2
        if abs(following - x) <= _TOLERANCE * max(1.0, abs(x)):
            return following
        x = following
    return x


def _fit_mean(values: Sequence[float], shares: Sequence[float], mean: float) -> list[float]:
    """Return the maximum-likelihood probabilities with this mean, given the shares.

    Van den Bergh, proposition 1.1.
    """
    gaps = [value - mean for value in values]
    x = _multiplier(gaps, shares)
    return [share / (1.0 + x * gap) for gap, share in zip(gaps, shares, strict=True)]


def _misfit(values: Sequence[float], shares: Sequence[float], score: float) -> float:
    """Return the log-likelihood lost per count if the mean must be `score`."""
    likely = _fit_mean(values, shares, score)
    return sum(
        share * math.log(share / chance) for share, chance in zip(shares, likely, strict=True)
    )


def _limit(
    total: float, values: Sequence[float], shares: Sequence[float], end: float, mean: float
) -> float:
    """Return the confidence limit between the mean and `end`.

    A likelihood-ratio test at 5 % rejects scores beyond it.
    """
    allowed = _NORMAL.inv_cdf(0.975) ** 2 / 2
    if (end - mean) * (end - 0.5) <= 0:
        return end  # the mean lies outside the range of scores
    inside, outside = mean, end
    for _ in range(40):
        middle = (inside + outside) / 2
        if total * _misfit(values, shares, middle) > allowed:
            outside = middle
        else:
            inside = middle
    return (inside + outside) / 2
