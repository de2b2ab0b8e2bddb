"""The risk of a blunder before a move is made, from a policy of human moves and a search.

Axes: A legal moves by label (a promotion is one), F features.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import chess
import numpy as np
from numpy.typing import NDArray

from engine.player import Play
from pipeline.board.scores import score_of_value

BLUNDER = 0.1
"""Loss of expected score above which a move is a blunder."""
SOFTNESS = 0.02
"""Error of a search's loss, as a logistic scale: a loss near BLUNDER counts by half."""
WEIGHTS = (-1.867, 0.578, 3.996, -0.517, 1.852, -0.831)
"""Logistic regression on `compute_features`, fitted to 23,731 moves of 1,188 games (embedded
network, 64 simulations)."""
BEND = 1500
"""Rating above which blunders become rarer more quickly."""


class Labels(NamedTuple):
    """Legal moves as people and a search see them."""

    policy: NDArray[np.float64]  # [A] probability that it is played
    loss: NDArray[np.float64]  # [A] expected score lost by the search; nan without a visit
    best: float
    """Expected score of the best move."""


def promote_to_queen(move: chess.Move) -> chess.Move:
    """Return a move as policies name it: every promotion is a queen's."""
    return (
        move
        if move.promotion is None
        else chess.Move(move.from_square, move.to_square, chess.QUEEN)
    )


def policy_labels(policy: Mapping[chess.Move, float], analysis: Play) -> Labels:
    """Return the moves of a policy with their losses; a promotion has its best piece's."""
    best = score_of_value(analysis.moves[0].value)
    losses = dict.fromkeys(policy, math.nan)
    for found in analysis.moves:
        if found.visits or found.mate:
            move = promote_to_queen(found.move)
            loss = max(best - score_of_value(found.value), 0.0)
            losses[move] = float(np.fmin(losses[move], loss))
    return Labels(np.array(list(policy.values())), np.array(list(losses.values())), best)


def expected_loss(labels: Labels) -> float:
    """Return the mean loss of the policy's moves, over the moves that the search visited."""
    seen = ~np.isnan(labels.loss)
    weight = labels.policy[seen].sum()
    return float(labels.policy[seen] @ labels.loss[seen] / weight) if weight else 0.0


def compute_features(labels: Labels, rating: int) -> NDArray[np.float64]:
    """Return the regression's inputs, float64[F].

    They are 1, the logit of the policy's share of blunders, its share of unvisited moves, the
    rating in thousands, how close the game is, and the rating above BEND.
    """
    seen = ~np.isnan(labels.loss)
    over = float(labels.policy[seen] @ _sigmoid((labels.loss[seen] - BLUNDER) / SOFTNESS))
    unseen = float(labels.policy[~seen].sum())
    closeness = 4 * labels.best * (1 - labels.best)
    return np.array(
        [1.0, _logit(over), unseen, rating / 1000, closeness, max(rating - BEND, 0) / 1000]
    )


def predict_risk(labels: Labels, rating: int) -> float:
    """Return the probability that a player of this rating blunders with the next move."""
    return float(_sigmoid(compute_features(labels, rating) @ np.array(WEIGHTS)))


def _sigmoid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1 / (1 + np.exp(-x))


def _logit(share: float) -> float:
    bounded = min(max(share, 1e-3), 1 - 1e-3)
    return math.log(bounded / (1 - bounded))
