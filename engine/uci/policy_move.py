"""A move of an evaluator's policy, without search: one evaluation.

Axes: B rows (one here), P planes, A labels.
"""

from dataclasses import dataclass
from typing import Any

import chess
import numpy as np
from numpy.typing import NDArray

from engine.encoding.planes import label_of, planes_of
from engine.encoding.views import LAST_MOVES, last_moves_of
from engine.evaluation.evaluator import Evaluator


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
    told: bool = False,
) -> PolicyMove:
    """Evaluate a position and return the likeliest of `among`, which holds at least one legal move.

    At a `temperature` above 0 one is drawn by softmax(logits / temperature); `seed` and the ply tell which. With `told` an
    evaluator that reads the last moves (its `columns` name them) is given those of the board: people's moves follow from them.
    """
    logits_BA, wdl_B3 = _asked(evaluator, board) if told else evaluator(planes_of([board]))
    likely_A = logits_BA[0].astype(np.float64)
    if temperature:  # the largest of logits with Gumbel noise is a draw by their softmax
        with np.errstate(over="ignore"):
            likely_A = (likely_A - likely_A.max()) / temperature
        likely_A += np.random.default_rng((seed, board.ply())).gumbel(size=len(likely_A))

    def likelihood(move: chess.Move) -> tuple[float, int]:
        return float(likely_A[label_of(move, board.turn)]), move.promotion or 0

    win, draw, loss = (float(share) for share in wdl_B3[0])
    return PolicyMove(max(among, key=likelihood), win - loss, draw)


def _asked(evaluator: Evaluator, board: chess.Board) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return what an evaluator answers that is given the board's last moves, as far as it reads them."""
    read = [name for name in LAST_MOVES if name in getattr(evaluator, "columns", ())]
    if not read:
        return evaluator(planes_of([board]))
    known: Any = evaluator
    moves = last_moves_of(board, len(read))
    return known(planes_of([board]), dict(zip(read, moves[:, None], strict=True)))  # type: ignore[no-any-return]
