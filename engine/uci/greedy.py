"""A move without a search: the likeliest of an evaluator's policy, for one evaluation.

Axes: B rows (one here), P planes, A labels.
"""

from dataclasses import dataclass

import chess
import numpy as np

from engine.encoding import PLANES, label_of
from engine.evaluators import Evaluator
from engine.legal import legal_planes
from engine.position import from_board


@dataclass(frozen=True, slots=True)
class Glance:
    """What one evaluation says of a position, its mover's view."""

    move: chess.Move
    """Likeliest move; of promotions the queen."""
    value: float
    """Win minus loss."""
    draw: float
    """Probability of a draw."""


def glance(evaluator: Evaluator, board: chess.Board, among: list[chess.Move]) -> Glance:
    """Have a position evaluated and give the likeliest of `among`, which holds at least one legal move."""
    planes_BP = np.empty((1, PLANES), dtype=np.uint64)
    legal_planes(from_board(board), planes_BP[0])
    logits_BA, wdl_B3 = evaluator(planes_BP)

    def likelihood(move: chess.Move) -> tuple[float, int]:
        return float(logits_BA[0, label_of(move, board.turn)]), move.promotion or 0

    win, draw, loss = (float(share) for share in wdl_B3[0])
    return Glance(max(among, key=likelihood), win - loss, draw)
