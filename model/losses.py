"""What training makes small: masked policy cross-entropy, and a value loss for each form of value head.

Axes: B batch, A label, V value outputs. Win, draw, loss are in that order, seen by the mover.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


def policy_terms(logits_BA: Tensor, legal_BA: Tensor, labels_B: Tensor) -> tuple[Tensor, Tensor]:
    """Give each row's cross-entropy in nats among legal moves, and minus the log of its legal mass: both `[B]`.

    An illegal label makes its row infinite.
    """
    logits_BA = logits_BA.float()
    legal_B = F.cross_entropy(logits_BA.masked_fill(~legal_BA, float("-inf")), labels_B, reduction="none")
    every_B = F.cross_entropy(logits_BA, labels_B, reduction="none")
    return legal_B, every_B - legal_B


def wdl_loss(value_B3: Tensor, results_B: Tensor) -> Tensor:
    """Give each row's cross-entropy of win, draw, loss against results +1, 0, -1."""
    return F.cross_entropy(value_B3.float(), 1 - results_B, reduction="none")


def tanh_loss(value_B1: Tensor, results_B: Tensor) -> Tensor:
    """Give each row's squared error of the value in -1..1 against results +1, 0, -1."""
    return (value_B1.float()[:, 0] - results_B).square()


def wdl_from_logits(value_B3: Tensor) -> Tensor:
    """Give probabilities of win, draw, loss."""
    return value_B3.float().softmax(1)


def wdl_from_tanh(value_B1: Tensor) -> Tensor:
    """Give (1 + v) / 2, 0, (1 - v) / 2: a scalar knows the expected score and nothing of draws, so none are claimed."""
    v_B = value_B1.float()[:, 0]
    return torch.stack(((1 + v_B) / 2, torch.zeros_like(v_B), (1 - v_B) / 2), 1)


@dataclass(frozen=True, slots=True)
class ValueForm:
    """How a kind of value head is trained and read."""

    loss: Callable[[Tensor, Tensor], Tensor]
    """(value `[B, V]`, results `[B]`) to a loss `[B]`."""
    wdl: Callable[[Tensor], Tensor]
    """Value `[B, V]` to probabilities `[B, 3]`."""


VALUE_FORMS: Mapping[str, ValueForm] = {
    "wdl": ValueForm(wdl_loss, wdl_from_logits),
    "tanh": ValueForm(tanh_loss, wdl_from_tanh),
}
