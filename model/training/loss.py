"""The training loss: the policy's, the value's and the moves left's, as the configuration weighs
them.

Axes: B batch, A label, K moves of a policy target.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from model.network.decoder import Prediction
from model.network.encoder import Rows
from model.training.config import TrainConfig

HUBER_DELTA = 0.5
"""Error of the score (from -1 to 1) beyond which the Huber loss grows linearly."""
PLIES_A_UNIT = 20.0
"""Unit of the moves-left error in half-moves, as Leela's."""
MOVES_LEFT_WEIGHT = 0.05
"""Weight of the moves-left loss."""
CEILING = 78.0
"""Illegal logits are capped at this much above the best legal one: 4096 of them still add up in
float32."""
ILLEGAL = -1e9
"""Logit in place of an illegal move's: its probability is zero, and zero times it is not NaN."""


def row_losses(
    config: TrainConfig,
    form: str,
    prediction: Prediction,
    rows: Rows,
    legal_BA: Tensor,
    reference_BA: Tensor | None = None,
) -> dict[str, Tensor]:
    """Return each row's `loss`, as the configuration weighs it, and its parts, float32 `[B]`.

    The parts `policy_loss`, `value_loss` and `moves_left_loss` are before any weight, `illegal` is
    minus the log of the legal mass. `form` is the preset's word for its value, `rows` have the
    columns of `model.training.targets`, and `reference_BA` are the logits of the policy to keep.
    """
    policy_B, illegal_B = policy_terms(
        prediction.logits, legal_BA, rows["policy_moves"], rows["policy_shares"]
    )
    policy_B, illegal_B = policy_B * rows["policy_weight"], illegal_B * rows["policy_weight"]
    if reference_BA is not None:
        kept_B = reference_loss(prediction.logits, legal_BA, reference_BA)
        policy_B = policy_B + kept_B * rows["kept_weight"]
    value_B = value_loss(_rule(config, form), prediction.wdl, rows["value_target"])
    value_B = value_B * rows["value_weight"]
    loss_B = policy_B + config.legality_weight * illegal_B + config.value_weight * value_B
    parts = {"policy_loss": policy_B, "value_loss": value_B, "illegal": illegal_B}
    if prediction.plies_left is not None:
        error_B = (prediction.plies_left - rows["plies_left"]) / PLIES_A_UNIT
        parts["moves_left_loss"] = _huber(error_B, 0.5) * rows["plies_weight"]
        loss_B = loss_B + MOVES_LEFT_WEIGHT * parts["moves_left_loss"]
    return {"loss": loss_B, **parts}


def _rule(config: TrainConfig, form: str) -> str:
    """Return the value's rule: `auto` is `cross_entropy` for win, draw, loss, else `mse`."""
    if config.value_loss != "auto":
        return config.value_loss
    return "cross_entropy" if form == "wdl" else "mse"


def value_loss(rule: str, wdl_B3: Tensor, target_B3: Tensor) -> Tensor:
    """Return each row's loss of log-probabilities of win, draw, loss against a distribution, `[B]`.

    `mse` and `huber` are of the score, win - loss.
    """
    if rule == "cross_entropy":
        return -(target_B3 * wdl_B3).sum(1)
    win_B, _, loss_B = wdl_B3.exp().unbind(1)
    error_B = win_B - loss_B - (target_B3[:, 0] - target_B3[:, 2])
    return error_B.square() if rule == "mse" else _huber(error_B, HUBER_DELTA)


def _huber(error_B: Tensor, delta: float) -> Tensor:
    return F.huber_loss(error_B, torch.zeros_like(error_B), reduction="none", delta=delta)


def reference_loss(logits_BA: Tensor, legal_BA: Tensor, reference_BA: Tensor) -> Tensor:
    """Return each row's cross-entropy in nats among legal moves against the policy with the logits
    `reference_BA`, `[B]`.
    """
    mine_BA, wanted_BA = (one.masked_fill(~legal_BA, ILLEGAL) for one in (logits_BA, reference_BA))
    return F.cross_entropy(mine_BA, wanted_BA.softmax(1), reduction="none")


class _PolicyTerms(torch.autograd.Function):
    """Both terms from one exponential; written out, they take a tenth of a small network's step on
    a processor.
    """

    @staticmethod
    def forward(
        ctx: Any, logits_BA: Tensor, legal_BA: Tensor, moves_BK: Tensor, shares_BK: Tensor
    ) -> tuple[Tensor, Tensor]:
        top_B1 = logits_BA.masked_fill(~legal_BA, float("-inf")).amax(1, keepdim=True)
        top_B1 = top_B1.clamp(min=ILLEGAL)  # of a row without a legal move
        powers_BA = (logits_BA - top_B1).clamp_(max=CEILING).exp_()
        every_B1 = powers_BA.sum(1, keepdim=True)
        masked_BA = powers_BA * legal_BA
        legal_B1 = masked_BA.sum(1, keepdim=True).clamp_(min=1e-30)
        wanted_B = (shares_BK * (logits_BA.gather(1, moves_BK) - top_B1)).sum(1)
        ctx.save_for_backward(powers_BA, masked_BA, every_B1, legal_B1, moves_BK, shares_BK)
        legal_B = legal_B1.log()[:, 0]
        return legal_B - wanted_B, every_B1.log()[:, 0] - legal_B

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        powers_BA, masked_BA, every_B1, legal_B1, moves_BK, shares_BK = ctx.saved_tensors
        policy_B1, illegal_B1 = gradients[0][:, None], gradients[1][:, None]
        gradient_BA = powers_BA * (illegal_B1 / every_B1)
        gradient_BA.addcmul_(masked_BA, (policy_B1 - illegal_B1) / legal_B1)
        gradient_BA.scatter_add_(1, moves_BK, -policy_B1 * shares_BK)
        return gradient_BA, None, None, None


def policy_terms(
    logits_BA: Tensor, legal_BA: Tensor, moves_BK: Tensor, shares_BK: Tensor
) -> tuple[Tensor, Tensor]:
    """Return each row's cross-entropy in nats among legal moves, and minus the log of its legal
    mass: both `[B]`.

    The target has `shares_BK` on `moves_BK`, and logits z the cross-entropy `log(sum of exp z over
    legal moves) - sum of share * z`: no `[B, A]` array of targets is needed.
    """
    terms: tuple[Tensor, Tensor] = _PolicyTerms.apply(logits_BA, legal_BA, moves_BK, shares_BK)  # type: ignore[no-untyped-call]
    return terms
