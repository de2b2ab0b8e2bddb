"""Statistics of a match: Elo with a 95 % interval, the likelihood of superiority, and a sequential test (SPRT).

Games come in pairs from one opening with the colours changed, and the two results of a pair depend on each other, so
statistics are made of pairs: five counts `(LL, LD, DD or WL, WD, WW)`, the pentanomial model of fishtest and fastchess.
Three counts (losses, draws, wins) of single games are understood everywhere too, which is the trinomial model.

Elo is logistic, 400 * log10(s / (1 - s)) of the score s, unless it is called normalised: a score's distance from one half
in standard deviations of a game, times 800 / ln(10). The generalised likelihood ratio of both is exact, after Van den
Bergh, "Comments on normalized Elo" (cantate.be/Fishtest/normalized_elo_practical.pdf), as in fishtest's LLRcalc.py.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal, NamedTuple

from engine.errors import UserError

Model = Literal["logistic", "normalized"]

NORMALISED = 800.0 / math.log(10.0)
"""Normalised Elo of one standard deviation of a game."""
RAREST = 1e-3
"""What an empty count is counted as, and how near to 0 or 1 a score is taken for its Elo (so +-1200), as fishtest does."""
_NORMAL = NormalDist()
_TOLERANCE = 1e-12


class SprtError(UserError):
    """Bounds or error rates out of range."""


class Estimate(NamedTuple):
    """Estimates of a player's strength from counts."""

    score: float
    """Points a game, 0..1."""
    elo: float
    """Logistic Elo difference; +-1200 where every point was won or lost."""
    elo_low: float
    """Lower end of the 95 % interval."""
    elo_high: float
    """Upper end of the 95 % interval."""
    los: float
    """Likelihood of superiority: the probability that the player is the stronger one."""
    nelo: float | None
    """Normalised Elo difference; None while all pairs went the same way, so that their deviation is unknown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SprtConfig:
    """A sequential probability ratio test of H0: Elo = elo0 against H1: Elo = elo1."""

    elo0: float = 0.0
    """Elo difference of H0, which is not worth having."""
    elo1: float = 50.0
    """Elo difference of H1, which is worth having."""
    alpha: float = 0.05
    """Probability of accepting H1 when the difference is elo0."""
    beta: float = 0.05
    """Probability of accepting H0 when the difference is elo1."""
    model: Model = "logistic"
    """Unit of elo0 and elo1: logistic Elo, or normalized Elo."""

    def __post_init__(self) -> None:
        if not self.elo0 < self.elo1:
            raise SprtError(f"elo0 = {self.elo0:g} is not below elo1 = {self.elo1:g}")
        if not (0 < self.alpha < 1 and 0 < self.beta < 1 and self.alpha + self.beta < 1):
            raise SprtError(f"alpha = {self.alpha:g} and beta = {self.beta:g} must be above 0, and below 1 together")
        if self.model == "logistic" and not -1000 < self.elo0 < self.elo1 < 1000:
            raise SprtError("logistic elo0 and elo1 must lie between -1000 and 1000")
        if self.model == "normalized" and not -300 < self.elo0 < self.elo1 < 300:
            raise SprtError("normalized elo0 and elo1 must lie between -300 and 300")

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
    """Return the score that a logistic Elo difference expects."""
    return 1.0 / (1.0 + math.pow(10.0, -elo / 400.0))


def estimate(counts: Sequence[int]) -> Estimate:
    """Estimate Elo from counts.

    The interval holds the scores that a likelihood-ratio test at 5 % does not refuse (Owen 1988), of the same likelihood
    that the SPRT uses, and LOS is that test's signed root. Both agree with the normal formulas of fishtest and fastchess
    for many pairs, and stay honest when every game was won. No counts: Elo 0, -1200..1200.
    """
    if not any(counts):
        return Estimate(0.5, 0.0, elo_of(0.0), elo_of(1.0), 0.5, None)
    total, values, shares = _distribution(counts)
    mean, deviation = _moments(values, shares)
    apart = (mean - 0.5) / deviation
    root = math.copysign(math.sqrt(max(0.0, 2 * total * _misfit(values, shares, 0.5))), apart)
    return Estimate(
        score=_plain_score(counts),
        elo=elo_of(_plain_score(counts)),
        elo_low=elo_of(_limit(total, values, shares, RAREST, mean)),
        elo_high=elo_of(_limit(total, values, shares, 1 - RAREST, mean)),
        los=_NORMAL.cdf(root),
        nelo=NORMALISED * apart / math.sqrt(_games(counts)) if sum(count > 0 for count in counts) > 1 else None,
    )


def llr(counts: Sequence[int], config: SprtConfig) -> float:
    """Return the generalised log-likelihood ratio of H1 over H0, 0 without any counts."""
    if not any(counts):
        return 0.0
    total, values, shares = _distribution(counts)
    if config.model == "logistic":
        chances = [_with_mean(values, shares, score_of(elo)) for elo in (config.elo0, config.elo1)]
    else:
        scale = math.sqrt(_games(counts)) / NORMALISED
        chances = [_with_t(values, shares, elo * scale) for elo in (config.elo0, config.elo1)]
    return total * sum(
        share * math.log(one / zero) for share, zero, one in zip(shares, chances[0], chances[1], strict=True)
    )


def verdict(ratio: float, config: SprtConfig) -> Literal["H0", "H1", "undecided"]:
    """Say which hypothesis a log-likelihood ratio accepts."""
    if ratio >= config.upper:
        return "H1"
    return "H0" if ratio <= config.lower else "undecided"


def pair_counts(scores: Sequence[float]) -> tuple[int, int, int, int, int]:
    """Count pairs by their points: `scores` are those of games 2k and 2k + 1 in turn, 0, 0.5 or 1; an odd last one is left."""
    counts = [0] * 5
    for first, second in zip(scores[::2], scores[1::2], strict=False):
        counts[round(2 * (first + second))] += 1
    return counts[0], counts[1], counts[2], counts[3], counts[4]


def _games(counts: Sequence[int]) -> int:
    """Return how many games one count is of: 2 in the pentanomial model, 1 in the trinomial one."""
    assert len(counts) in (3, 5), "three or five counts"
    return (len(counts) - 1) // 2


def _plain_score(counts: Sequence[int]) -> float:
    """Return the points a game."""
    return sum(index * count for index, count in enumerate(counts)) / (sum(counts) * (len(counts) - 1))


def _distribution(counts: Sequence[int]) -> tuple[float, list[float], list[float]]:
    """Return total, values (points a game) and shares, with RAREST in the place of nothing."""
    filled = [float(count) or RAREST for count in counts]
    total = sum(filled)
    return total, [index / (len(filled) - 1) for index in range(len(filled))], [count / total for count in filled]


def _moments(values: Sequence[float], shares: Sequence[float]) -> tuple[float, float]:
    """Return mean and standard deviation."""
    mean = sum(value * share for value, share in zip(values, shares, strict=True))
    return mean, math.sqrt(sum(share * (value - mean) ** 2 for value, share in zip(values, shares, strict=True)))


def _multiplier(gaps: Sequence[float], shares: Sequence[float]) -> float:
    """Solve sum of share * gap / (1 + x * gap) = 0, which falls in x, by Newton's steps kept inside a bracket."""
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


def _with_mean(values: Sequence[float], shares: Sequence[float], mean: float) -> list[float]:
    """Return the likeliest chances that have this mean, seen the shares (Van den Bergh, proposition 1.1)."""
    gaps = [value - mean for value in values]
    x = _multiplier(gaps, shares)
    return [share / (1.0 + x * gap) for gap, share in zip(gaps, shares, strict=True)]


def _with_t(values: Sequence[float], shares: Sequence[float], t: float) -> list[float]:
    """Return the likeliest chances whose mean is t of their deviations above one half, seen the shares (section 4.1)."""
    chances = [1.0 / len(values)] * len(values)
    for _ in range(100):
        mean, deviation = _moments(values, chances)
        gaps = [value - 0.5 - t * deviation * (1 + ((mean - value) / deviation) ** 2) / 2 for value in values]
        x = _multiplier(gaps, shares)
        before = chances
        chances = [share / (1.0 + x * gap) for gap, share in zip(gaps, shares, strict=True)]
        if max(abs(new - old) for new, old in zip(chances, before, strict=True)) < 1e-9:
            break
    return chances


def _misfit(values: Sequence[float], shares: Sequence[float], score: float) -> float:
    """Return the log-likelihood, a count, that the shares lose when their mean has to be `score`."""
    likely = _with_mean(values, shares, score)
    return sum(share * math.log(share / chance) for share, chance in zip(shares, likely, strict=True))


def _limit(total: float, values: Sequence[float], shares: Sequence[float], end: float, mean: float) -> float:
    """Find, between the mean and `end`, the score that a likelihood-ratio test at 5 % is about to refuse."""
    allowed = _NORMAL.inv_cdf(0.975) ** 2 / 2

    if (end - mean) * (end - 0.5) <= 0:
        return end  # the mean is beyond what Elo is given for
    inside, outside = mean, end
    for _ in range(40):
        middle = (inside + outside) / 2
        if total * _misfit(values, shares, middle) > allowed:
            outside = middle
        else:
            inside = middle
    return (inside + outside) / 2
