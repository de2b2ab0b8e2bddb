"""Calibrate the value head by temperature scaling, fitted on held-out games.

Trained on few games, the value memorizes results and becomes overconfident. Temperature scaling
(Guo et al. 2017, arXiv:1706.04599) corrects most of that; the factor here is 1 / temperature. It
multiplies the three logits of a wdl head, or the input of the tanh of a tanh head, which is half
the log-odds of a win against a loss. Both are outputs of the head's last layer, so the factor is
multiplied into the saved weights, and everything that reads them gets calibrated values.

All positions of a game share its result, so uncertainties are computed over games.

Axes: N positions, G games, O outcomes (win, draw, loss, or win and loss).
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from model.network.network import Network

MIN_FACTOR, MAX_FACTOR = 0.05, 4.0
"""Bounds of the factor."""
MIN_GAMES = 15
"""Minimum number of games; with fewer, the standard error is unreliable and the factor is 1."""
STANDARD_ERRORS, FEW_GAMES_STANDARD_ERRORS = 1.96, 20.0
"""The factor is 1 if log(factor) is within STANDARD_ERRORS + FEW_GAMES_STANDARD_ERRORS / games
standard errors of 0. The second term is a correction, since few games underestimate the error."""
PRIOR_DEVIATION = 0.5
"""Prior standard deviation of log(factor), used to shrink uncertain fits."""
FOLDS = 5
"""Number of cross-validation folds."""
BISECTION_STEPS = 40
MIN_MEMORIZED_GAIN = 0.01
"""Minimum improvement of the Brier score that triggers the warning about memorized results."""

Floats = NDArray[np.float64]


def fit_factor(wdl_N3: Tensor, target_N3: Tensor, game_N: NDArray[np.integer]) -> float:
    """Fit the factor of the value's logits to the targets; 1 if the games do not justify another.

    `wdl_N3` and `target_N3` are distributions over win, draw, loss; `game_N` are game numbers. If
    no draw is ever predicted (a tanh head), a drawn target counts as half a win and half a loss.
    The less certain the factor is, the more it is shrunk towards 1. It is 1 if cross-validation
    over games shows no improvement.
    """
    logits_NO = np.log(np.maximum(wdl_N3.double().numpy(), 1e-30))
    target_NO = target_N3.double().numpy()
    if not wdl_N3[:, 1].any():
        logits_NO = logits_NO[:, [0, 2]]
        target_NO = target_NO[:, [0, 2]] + target_NO[:, [1]] / 2
    _, game_N = np.unique(game_N, return_inverse=True)  # spreads the games evenly over the folds
    factor = _fit_shrunk(logits_NO, target_NO, game_N)
    if factor == 1.0:
        return 1.0
    gains = np.zeros(2)
    for fold in range(FOLDS):
        held_out_N = game_N % FOLDS == fold
        kept_N = ~held_out_N
        fold_factor = _fit_shrunk(logits_NO[kept_N], target_NO[kept_N], game_N[kept_N])
        held_out = logits_NO[held_out_N], target_NO[held_out_N]
        gains += _losses(1.0, *held_out) - _losses(fold_factor, *held_out)
    return round(factor, 4) if gains.min() > 0 else 1.0


def _fit_shrunk(logits_NO: Floats, target_NO: Floats, game_N: NDArray[np.integer]) -> float:
    """Return the likeliest factor, shrunk by its error; 1 if that is within the error."""
    _, game_N = np.unique(game_N, return_inverse=True)
    games = int(game_N.max(initial=-1)) + 1
    if games < MIN_GAMES:
        return 1.0
    low, high = math.log(MIN_FACTOR), math.log(MAX_FACTOR)
    for _ in range(BISECTION_STEPS):
        log_factor = (low + high) / 2
        slope_N = ((_softmax(math.exp(log_factor) * logits_NO) - target_NO) * logits_NO).sum(1)
        low, high = (low, log_factor) if slope_N.sum() > 0 else (log_factor, high)
    probabilities_NO = _softmax(math.exp(log_factor) * logits_NO)
    means_N1 = (probabilities_NO * logits_NO).sum(1, keepdims=True)
    curvature = float((probabilities_NO * np.square(logits_NO - means_N1)).sum())
    slope_G = np.bincount(game_N, weights=((probabilities_NO - target_NO) * logits_NO).sum(1))
    slope_error = math.sqrt(float(np.square(slope_G).sum()) * games / (games - 1))
    error = slope_error / max(curvature * math.exp(log_factor), 1e-30)
    if abs(log_factor) <= (STANDARD_ERRORS + FEW_GAMES_STANDARD_ERRORS / games) * error:
        return 1.0
    return math.exp(log_factor * PRIOR_DEVIATION**2 / (PRIOR_DEVIATION**2 + error**2))


def _softmax(logits_NO: Floats) -> Floats:
    powers_NO = np.exp(logits_NO - logits_NO.max(1, keepdims=True))
    probabilities_NO: Floats = powers_NO / powers_NO.sum(1, keepdims=True)
    return probabilities_NO


def _losses(factor: float, logits_NO: Floats, target_NO: Floats) -> Floats:
    """Return the total cross-entropy and the total squared error of the score, over all rows."""
    probabilities_NO = _softmax(factor * logits_NO)
    entropy = -(target_NO * np.log(np.maximum(probabilities_NO, 1e-30))).sum()
    error_NO = probabilities_NO - target_NO
    return np.array([entropy, np.square((error_NO[:, 0] - error_NO[:, -1]) / 2).sum()])


def scale_wdl(wdl_N3: Tensor, factor: float) -> Tensor:
    """Multiply the logits of win, draw, loss by a factor and return the probabilities."""
    return (factor * wdl_N3.double().log()).softmax(1)


@torch.no_grad()
def scale_value(network: Network, factor: float) -> None:
    """Multiply the last layer of a network's value head by a factor, in place."""
    last = [layer for layer in network.value.modules() if isinstance(layer, nn.Linear)][-1]
    for weight in last.parameters():
        weight.mul_(factor)


def describe_memorization(before: float, after: float, factor: float) -> str:
    """Return a warning if calibration lowered the Brier score by MIN_MEMORIZED_GAIN, else ""."""
    if before - after < MIN_MEMORIZED_GAIN:
        return ""
    return (
        "\nwarning: the value head has memorized results: its Brier score on validation games "
        f"was {before:.3f} before calibration and {after:.3f} after it (the checkpoint's value "
        f"logits are multiplied by {factor:.2f}); train on more games or evaluations, or for "
        "fewer steps"
    )
