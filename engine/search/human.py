"""Human search: correct a rating-conditioned policy by the values of a small search.

    policy(a) ~ p(a | ratings, history) ** sharpness * exp(weight * Q(a))

p is a policy of human moves. Q is the search's value of each move, from -1 to 1 in the mover's
view. With weight 0, the result is the policy alone; with a large weight, it is the search's best
move. The weight grows with the rating, since stronger players' moves are closer to the search's.

Source: piKL, Jacob et al. 2022, "Modeling strong and human-like gameplay with KL-regularized
search" (arXiv:2112.07544).

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
"""Objective of a correction's fit: predict the moves of human players of a rating, or lose as much
expected score per move as they do."""
ASSUMED_RATING = 1500
"""Rating assumed for unrated players: the initial rating on Lichess."""


@dataclass(frozen=True, slots=True)
class Correction:
    """Weights of Q and sharpness of the policy, interpolated by the mover's rating."""

    ratings: Sequence[float]  # [K] ascending
    weights: Sequence[float]  # [K] weight of Q, 0 or more
    sharpness: Sequence[float]  # [K] power of the policy, above 0
    simulations: int = 64
    """Simulations per move with which the correction was fitted."""

    def interpolate(
        self, ratings_N: NDArray[np.integer]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return weights and sharpness at ratings (0 if unknown), float64[N] each."""
        known_N = np.where(ratings_N > 0, ratings_N, ASSUMED_RATING)
        weights_N = np.interp(known_N, self.ratings, self.weights)
        return weights_N, np.interp(known_N, self.ratings, self.sharpness)


class HumanRoot(NamedTuple):
    """A position to search, with the policy and value of its evaluation."""

    position: Position  # uint64[W]
    history: Sequence[int]
    """Keys of the game's earlier positions, for `Search.start`."""
    logits: NDArray[np.float32]  # [A] policy conditioned on ratings and previous moves
    wdl: NDArray[np.float32]  # [3] win, draw, loss


def human_config(simulations: int) -> SearchConfig:
    """Return the search configuration with which corrections and the rating ladder are fitted."""
    return SearchConfig(simulations=simulations, c_stdev=0.0)


def search_roots(
    search: Search, roots: Sequence[HumanRoot], simulations: int, stop: Stop | None = None
) -> list[Root]:
    """Search positions together in slots 0..N-1; the policy of each gives its root's priors."""
    for slot, root in enumerate(roots):
        search.start(slot, root.position, root.history, answer=(root.logits, root.wdl))
    slots_N = np.arange(len(roots), dtype=np.int64)
    search.run(slots_N, simulations=simulations, noise=False, stop=stop)
    return [search.root(slot) for slot in range(len(roots))]


def correct_logits(
    roots: Sequence[HumanRoot],
    results: Sequence[Root],
    weight_N: NDArray[np.float64],
    sharpness_N: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return the policies' logits corrected by their searches, float64[N, A]; -inf if illegal."""
    corrected_NA = np.full((len(roots), LABELS), -np.inf)
    for row, (root, result) in enumerate(zip(roots, results, strict=True)):
        labels, values_A = np.unique(result.labels), move_values(root, result)
        corrected_NA[row, labels] = (
            sharpness_N[row] * root.logits[labels] + weight_N[row] * values_A[labels]
        )
    return corrected_NA


def move_values(root: HumanRoot, result: Root) -> NDArray[np.float64]:
    """Return the value of each label after a search, float64[A]; -inf for illegal moves.

    A promotion has the value of its best piece. An unvisited move has the mean value of all visits,
    or the evaluator's value if no move was visited.
    """
    visits = int(result.visits.sum())
    values_M = np.nan_to_num(result.values.astype(np.float64))
    mean = float(values_M @ result.visits) / visits if visits else float(root.wdl[0] - root.wdl[2])
    values_A = np.full(LABELS, -np.inf)
    np.maximum.at(values_A, result.labels, np.where(np.isnan(result.values), mean, values_M))
    return values_A
