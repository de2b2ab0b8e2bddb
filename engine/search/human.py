"""Human search: a network's policy for a rating, corrected by what a small search finds.

    policy(a) ~ p(a | ratings, history) ** sharpness * exp(weight * Q(a))

p is a policy of human moves and Q the search's value of each move, mover's view, -1..1. With weight
0 it is the policy alone; with a large one, the search's best move. The weight grows with the
rating: stronger players see more of what it finds. Source: piKL, Jacob et al. 2022, "Modeling
strong and human-like gameplay with KL-regularized search" (arXiv:2112.07544).

Axes: N positions, A labels, M root moves, W words of a position, K ratings of a curve.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.board.position import Position
from engine.encoding.planes import LABELS
from engine.progress import Stop
from engine.search.config import SearchConfig
from engine.search.results import Root
from engine.search.search import Search

Aim = Literal["likelihood", "strength"]
"""Objective of the fit: predict the moves that people of a rating play, or lose as much expected
score per move as they do."""
ASSUMED_RATING = 1500
"""Rating of a player whose rating is unknown: Lichess's first one."""


@dataclass(frozen=True, slots=True)
class Correction:
    """Weights by which a search corrects the policy, interpolated between ratings of the mover."""

    ratings: Sequence[float]  # [K] ascending
    weights: Sequence[float]  # [K] weight of Q, 0 or more
    sharpness: Sequence[float]  # [K] power of the policy, above 0
    simulations: int = 64
    """Simulations that it was fitted for."""

    def at(self, ratings_N: NDArray[np.integer]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return weight and sharpness at ratings, float64[N] each; 0 is an unknown rating."""
        known_N = np.where(ratings_N > 0, ratings_N, ASSUMED_RATING)
        weights_N = np.interp(known_N, self.ratings, self.weights)
        return weights_N, np.interp(known_N, self.ratings, self.sharpness)


class HumanRoot(NamedTuple):
    """A position to be searched for a human move."""

    position: Position  # uint64[W]
    history: Sequence[int]
    """Keys of the game's earlier positions, as `Search.start` takes them."""
    logits: NDArray[np.float32]  # [A] policy conditioned on the ratings and the moves before
    wdl: NDArray[np.float32]  # [3] win, draw, loss


def human_config(simulations: int) -> SearchConfig:
    """Return the search configuration used to fit the corrections and the ladder."""
    return SearchConfig(simulations=simulations, c_stdev=0.0)


def search_roots(
    search: Search, roots: Sequence[HumanRoot], simulations: int, stop: Stop | None = None
) -> list[Root]:
    """Search positions side by side, in slots 0..N-1, with their own policies as root priors."""
    for slot, root in enumerate(roots):
        search.start(slot, root.position, root.history, answer=(root.logits, root.wdl))
    slots_N = np.arange(len(roots), dtype=np.int64)
    search.run(slots_N, simulations=simulations, noise=False, stop=stop)
    return [search.root(slot) for slot in range(len(roots))]


def correct_logits(
    roots: Sequence[HumanRoot],
    found: Sequence[Root],
    weight_N: NDArray[np.float64],
    sharpness_N: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return the roots' policies corrected by their searches, float64[N, A]; -inf for illegal."""
    corrected_NA = np.full((len(roots), LABELS), -np.inf)
    for row, (root, result) in enumerate(zip(roots, found, strict=True)):
        labels, values_A = np.unique(result.labels), move_values(root, result)
        corrected_NA[row, labels] = (
            sharpness_N[row] * root.logits[labels] + weight_N[row] * values_A[labels]
        )
    return corrected_NA


def move_values(root: HumanRoot, found: Root) -> NDArray[np.float64]:
    """Return the value of each label, float64[A]; minus infinity for illegal ones.

    A promotion has its best piece's value. A move without a visit takes the mean value of all
    visits, or the evaluator's where a proof left nothing to visit.
    """
    visits = int(found.visits.sum())
    known_M = np.nan_to_num(found.values.astype(np.float64))
    mean = float(known_M @ found.visits) / visits if visits else float(root.wdl[0] - root.wdl[2])
    values_A = np.full(LABELS, -np.inf)
    np.maximum.at(values_A, found.labels, np.where(np.isnan(found.values), mean, known_M))
    return values_A
