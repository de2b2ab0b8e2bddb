"""What training makes small: masked policy cross-entropy, and a value loss for each form of value head.

Axes: B batch, A label, V value outputs. Win, draw, loss are in that order, seen by the mover.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

CEILING = 78.0
"""Illegal logits count as at most this far above the best legal one: 4096 of them still add up in float32."""


class _PolicyTerms(torch.autograd.Function):
    """Both terms from one exponential: written out, they are a tenth of a small network's step on a processor."""

    @staticmethod
    def forward(ctx: Any, logits_BA: Tensor, legal_BA: Tensor, labels_B: Tensor) -> tuple[Tensor, Tensor]:
        labels_B1 = labels_B[:, None]
        top_B1 = logits_BA.masked_fill(~legal_BA, float("-inf")).amax(1, keepdim=True)
        powers_BA = (logits_BA - top_B1).clamp_(max=CEILING).exp_()
        every_B1 = powers_BA.sum(1, keepdim=True)
        masked_BA = powers_BA * legal_BA
        legal_B1 = masked_BA.sum(1, keepdim=True)
        chosen_B1 = (logits_BA.gather(1, labels_B1) - top_B1).masked_fill(~legal_BA.gather(1, labels_B1), float("-inf"))
        ctx.save_for_backward(powers_BA, masked_BA, every_B1, legal_B1, labels_B1)
        return (legal_B1.log() - chosen_B1)[:, 0], (every_B1.log() - legal_B1.log())[:, 0]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        powers_BA, masked_BA, every_B1, legal_B1, labels_B1 = ctx.saved_tensors
        policy_B1, illegal_B1 = gradients[0][:, None], gradients[1][:, None]
        gradient_BA = powers_BA * (illegal_B1 / every_B1)
        gradient_BA.addcmul_(masked_BA, (policy_B1 - illegal_B1) / legal_B1)
        gradient_BA.scatter_add_(1, labels_B1, -policy_B1)
        return gradient_BA, None, None


def policy_terms(logits_BA: Tensor, legal_BA: Tensor, labels_B: Tensor) -> tuple[Tensor, Tensor]:
    """Give each row's cross-entropy in nats among legal moves, and minus the log of its legal mass: both `[B]`.

    An illegal label makes its row infinite.
    """
    terms: tuple[Tensor, Tensor] = _PolicyTerms.apply(logits_BA.float(), legal_BA, labels_B)  # type: ignore[no-untyped-call]
    return terms


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
