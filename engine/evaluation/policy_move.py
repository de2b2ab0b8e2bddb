"""Moves of an evaluator's policy, without search: one evaluation.

Axes: B boards, P planes, A labels, W outcomes.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import chess
import numpy as np
from numpy.typing import NDArray

from engine.encoding.planes import label_of, planes_of
from engine.evaluation.evaluator import Evaluator


class PolicyMove(NamedTuple):
    """One evaluation of a position, its mover's view."""

    move: chess.Move
    """Likeliest move, or the one that was drawn; of promotions the queen."""
    value: float
    """Win minus loss."""
    draw: float
    """Probability of a draw."""


def choose_by_policy(
    evaluator: Evaluator,
    boards: Sequence[chess.Board],
    allowed: Sequence[chess.Move] | None = None,
    *,
    temperature: float = 0.0,
    seed: int = 0,
    columns: Mapping[str, NDArray[np.integer]] | None = None,
) -> list[PolicyMove]:
    """Evaluate positions in one batch and return the likeliest legal move of each, or of those in `allowed`.

    At a `temperature` above 0 moves are drawn by softmax(logits / temperature); `seed` and the ply determine which. `columns`
    are inputs of the evaluator besides the planes, `[B]` each.
    """
    network: Any = evaluator
    logits_BA, wdl_BW = network(planes_of(boards), columns) if columns else evaluator(planes_of(boards))
    chosen = []
    for board, logits_A, wdl_W in zip(boards, logits_BA, wdl_BW, strict=True):
        likely_A = logits_A.astype(np.float64)
        if temperature:  # the largest of logits with Gumbel noise is a draw by their softmax
            with np.errstate(over="ignore"):
                likely_A = (likely_A - likely_A.max()) / temperature
            likely_A += np.random.default_rng((seed, board.ply())).gumbel(size=len(likely_A))
        labelled = [(move, label_of(move, board.turn)) for move in allowed or board.legal_moves]
        likely = [(float(likely_A[label]), -label, move.promotion or 0) for move, label in labelled]
        win, draw, loss = (float(share) for share in wdl_W)
        chosen.append(PolicyMove(labelled[likely.index(max(likely))][0], win - loss, draw))
    return chosen
