"""What training makes small: the policy's loss, the value's by the form of its head, and moves left, weighed together.

Axes: B batch, A label, V value outputs. Win, draw, loss are in that order, seen by the mover; the score is win - loss.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from model.data.outputs import flat
from model.network.heads import Policy
from model.network.network import Outputs
from model.training.config import TrainConfig, TrainConfigError
from model.training.objective.policy_losses import (
    Visits,
    among_legal,
    dense_target,
    factored_terms,
    policy_terms,
    soft_terms,
)

__all__ = ["VALUE_FORMS", "Targets", "ValueForm", "policy_terms", "row_losses"]

NO_EVAL = -32768
"""Stands for an evaluation that a row has not, in a batch's column `eval`."""
EVAL_LIMIT = 1000
"""Evaluations count as at most this many centipawns: beyond it, and for mates, humans' chances no longer rise."""
EVAL_MARGIN, EVAL_SLOPE = 98.0, 517.0
"""Centipawns; fitted by likelihood to 724,000 positions of rapid games of all ratings: Brier score 0.182, while the formula
of lichess.org/page/accuracy, which has no draws and one slope of 272, has 0.190 there."""
PLIES_A_UNIT = 20.0
"""Errors of the moves left are counted in so many half-moves, as Leela's are."""


def wdl_from_centipawns(evals_B: Tensor) -> Tensor:
    """Return probabilities of win, draw, loss `[B, 3]` by an evaluation in centipawns, mover's view.

    The form is Stockfish's (github.com/official-stockfish/WDL_model): win is 1 / (1 + exp((margin - cp) / slope)), loss
    the same of -cp, draw the rest.
    """
    cp_B = evals_B.float().clamp(-EVAL_LIMIT, EVAL_LIMIT)
    win_B = torch.sigmoid((cp_B - EVAL_MARGIN) / EVAL_SLOPE)
    loss_B = torch.sigmoid((-cp_B - EVAL_MARGIN) / EVAL_SLOPE)
    return torch.stack((win_B, 1 - win_B - loss_B, loss_B), 1)


def wdl_from_score(scores_B: Tensor) -> Tensor:
    """Return probabilities of win, draw, loss `[B, 3]` by a score, win - loss, in -1..1: those of the evaluation that has it.

    With x = cp / slope and c = cosh(margin / slope) the curve of `wdl_from_centipawns` has the score
    sinh x / (cosh x + c), a quadratic equation in exp x. Its root is taken for the better side, where nothing cancels.
    """
    margin = EVAL_MARGIN / EVAL_SLOPE
    sizes_B = scores_B.float().abs().clamp(max=1 - 1e-6)
    shifted_B = sizes_B * math.cosh(margin)
    x_B = torch.log((shifted_B + (shifted_B.square() + 1 - sizes_B.square()).sqrt()) / (1 - sizes_B))
    better_B, worse_B = torch.sigmoid(x_B - margin), torch.sigmoid(-x_B - margin)
    ahead_B = scores_B >= 0
    win_B, loss_B = torch.where(ahead_B, better_B, worse_B), torch.where(ahead_B, worse_B, better_B)
    return torch.stack((win_B, 1 - win_B - loss_B, loss_B), 1)


def blended(results_B: Tensor, evals_B: Tensor, blend: float) -> Tensor:
    """Mix evaluations into the games' ends: `[B, 3]`; rows whose evaluation is NO_EVAL keep the end alone."""
    share_B1 = blend * (evals_B != NO_EVAL).float()[:, None]
    return (1 - share_B1) * wdl_of_results(results_B) + share_B1 * wdl_from_centipawns(evals_B)


def wdl_of_results(results_B: Tensor) -> Tensor:
    """Return results +1, 0, -1 as distributions over win, draw, loss, float32 `[B, 3]`."""
    return F.one_hot(1 - results_B, 3).float()


def wdl_loss(value_B3: Tensor, target_B3: Tensor) -> Tensor:
    """Return each row's cross-entropy of win, draw, loss against a distribution over them, `[B]`."""
    return F.cross_entropy(value_B3.float(), target_B3, reduction="none")


def tanh_loss(value_B1: Tensor, target_B3: Tensor) -> Tensor:
    """Return each row's squared error of the value in -1..1 against a distribution's score, `[B]`."""
    return (value_B1.float()[:, 0] - _score(target_B3)).square()


def wdl_from_logits(value_B3: Tensor) -> Tensor:
    """Return probabilities of win, draw, loss."""
    return value_B3.float().softmax(1)


def wdl_from_tanh(value_B1: Tensor) -> Tensor:
    """Return (1 + v) / 2, 0, (1 - v) / 2: a scalar knows the expected score and nothing of draws, so none are claimed."""
    v_B = value_B1.float()[:, 0]
    return torch.stack(((1 + v_B) / 2, torch.zeros_like(v_B), (1 - v_B) / 2), 1)


def _score(wdl_B3: Tensor) -> Tensor:
    return wdl_B3[:, 0] - wdl_B3[:, 2]


def no_loss(value_B0: Tensor, target: Tensor) -> Tensor:
    """Ask nothing of a network that says nothing of the result."""
    return torch.zeros(len(target), device=target.device)


def wdl_from_nothing(value_B0: Tensor) -> Tensor:
    """Return a third to each outcome."""
    return torch.full((value_B0.shape[0], 3), 1 / 3, device=value_B0.device)


@dataclass(frozen=True, slots=True)
class ValueForm:
    """How a kind of value head is trained and read."""

    loss: Callable[[Tensor, Tensor], Tensor]
    """(value `[B, V]`, distributions `[B, 3]`) to a loss `[B]`."""
    wdl: Callable[[Tensor], Tensor]
    """Value `[B, V]` to probabilities `[B, 3]`."""


VALUE_FORMS: Mapping[str, ValueForm] = {
    "wdl": ValueForm(wdl_loss, wdl_from_logits),
    "tanh": ValueForm(tanh_loss, wdl_from_tanh),
    "none": ValueForm(no_loss, wdl_from_nothing),
}
"""By the word in a preset's row."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Targets:
    """What a batch's rows teach, on the device, in the network's labels."""

    legal: Tensor  # [B, A] bool, True where legal
    labels: Tensor  # [B] int64
    results: Tensor  # [B] int64, +1 / 0 / -1: the game's end for the mover
    visits: Visits | None = None
    evals: Tensor | None = None  # [B] int, centipawns in the mover's view, or NO_EVAL
    roots: Tensor | None = None  # [B] float32, a search's value in -1..1 in the mover's view, or NaN
    plies_left: Tensor | None = None  # [B] float32, half-moves to the game's end
    weights: Tensor | None = None  # [B] float32, what a row counts
    ended: Tensor | None = None  # [B] bool, False for a position of no game, whose end nobody knows; None: all are
    taught: Tensor | None = None  # [B] bool, False for a position that teaches no move; None: all do


def row_losses(config: TrainConfig, form: ValueForm, outputs: Outputs, targets: Targets) -> dict[str, Tensor]:
    """Return each row's `loss`, as the configuration weighs it, and its parts, float32 `[B]`.

    The parts `policy_loss`, `value_loss` and `moves_left_loss` are before any weight, `illegal` is minus the log of the
    legal mass. Rows' own weights are left to whoever takes the mean, over the number of rows: 2 counts as two rows.
    """
    policy, value_BV, *left = outputs
    policy_B, illegal_B = _policy(config, policy, flat(policy), targets)
    if targets.taught is not None:
        policy_B = policy_B.masked_fill(~targets.taught, 0.0)
    value_B = _value(config, form, value_BV, targets)
    if targets.ended is not None:
        known_B = targets.ended | _searched(config, targets)
        value_B = value_B.masked_fill(~known_B, 0.0)
    loss_B = policy_B + config.legality_weight * illegal_B + config.value_weight * value_B
    parts = {"policy_loss": policy_B, "value_loss": value_B, "illegal": illegal_B}
    if left and targets.plies_left is not None:
        parts["moves_left_loss"] = _of_games(moves_left_loss(left[0][:, 0], targets.plies_left), targets)
        loss_B = loss_B + config.moves_left_weight * parts["moves_left_loss"]
    return {"loss": loss_B, **parts}


def value_target(config: TrainConfig, targets: Targets) -> Tensor:
    """Return the distributions over win, draw, loss `[B, 3]` that the value is taught: results, evaluations, search values."""
    if config.eval_blend and targets.evals is not None:
        target_B3 = blended(targets.results, targets.evals, config.eval_blend)
    else:
        target_B3 = wdl_of_results(targets.results)
    if not config.root_value_share or targets.roots is None:
        return target_B3
    share_B = config.root_value_share * _searched(config, targets).float()
    if targets.ended is not None:  # of a position of no game nothing else is known
        share_B = torch.where(targets.ended, share_B, share_B.sign())
    share_B1 = share_B[:, None]
    return (1 - share_B1) * target_B3 + share_B1 * wdl_from_score(targets.roots.nan_to_num())


def _searched(config: TrainConfig, targets: Targets) -> Tensor:
    """Return which rows have a search's value that is to be taught, bool `[B]`."""
    if not config.root_value_share or targets.roots is None:
        return torch.zeros_like(targets.results, dtype=torch.bool)
    return ~targets.roots.isnan()


def _of_games(loss_B: Tensor, targets: Targets) -> Tensor:
    """Ask nothing of rows whose game's end nobody knows."""
    return loss_B if targets.ended is None else loss_B.masked_fill(~targets.ended, 0.0)


def moves_left_loss(plies_B: Tensor, plies_left_B: Tensor) -> Tensor:
    """Return each row's error of the half-moves left, in units of PLIES_A_UNIT: squared up to half a unit, then straight."""
    error_B = (plies_B.float() - plies_left_B) / PLIES_A_UNIT
    return F.huber_loss(error_B, torch.zeros_like(error_B), reduction="none", delta=0.5)


def _policy(config: TrainConfig, policy: Policy, logits_BA: Tensor, targets: Targets) -> tuple[Tensor, Tensor]:
    """Return the policy's loss and minus the log of its legal mass."""
    if not config.label_smoothing and targets.visits is None and config.conditional_weight == 1:
        return policy_terms(logits_BA, targets.legal, targets.labels)
    soft: dict[str, Any] = {
        "smoothing": config.label_smoothing,
        "visits": targets.visits,
        "visits_share": config.visits_share,
        "temperature": config.visits_temperature,
    }
    whole_B, illegal_B = soft_terms(logits_BA, targets.legal, targets.labels, **soft)
    weight = config.conditional_weight
    if weight == 1:
        return whole_B, illegal_B
    if isinstance(policy, Tensor):
        raise TrainConfigError(f"conditional_weight is {weight}, and the network's policy is not factored: leave it 1")
    target_BA = dense_target(targets.legal, targets.labels, **soft)
    from_BF, to_BFT = among_legal(policy, targets.legal)
    marginal_B, _ = factored_terms(from_BF, to_BFT, target_BA.view_as(to_BFT))
    return weight * whole_B + (1 - weight) * marginal_B, illegal_B


def _value(config: TrainConfig, form: ValueForm, value_BV: Tensor, targets: Targets) -> Tensor:
    """Return the value's loss by the form's own rule, or by the score's error."""
    target_B3 = value_target(config, targets)
    if config.value_loss == "auto" or form.loss is no_loss:
        return form.loss(value_BV, target_B3)
    error_B = _score(form.wdl(value_BV)) - _score(target_B3)
    if config.value_loss == "mse":
        return error_B.square()
    return F.huber_loss(error_B, torch.zeros_like(error_B), reduction="none", delta=config.huber_delta)
