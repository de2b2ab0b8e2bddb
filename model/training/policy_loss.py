"""The policy's loss: cross-entropy among legal moves against the played move or a search's visits.

A factored policy is flattened before, which by the chain rule of probability makes its loss the sum
of its parts' losses.

Axes: B batch, A label, N visited moves of all rows together.

The target t of a row is a distribution over its legal moves, and logits z have the loss `log(sum of
exp z over legal moves) - sum of t z`. So the loss of a soft target is that of a hard one plus a
difference of logits. No `[B, A]` array of targets is needed where few labels have a share.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

CEILING = 78.0
"""Illegal logits are capped at this much above the best legal one: 4096 of them still add up in
float32."""
ILLEGAL = -1e9
"""Logit in place of an illegal move's: its probability is zero, and zero times it is not NaN."""


class _PolicyTerms(torch.autograd.Function):
    """Both terms from one exponential; written out, they take a tenth of a small network's step on
    a processor.
    """

    @staticmethod
    def forward(
        ctx: Any, logits_BA: Tensor, legal_BA: Tensor, labels_B: Tensor
    ) -> tuple[Tensor, Tensor]:
        labels_B1 = labels_B[:, None]
        top_B1 = logits_BA.masked_fill(~legal_BA, float("-inf")).amax(1, keepdim=True)
        powers_BA = (logits_BA - top_B1).clamp_(max=CEILING).exp_()
        every_B1 = powers_BA.sum(1, keepdim=True)
        masked_BA = powers_BA * legal_BA
        legal_B1 = masked_BA.sum(1, keepdim=True)
        chosen_B1 = (logits_BA.gather(1, labels_B1) - top_B1).masked_fill(
            ~legal_BA.gather(1, labels_B1), float("-inf")
        )
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
    """Return each row's cross-entropy in nats among legal moves, and minus the log of its legal
    mass: both `[B]`.

    Their sum is the cross-entropy among all labels. An illegal label makes its row infinite.
    """
    terms: tuple[Tensor, Tensor] = _PolicyTerms.apply(logits_BA.float(), legal_BA, labels_B)  # type: ignore[no-untyped-call]
    return terms


@dataclass(frozen=True, slots=True)
class Visits:
    """A search's visits in some rows of a batch, one entry for each visited move."""

    rows: Tensor  # [N] int64, which row of the batch
    labels: Tensor  # [N] int64, in the network's labels
    shares: Tensor  # [N] float32, above 0; a row's need not add up to one


def normalize_visits(visits: Visits, rows: int, temperature: float) -> Tensor:
    """Return the shares `[N]` raised to one over the temperature and normalized in each row."""
    powers_N = visits.shares.float() ** (1 / temperature)
    sums_B = powers_N.new_zeros(rows).index_add_(0, visits.rows, powers_N)
    return powers_N / sums_B[visits.rows]


def soft_terms(
    logits_BA: Tensor,
    legal_BA: Tensor,
    labels_B: Tensor,
    *,
    smoothing: float = 0.0,
    visits: Visits | None = None,
    temperature: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Return `policy_terms` against a soft target: a share `smoothing` even over legal moves, the
    rest on visits or the label.

    An illegal label or visit makes its row infinite.
    """
    logits_BA = logits_BA.float()
    policy_B, illegal_B = policy_terms(logits_BA, legal_BA, labels_B)
    chosen_B = logits_BA.gather(1, labels_B[:, None])[:, 0]
    wanted_B = chosen_B  # the logits' mean under the target
    if visits is not None:
        shares_N = normalize_visits(visits, len(labels_B), temperature)
        spread_N = shares_N * (logits_BA[visits.rows, visits.labels] - chosen_B[visits.rows])
        wanted_B = wanted_B.index_add(0, visits.rows, spread_N)
        strange_N = ~legal_BA[visits.rows, visits.labels]
        infinite_B = torch.zeros_like(policy_B).masked_fill_(
            torch.zeros_like(policy_B).index_add_(0, visits.rows, strange_N.float()) > 0,
            float("inf"),
        )
        policy_B = policy_B + infinite_B
    if smoothing:
        even_B = logits_BA.masked_fill(~legal_BA, 0.0).sum(1) / legal_BA.sum(1)
        wanted_B = (1 - smoothing) * wanted_B + smoothing * even_B
    return policy_B + (chosen_B - wanted_B), illegal_B


def reference_loss(logits_BA: Tensor, legal_BA: Tensor, reference_BA: Tensor) -> Tensor:
    """Return each row's cross-entropy in nats among legal moves against the policy with the logits
    `reference_BA`, `[B]`.
    """
    mine_BA, wanted_BA = (
        one.float().masked_fill(~legal_BA, ILLEGAL) for one in (logits_BA, reference_BA)
    )
    return F.cross_entropy(mine_BA, wanted_BA.softmax(1), reduction="none")
