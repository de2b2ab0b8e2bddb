"""Moves of an evaluator's policy, without search: one evaluation.

Axes: B boards, P planes, A labels, W outcomes.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import chess
import numpy as np
from numpy.typing import NDArray

from engine.encoding.planes import label_of, planes_of
from engine.encoding.views import LAST_MOVES, last_moves_of
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
    """Evaluate positions in one batch and choose a move of each, as `pick_moves` does; `seed` and the ply determine draws.

    `columns` are inputs of the evaluator besides the planes, `[B]` each.
    """
    logits_BA, wdl_BW = evaluate_boards(evaluator, boards, columns or {})
    seeds = [(seed, board.ply()) for board in boards]
    return pick_moves(boards, logits_BA, wdl_BW, seeds, temperature=temperature, allowed=allowed)


def evaluate_boards(
    evaluator: Evaluator, boards: Sequence[chess.Board], columns: Mapping[str, NDArray[np.integer]]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Evaluate boards in one batch, with columns besides the planes for an evaluator that reads some."""
    network: Any = evaluator
    return network(planes_of(boards), columns) if columns else evaluator(planes_of(boards))


def known_columns(
    evaluator: Evaluator, boards: Sequence[chess.Board], **numbers: int
) -> dict[str, NDArray[np.integer]]:
    """Return the columns besides planes that are known and that the evaluator reads (its `columns`), `[B]` each.

    These are the last moves, and `numbers` that apply to all boards, such as `elo` or `clock`.
    """
    last_BM = np.stack([last_moves_of(board, len(LAST_MOVES)) for board in boards])
    known: dict[str, NDArray[np.integer]] = dict(zip(LAST_MOVES, last_BM.T, strict=True))
    known |= {name: np.full(len(boards), number) for name, number in numbers.items()}
    return {name: column for name, column in known.items() if name in getattr(evaluator, "columns", ())}


def pick_moves(
    boards: Sequence[chess.Board],
    logits_BA: NDArray[np.floating],
    wdl_BW: NDArray[np.float32],
    seeds: Sequence[Sequence[int]],
    *,
    temperature: float,
    allowed: Sequence[chess.Move] | None = None,
) -> list[PolicyMove]:
    """Return the likeliest legal move of each board, or of those in `allowed`.

    At a `temperature` above 0 moves are drawn by softmax(logits / temperature); a board's seed determines which.
    """
    chosen = []
    for board, logits_A, wdl_W, seed in zip(boards, logits_BA, wdl_BW, seeds, strict=True):
        likely_A = logits_A.astype(np.float64)
        if temperature:  # the largest of logits with Gumbel noise is a draw by their softmax
            with np.errstate(over="ignore"):
                likely_A = (likely_A - likely_A.max()) / temperature
            likely_A += np.random.default_rng(tuple(seed)).gumbel(size=len(likely_A))
        labelled = [(move, label_of(move, board.turn)) for move in allowed or board.legal_moves]
        likely = [(float(likely_A[label]), -label, move.promotion or 0) for move, label in labelled]
        win, draw, loss = (float(share) for share in wdl_W)
        chosen.append(PolicyMove(labelled[likely.index(max(likely))][0], win - loss, draw))
    return chosen
