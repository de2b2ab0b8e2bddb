"""Calibrate the value: one factor for its logits, fitted on held-out games, multiplied into the
weights.

With few games the value memorizes results and becomes far too sure. Temperature scaling (Guo et al.
2017, arXiv:1706.04599) repairs most of that; the factor is 1 / temperature. A head for win, draw
and loss has its three logits multiplied. A tanh head has the number before its tanh multiplied,
which is half the log-odds of win against loss. Either is the head's last layer, so the saved
weights are calibrated: torch, exports, search, reports and UCI use them without knowing.

The positions of a game share its result, so games are the unit of every uncertainty here.

Axes: N positions, G games, O outcomes (win, draw, loss, or win and loss).
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from model.network.network import Network

LEAST, MOST = 0.05, 4.0
"""Bounds of the factor."""
FEWEST_GAMES = 15
"""Games below which the value keeps its scale: a standard error needs more."""
ERRORS, FEW_GAMES_ERRORS = 1.96, 20.0
"""Standard errors from 1 up to which the value keeps its scale: ERRORS + FEW_GAMES_ERRORS / games,
since few games understate their spread."""
PRIOR = 0.5
"""Standard deviation of the logarithm of factors, for shrinking a fit by its uncertainty."""
FOLDS = 5
"""Parts of the games that check a factor fitted on the others."""
BISECTIONS = 40
MEMORIZED = 0.01
"""Gain of the Brier score from which a run warns that its value memorizes results."""

Floats = NDArray[np.float64]


def fit_factor(wdl_N3: Tensor, target_N3: Tensor, game_N: NDArray[np.integer]) -> float:
    """Return the factor of the value's logits that fits the targets, or 1 where the games do not
    show one.

    `wdl_N3` and `target_N3` are distributions over win, draw, loss, and `game_N` are the games'
    numbers. Draws without any probability (a tanh head) count as half a win and half a loss. The
    factor is shrunk towards 1 by its uncertainty, and is 1 if factors fitted on some games do not
    help on the others.
    """
    logits_NO = np.log(np.maximum(wdl_N3.double().numpy(), 1e-30))
    target_NO = target_N3.double().numpy()
    if not wdl_N3[:, 1].any():
        logits_NO = logits_NO[:, [0, 2]]
        target_NO = target_NO[:, [0, 2]] + target_NO[:, [1]] / 2
    place_N = np.unique(game_N, return_inverse=True)[1]
    factor = _fit_shrunk(logits_NO, target_NO, place_N)
    if factor == 1.0:
        return 1.0
    gains = np.zeros(2)
    for fold in range(FOLDS):
        held_N = place_N % FOLDS == fold
        other = _fit_shrunk(logits_NO[~held_N], target_NO[~held_N], place_N[~held_N])
        held = logits_NO[held_N], target_NO[held_N]
        gains += _losses(1.0, *held) - _losses(other, *held)
    return round(factor, 4) if gains.min() > 0 else 1.0


def _fit_shrunk(logits_NO: Floats, target_NO: Floats, place_N: NDArray[np.integer]) -> float:
    """Return the likeliest factor, shrunk by its error; 1 where its interval holds 1."""
    _, place_N = np.unique(place_N, return_inverse=True)
    games = int(place_N.max(initial=-1)) + 1
    if games < FEWEST_GAMES:
        return 1.0
    low, high = math.log(LEAST), math.log(MOST)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        slope_N = ((_softmax(math.exp(middle) * logits_NO) - target_NO) * logits_NO).sum(1)
        low, high = (low, middle) if slope_N.sum() > 0 else (middle, high)
    shares_NO = _softmax(math.exp(middle) * logits_NO)
    means_N1 = (shares_NO * logits_NO).sum(1, keepdims=True)
    curvature = float((shares_NO * np.square(logits_NO - means_N1)).sum())
    slope_G = np.bincount(place_N, weights=((shares_NO - target_NO) * logits_NO).sum(1))
    spread = math.sqrt(float(np.square(slope_G).sum()) * games / (games - 1))
    error = spread / max(curvature * math.exp(middle), 1e-30)
    if abs(middle) <= (ERRORS + FEW_GAMES_ERRORS / games) * error:
        return 1.0
    return math.exp(middle * PRIOR**2 / (PRIOR**2 + error**2))


def _softmax(logits_NO: Floats) -> Floats:
    powers_NO = np.exp(logits_NO - logits_NO.max(1, keepdims=True))
    shares_NO: Floats = powers_NO / powers_NO.sum(1, keepdims=True)
    return shares_NO


def _losses(factor: float, logits_NO: Floats, target_NO: Floats) -> Floats:
    """Return the sums over rows of the cross-entropy and of the squared error of the score."""
    shares_NO = _softmax(factor * logits_NO)
    entropy = -(target_NO * np.log(np.maximum(shares_NO, 1e-30))).sum()
    wrong_NO = shares_NO - target_NO
    return np.array([entropy, np.square((wrong_NO[:, 0] - wrong_NO[:, -1]) / 2).sum()])


def scale_wdl(wdl_N3: Tensor, factor: float) -> Tensor:
    """Return probabilities of win, draw, loss whose logits are multiplied by a factor."""
    return (factor * wdl_N3.double().log()).softmax(1)


@torch.no_grad()
def scale_value(network: Network, factor: float) -> None:
    """Multiply the last layer of a network's value head by a factor, in place."""
    last = [layer for layer in network.value.modules() if isinstance(layer, nn.Linear)][-1]
    for weight in last.parameters():
        weight.mul_(factor)


def describe_memorizing(before: float, after: float, factor: float) -> str:
    """Return a line that warns when calibration has lowered the value's Brier score much, or ""."""
    if before - after < MEMORIZED:
        return ""
    return (
        f"\nwarning: the value memorizes results: its Brier score on validation games is "
        f"{before:.3f}, and {after:.3f} once its logits are multiplied by {factor:.2f}, as they "
        f"are in the checkpoint; more games or evaluations help, or fewer steps"
    )
