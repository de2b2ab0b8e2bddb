"""The training loss: the policy's, the value's by the form of its head, and moves left, as the
configuration weighs them.

Axes: B batch, A label, V value outputs. Win, draw, loss are in that order, for the side to move;
the score is win - loss.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from model.data.outputs import flatten_policy
from model.network.network import Outputs
from model.training.config import TrainConfig
from model.training.policy_loss import Visits, policy_terms, reference_loss, soft_terms

NO_EVAL = -32768
"""Value of a batch's column `eval` in rows without an evaluation."""
EVAL_LIMIT = 1000
"""Evaluations are clipped to this many centipawns: beyond it, and for mates, people's chances no
longer rise."""
EVAL_MARGIN, EVAL_SLOPE = 98.0, 517.0
"""Centipawns; fitted by likelihood to 724,000 positions of rapid games of all ratings: Brier score
0.182, while the formula of lichess.org/page/accuracy, which has no draws and one slope of 272, has
0.190 there."""
HUBER_DELTA = 0.5
"""Error of the score (from -1 to 1) beyond which the Huber loss grows linearly."""
PLIES_A_UNIT = 20.0
"""Unit of the moves-left error in half-moves, as Leela's."""
MOVES_LEFT_WEIGHT = 0.05
"""Weight of the moves-left loss."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Targets:
    """Training targets of a batch's rows, on the device, in the network's labels."""

    legal: Tensor  # [B, A] bool, True where legal
    labels: Tensor  # [B] int64
    results: Tensor  # [B] int64, +1 / 0 / -1: the game's result for the side to move
    visits: Visits | None = None
    evals: Tensor | None = None  # [B] int, centipawns for the side to move, or NO_EVAL
    search_values: Tensor | None = None  # [B] float32, -1..1 for the side to move, or NaN
    plies_left: Tensor | None = None  # [B] float32, half-moves to the game's end
    # [B] bool, False for positions without a game and its result; None: all True
    has_game: Tensor | None = None
    # [B] bool, False where the move is not known or no target; None: all True
    has_label: Tensor | None = None
    # [B, A] logits of the policy that is kept in rows without a move or visits
    reference: Tensor | None = None


def row_losses(
    config: TrainConfig, form: "ValueForm", outputs: Outputs, targets: Targets
) -> dict[str, Tensor]:
    """Return each row's `loss`, as the configuration weighs it, and its parts, float32 `[B]`.

    The parts `policy_loss`, `value_loss` and `moves_left_loss` are before any weight, `illegal` is
    minus the log of the legal mass.
    """
    policy, value_BV, *left = outputs
    policy_B, illegal_B = _policy_loss(config, flatten_policy(policy), targets)
    value_B = _value_loss(config, form, value_BV, targets)
    has_value_B = (
        _has_result(config, targets)
        | _has_eval(config, targets)
        | _has_search_value(config, targets)
    )
    value_B = value_B.masked_fill(~has_value_B, 0.0)
    loss_B = policy_B + config.legality_weight * illegal_B + config.value_weight * value_B
    parts = {"policy_loss": policy_B, "value_loss": value_B, "illegal": illegal_B}
    if left and targets.plies_left is not None:
        left_B = moves_left_loss(left[0][:, 0], targets.plies_left)
        parts["moves_left_loss"] = (
            left_B if targets.has_game is None else left_B.masked_fill(~targets.has_game, 0.0)
        )
        loss_B = loss_B + MOVES_LEFT_WEIGHT * parts["moves_left_loss"]
    return {"loss": loss_B, **parts}


def _policy_loss(config: TrainConfig, logits_BA: Tensor, targets: Targets) -> tuple[Tensor, Tensor]:
    """Return the policy's loss and minus the log of its legal mass.

    In rows without a move or visits the first is the cross-entropy against the reference's policy,
    zero without one, and the second is zero.
    """
    if not config.label_smoothing and targets.visits is None:
        terms = policy_terms(logits_BA, targets.legal, targets.labels)
    else:
        terms = soft_terms(
            logits_BA,
            targets.legal,
            targets.labels,
            smoothing=config.label_smoothing,
            visits=targets.visits,
            temperature=config.visits_temperature,
        )
    if targets.has_label is None:
        return terms
    known_B = targets.has_label
    if targets.visits is not None:
        known_B = known_B.index_fill(0, targets.visits.rows, True)
    kept_B = torch.zeros_like(terms[0])
    if targets.reference is not None:
        kept_B = reference_loss(logits_BA, targets.legal, targets.reference)
    return torch.where(known_B, terms[0], kept_B), terms[1].masked_fill(~known_B, 0.0)


def _value_loss(
    config: TrainConfig, form: "ValueForm", value_BV: Tensor, targets: Targets
) -> Tensor:
    """Return the value's loss by the form's own rule, or by the score's error."""
    target_B3 = value_target(config, targets)
    if config.value_loss == "auto" or form.loss is no_loss:
        return form.loss(value_BV, target_B3)
    error_B = _score(form.wdl(value_BV)) - _score(target_B3)
    if config.value_loss == "mse":
        return error_B.square()
    return F.huber_loss(error_B, torch.zeros_like(error_B), reduction="none", delta=HUBER_DELTA)


def value_target(config: TrainConfig, targets: Targets) -> Tensor:
    """Return the value's targets over win, draw, loss `[B, 3]`: results, evaluations and search
    values by their shares.

    Rows without any target, which have no value loss, get their result.
    """
    target_B3 = wdl_of_results(targets.results)
    if config.eval_blend and targets.evals is not None:
        share_B = torch.where(_has_result(config, targets), config.eval_blend, 1.0)
        share_B1 = (share_B * _has_eval(config, targets))[:, None]
        target_B3 = (1 - share_B1) * target_B3 + share_B1 * wdl_from_centipawns(targets.evals)
    searched_B = _has_search_value(config, targets)
    if targets.search_values is None:
        return target_B3
    share_B = config.search_value_share * searched_B.float()
    beside_B = _has_game(targets) & (_has_result(config, targets) | _has_eval(config, targets))
    share_B1 = torch.where(beside_B, share_B, searched_B.float())[:, None]
    return (1 - share_B1) * target_B3 + share_B1 * wdl_from_score(
        targets.search_values.nan_to_num()
    )


def _has_search_value(config: TrainConfig, targets: Targets) -> Tensor:
    """Return the rows whose value target has a search's value in it, bool `[B]`."""
    if config.teach == "policy" or not config.search_value_share or targets.search_values is None:
        return torch.zeros_like(targets.results, dtype=torch.bool)
    return ~targets.search_values.isnan()


def _has_eval(config: TrainConfig, targets: Targets) -> Tensor:
    """Return the rows whose value target has an evaluation in it, bool `[B]`."""
    if not config.eval_blend or targets.evals is None:
        return torch.zeros_like(targets.results, dtype=torch.bool)
    return targets.evals != NO_EVAL


def _has_game(targets: Targets) -> Tensor:
    """Return the rows of a game, bool `[B]`."""
    return (
        torch.ones_like(targets.results, dtype=torch.bool)
        if targets.has_game is None
        else targets.has_game
    )


def _has_result(config: TrainConfig, targets: Targets) -> Tensor:
    """Return the rows whose value target has the game's result in it, bool `[B]`."""
    known_B = _has_game(targets)
    return known_B if config.results else torch.zeros_like(known_B)


def moves_left_loss(plies_B: Tensor, plies_left_B: Tensor) -> Tensor:
    """Return each row's Huber loss of the half-moves left, in units of PLIES_A_UNIT, linear from
    half a unit.
    """
    error_B = (plies_B.float() - plies_left_B) / PLIES_A_UNIT
    return F.huber_loss(error_B, torch.zeros_like(error_B), reduction="none", delta=0.5)


def wdl_from_centipawns(evals_B: Tensor) -> Tensor:
    """Return probabilities of win, draw, loss `[B, 3]` of an evaluation in centipawns for the side
    to move.

    The form is Stockfish's (github.com/official-stockfish/WDL_model): win is 1 / (1 + exp((margin -
    cp) / slope)), loss the same of -cp, draw the rest.
    """
    cp_B = evals_B.float().clamp(-EVAL_LIMIT, EVAL_LIMIT)
    win_B = torch.sigmoid((cp_B - EVAL_MARGIN) / EVAL_SLOPE)
    loss_B = torch.sigmoid((-cp_B - EVAL_MARGIN) / EVAL_SLOPE)
    return torch.stack((win_B, 1 - win_B - loss_B, loss_B), 1)


def wdl_from_score(scores_B: Tensor) -> Tensor:
    """Return probabilities of win, draw, loss `[B, 3]` of a score, win - loss, in -1..1, by the
    evaluations' curve.

    With x = cp / slope and c = cosh(margin / slope) the curve of `wdl_from_centipawns` has the
    score sinh x / (cosh x + c), a quadratic equation in exp x. Its root is taken for the better
    side, where nothing cancels.
    """
    margin = EVAL_MARGIN / EVAL_SLOPE
    sizes_B = scores_B.float().abs().clamp(max=1 - 1e-6)
    shifted_B = sizes_B * math.cosh(margin)
    x_B = torch.log(
        (shifted_B + (shifted_B.square() + 1 - sizes_B.square()).sqrt()) / (1 - sizes_B)
    )
    better_B, worse_B = torch.sigmoid(x_B - margin), torch.sigmoid(-x_B - margin)
    ahead_B = scores_B >= 0
    win_B, loss_B = torch.where(ahead_B, better_B, worse_B), torch.where(ahead_B, worse_B, better_B)
    return torch.stack((win_B, 1 - win_B - loss_B, loss_B), 1)


def wdl_of_results(results_B: Tensor) -> Tensor:
    """Return results +1, 0, -1 as distributions over win, draw, loss, float32 `[B, 3]`."""
    return F.one_hot(1 - results_B, 3).float()


def _score(wdl_B3: Tensor) -> Tensor:
    return wdl_B3[:, 0] - wdl_B3[:, 2]


def wdl_loss(value_B3: Tensor, target_B3: Tensor) -> Tensor:
    """Return each row's cross-entropy of win, draw, loss against a distribution over them,
    `[B]`.
    """
    return F.cross_entropy(value_B3.float(), target_B3, reduction="none")


def tanh_loss(value_B1: Tensor, target_B3: Tensor) -> Tensor:
    """Return each row's squared error of the value in -1..1 against a distribution's score,
    `[B]`.
    """
    return (value_B1.float()[:, 0] - _score(target_B3)).square()


def no_loss(value_B0: Tensor, target_B3: Tensor) -> Tensor:
    """Return zeros `[B]`: the network has no value head."""
    return torch.zeros(len(target_B3), device=target_B3.device)


def wdl_from_logits(value_B3: Tensor) -> Tensor:
    """Return probabilities of win, draw, loss."""
    return value_B3.float().softmax(1)


def wdl_from_tanh(value_B1: Tensor) -> Tensor:
    """Return (1 + v) / 2, 0, (1 - v) / 2: a scalar value gives the expected score and no draws."""
    v_B = value_B1.float()[:, 0]
    return torch.stack(((1 + v_B) / 2, torch.zeros_like(v_B), (1 - v_B) / 2), 1)


def uniform_wdl(value_B0: Tensor) -> Tensor:
    """Return a third for each outcome."""
    return torch.full((value_B0.shape[0], 3), 1 / 3, device=value_B0.device)


@dataclass(frozen=True, slots=True)
class ValueForm:
    """Loss and probabilities of one kind of value head."""

    loss: Callable[[Tensor, Tensor], Tensor]
    """(value `[B, V]`, distributions `[B, 3]`) to a loss `[B]`."""
    wdl: Callable[[Tensor], Tensor]
    """Value `[B, V]` to probabilities `[B, 3]`."""


VALUE_FORMS: Mapping[str, ValueForm] = {
    "wdl": ValueForm(wdl_loss, wdl_from_logits),
    "tanh": ValueForm(tanh_loss, wdl_from_tanh),
    "none": ValueForm(no_loss, uniform_wdl),
}
"""By the word in a preset's row."""
