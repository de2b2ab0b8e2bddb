"""Calibrate the value: one factor for its logits, fitted on held-out games, and multiplied into the saved weights.

With few games the value memorizes results and becomes far too sure. Temperature scaling (Guo et al. 2017, arXiv:1706.04599)
repairs most of that; the factor is 1 / temperature. A head for win, draw and loss has its three logits multiplied. A tanh head
has the number before its tanh multiplied, which is half the log-odds of win against loss. Either is the head's last layer, so
the saved weights are calibrated: torch, exports, search, reports and UCI use them without knowing.

Axes: N positions, O outcomes (win, draw, loss, or win and loss).
"""

import math

import torch
from torch import Tensor, nn

from model.network.network import Network

LEAST, MOST = 0.05, 4.0
"""Bounds of the factor."""
ROWS_A_RESULT = 64
"""Positions that count as one observation, since the positions of a game share its result."""
BISECTIONS = 40
MEMORIZED = 0.01
"""Gain of the Brier score by calibration from which a run warns that its value memorizes results."""


def fit_factor(wdl_N3: Tensor, target_N3: Tensor) -> float:
    """Return the factor of the value's logits that makes the targets likeliest, rounded to four digits.

    Both arguments are distributions over win, draw, loss. Draws without any probability (a tanh head) count as half a win and
    half a loss. A standard normal prior on the factor's logarithm keeps it near 1 where held-out games are few.
    """
    logits_NO = wdl_N3.double().clamp(min=1e-30).log()
    target_NO = target_N3.double()
    if not wdl_N3[:, 1].any():
        half_N = target_NO[:, 1] / 2
        logits_NO, target_NO = (
            logits_NO[:, [0, 2]],
            torch.stack((target_NO[:, 0] + half_N, target_NO[:, 2] + half_N), 1),
        )
    observations = len(logits_NO) / ROWS_A_RESULT
    low, high = math.log(LEAST), math.log(MOST)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        factor = math.exp(middle)
        rest_NO = (factor * logits_NO).softmax(1) - target_NO
        slope = observations * factor * float((rest_NO * logits_NO).sum(1).mean()) + middle
        low, high = (low, middle) if slope > 0 else (middle, high)
    return round(math.exp((low + high) / 2), 4)


def scale_wdl(wdl_N3: Tensor, factor: float) -> Tensor:
    """Return probabilities of win, draw, loss whose logits are multiplied by a factor; 1 / factor undoes it."""
    return (factor * wdl_N3.double().log()).softmax(1)


@torch.no_grad()
def scale_value(network: Network, factor: float) -> None:
    """Multiply the last layer of a network's value head by a factor, in place."""
    last = [layer for layer in network.value.modules() if isinstance(layer, nn.Linear)][-1]
    for weight in last.parameters():
        weight.mul_(factor)


def describe_memorizing(before: float, after: float, factor: float) -> str | None:
    """Return a warning when calibration has lowered the value's Brier score by MEMORIZED or more, else None."""
    if before - after < MEMORIZED:
        return None
    return (
        f"the value memorizes results: its Brier score on validation games is {before:.3f}, and {after:.3f} once its logits "
        f"are multiplied by {factor:.2f}, as they are in the checkpoint; more games or evaluations help, or fewer steps"
    )
