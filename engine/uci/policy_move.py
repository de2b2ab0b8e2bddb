"""A move of an evaluator's policy, without search: one evaluation.

Axes: B rows (one here), P planes, A labels.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import chess
import numpy as np
from numpy.typing import NDArray

from engine.encoding.planes import label_of, planes_of
from engine.encoding.views import LAST_MOVES, last_moves_of
from engine.evaluation.evaluator import Evaluator
from engine.search.time_manager import Limits


@dataclass(frozen=True, slots=True)
class PolicyMove:
    """One evaluation of a position, its mover's view."""

    move: chess.Move
    """Likeliest move, or the one that was drawn; of promotions the queen."""
    value: float
    """Win minus loss."""
    draw: float
    """Probability of a draw."""


def policy_move(
    evaluator: Evaluator,
    board: chess.Board,
    among: list[chess.Move],
    *,
    temperature: float = 0.0,
    seed: int = 0,
    told: Mapping[str, NDArray[np.integer]] | None = None,
) -> PolicyMove:
    """Evaluate a position and return the likeliest of `among`, which holds at least one legal move.

    At a `temperature` above 0 one is drawn by softmax(logits / temperature); `seed` and the ply tell which. `told` are columns
    that the evaluator reads besides the planes, as `known_of` finds them.
    """
    network: Any = evaluator
    logits_BA, wdl_B3 = network(planes_of([board]), told) if told else evaluator(planes_of([board]))
    likely_A = logits_BA[0].astype(np.float64)
    if temperature:  # the largest of logits with Gumbel noise is a draw by their softmax
        with np.errstate(over="ignore"):
            likely_A = (likely_A - likely_A.max()) / temperature
        likely_A += np.random.default_rng((seed, board.ply())).gumbel(size=len(likely_A))

    def likelihood(move: chess.Move) -> tuple[float, int]:
        return float(likely_A[label_of(move, board.turn)]), move.promotion or 0

    win, draw, loss = (float(share) for share in wdl_B3[0])
    return PolicyMove(max(among, key=likelihood), win - loss, draw)


def known_of(evaluator: Evaluator, board: chess.Board, limits: Limits) -> dict[str, NDArray[np.integer]]:
    """Return what a game tells an evaluator beyond the board, int[1] each, as far as it reads it (its `columns` say so).

    The last moves, and where the GUI says them the seconds that the mover has left and gets with each move: people's moves
    follow from both.
    """
    known = dict(zip(LAST_MOVES, last_moves_of(board, len(LAST_MOVES)).tolist(), strict=True))
    if limits.left is not None:
        known |= {"clock": min(max(int(limits.left), 0), 65534), "increment": min(max(int(limits.increment), 0), 254)}
    return {name: np.array([value]) for name, value in known.items() if name in getattr(evaluator, "columns", ())}
