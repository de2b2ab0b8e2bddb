"""One step of training: batch -> prediction -> loss -> update.

    a batch in NumPy -> `prepare_parts`: parts of its rows with their targets, on the device
                     -> `take_step`: prediction, `row_losses` and gradients of each part, added up
                        and clipped -> weights -> averaged weights

On a GPU, all of `take_step`'s arithmetic is captured as a CUDA graph for each set of shapes. So it
reads the learning rate, the weight of the average and the hash of the step from tensors.

Batch norms compute their statistics over one microbatch at a time (Hoffer et al. 2017,
arXiv:1705.08741), so the result depends on `norm_rows`, not on the device or the number of
processes. A part is the portion of a batch that is computed at once: one microbatch on a CPU,
several on a GPU, where launching kernels takes longer than running them. A step draws no random
numbers: the order of batches and the hidden ratings depend only on seed and step.

Axes: B batch, A label, K moves of a policy target.
"""

import copy
import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import compress
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.errors import UserError
from model.data.rows import Batch, hash_step, hidden_columns, hide_columns
from model.network.blocks import Norm
from model.network.decoder import Prediction, legal_labels
from model.network.device import autocast, select_device, select_dtype
from model.network.encoder import Rows
from model.network.graphs import Graphs
from model.network.network import Network, build
from model.network.preset import Preset
from model.training.config import TrainConfig, ema_decay, learning_rate, resolve_optimizer
from model.training.distributed import World, WorldError, all_reduce, average_over_processes
from model.training.optimizers import CombinedOptimizer
from model.training.targets import load_training_rows

LOG = logging.getLogger(__name__)

SUMMED_METRICS = ("loss", "policy_loss", "value_loss", "top1", "legal_mass", "known")
"""Metrics summed over the rows of each step. `known` counts rows with a target move; `top1` and
`legal_mass` are summed over these rows."""
MAX_PART_ROWS = 2048
"""Maximum number of rows in a part with several microbatches, to limit GPU memory."""
MAX_GRADIENT_NORM = 1.0
"""Maximum norm of the gradient; larger gradients are scaled down."""
HUBER_DELTA = 0.5
"""Error of the score (from -1 to 1) beyond which the Huber loss grows linearly."""
PLIES_PER_UNIT = 20.0
"""Half-moves per unit of the moves-left loss's error, as in Leela Chess Zero."""
MOVES_LEFT_WEIGHT = 0.05
"""Weight of the moves-left loss."""
MAX_LOGIT_GAP = 78.0
"""Upper bound of a logit minus the best legal logit: float32 holds the sum of 4096 exponentials."""
ILLEGAL_LOGIT = -1e9
"""Logit of illegal moves: its probability is 0, and 0 times it is 0, while 0 times -inf is NaN."""


class DivergedError(UserError):
    """The loss, its gradient or a weight is not finite, or the loss rose far above its minimum."""


@dataclass(slots=True)
class Run:
    """State of a training run."""

    config: TrainConfig
    preset: Preset
    device: torch.device
    dtype: torch.dtype
    world: World
    network: Network
    model: nn.Module
    """The network, wrapped in DistributedDataParallel if there are several processes."""
    ema: Network
    """The network with averaged weights (an exponential moving average), for inference."""
    optimizer: CombinedOptimizer
    parts: int
    """Number of parts in this process's share of a batch."""
    average_weight: Tensor
    """Share of a step's new weights in the averaged weights, 0-dim."""
    step_hash: Tensor
    """Hash of the seed and the step, by which `hide_columns` chooses the rows whose ratings, clocks
    or last moves are set to unknown; 0-dim int64."""
    graphs: Graphs | None = None
    """The captured steps; None to launch each kernel separately."""
    reference: Network | None = None
    """The starting network, if rows without a policy target are trained towards its policy."""
    best: dict[str, Tensor] = field(default_factory=dict)
    """Averaged weights of the best validation, if `patience` is set."""
    step: int = 0
    positions: int = 0
    seconds: float = 0.0


def new_run(config: TrainConfig, preset: Preset, world: World | None = None) -> Run:
    """Make a run at step 0; raise WorldError if the processes cannot share its batches equally."""
    config = resolve_optimizer(config, preset.name)
    world = world or World()
    if config.microbatches % world.size:
        raise WorldError(
            f"a batch of {config.batch_size} rows has {config.microbatches} microbatches of at "
            f"least {config.norm_rows} rows, which cannot be divided equally among {world.size} "
            "processes: change norm_rows or batch_size"
        )
    device = select_device(config.device, world.gpu)
    network = build(preset, config.seed).to(device).train()
    groups = _count_groups(config, world, device)
    for module in network.modules():
        if isinstance(module, Norm):
            module.groups = groups
            module.train(not config.frozen_norms)
    ema = copy.deepcopy(network).eval().requires_grad_(False)
    model: nn.Module = network
    if world.size > 1:
        model = nn.parallel.DistributedDataParallel(network, broadcast_buffers=False)
    best = {name: tensor.clone() for name, tensor in ema.state_dict().items()}
    run = Run(
        config=config,
        preset=preset,
        device=device,
        dtype=select_dtype(config.amp, device),
        world=world,
        network=network,
        model=model,
        ema=ema,
        optimizer=CombinedOptimizer(config, network),
        parts=config.microbatches // world.size // groups,
        average_weight=torch.zeros((), device=device),
        step_hash=torch.zeros((), device=device, dtype=torch.int64),
        best=best if config.patience else {},
    )
    if config.graphs and device.type == "cuda":
        if world.size == 1:
            run.graphs = capture_steps(run)
        elif world.is_first:
            LOG.warning("with several processes, steps are not captured as CUDA graphs")
    return run


def capture_steps(run: Run) -> Graphs:
    """Return the steps of a run as CUDA graphs."""
    return Graphs(partial(_update, run), run.device)


def _count_groups(config: TrainConfig, world: World, device: torch.device) -> int:
    """Return the number of microbatches per part, the same for all parts of a process."""
    microbatches = config.microbatches // world.size
    rows = config.batch_size // config.microbatches
    limit = 1 if device.type == "cpu" else max(1, MAX_PART_ROWS // rows)
    counts = range(1, min(limit, microbatches) + 1)
    return max(count for count in counts if microbatches % count == 0)


def set_reference(run: Run, weights: Mapping[str, Tensor]) -> None:
    """Make the policy of these weights the target of rows without one (arXiv:1606.09282)."""
    run.reference = copy.deepcopy(run.ema)
    run.reference.load_state_dict(weights)


def prepare_parts(run: Run, batch: Batch) -> list[Rows]:
    """Return the parts of this process's share of a batch, with targets, on the device.

    Row i goes to part i modulo the number of parts. No state that a step changes is read, so this
    may run on another thread.
    """
    parts: list[Rows] = []
    for number in range(run.parts):
        part = {name: column[number :: run.parts] for name, column in batch.items()}
        rows = load_training_rows(run.config, run.preset, part, run.device)
        if run.reference is None:
            rows.pop("reference_weight", None)  # graphs are captured for each set of columns
        parts.append(rows)
    return parts


def take_step(run: Run, parts: Sequence[Rows], fraction: float) -> Tensor:
    """Take one optimizer step and return the sums of SUMMED_METRICS over its rows.

    `fraction` is the fraction of the run that is done, which sets the learning rate. The next step
    may overwrite the sums. Raises DivergedError on a CPU if the loss or the gradient is not finite.
    On a GPU this check would wait for the step. There the caller checks the sums later, since NaN
    persists.
    """
    run.optimizer.set_learning_rate(learning_rate(run.config, fraction))
    run.average_weight.fill_(1 - ema_decay(run.config, run.step + 1))
    run.step_hash.fill_(hash_step(run.config.seed, run.step))
    totals, norm = run.graphs(parts) if run.graphs else _update(run, parts)
    if run.device.type == "cpu" and not math.isfinite(float(totals[0]) + float(norm)):
        raise DivergedError(
            f"the loss is not finite at step {run.step}; train again with a lower learning rate"
        )
    run.step += 1
    run.positions += sum(len(rows["planes"]) for rows in parts) * run.world.size
    return totals


def _update(run: Run, parts: Sequence[Rows]) -> tuple[Tensor, Tensor]:
    """Update the weights; return the sums of SUMMED_METRICS and the norm of the gradient.

    Nothing is read back to the host, so that the update can be captured.
    """
    totals = all_reduce(_add_gradients(run, parts))
    norm = nn.utils.clip_grad_norm_(run.network.parameters(), MAX_GRADIENT_NORM)
    run.optimizer.step()
    _update_average(run)
    return totals, norm


def _add_gradients(run: Run, parts: Sequence[Rows]) -> Tensor:
    """Accumulate the gradients of all parts and return the sums of SUMMED_METRICS over their rows.

    The norms' running statistics become the mean over the parts.
    """
    run.network.zero_grad()
    if len(parts) == 1 == run.world.size:
        return _backward(run, parts[0])
    buffers = list(run.network.buffers())
    before, means = [buffer.clone() for buffer in buffers], list[Tensor]()
    totals: list[Tensor] = []
    for rows in parts:
        torch._foreach_copy_(buffers, before)
        is_last = len(totals) == len(parts) - 1
        # processes exchange their gradients only after the last part
        no_sync = nullcontext() if is_last or run.model is run.network else run.model.no_sync()  # type: ignore[operator]
        with no_sync:
            totals.append(_backward(run, rows))
        if means:
            torch._foreach_add_(_floats(means), _floats(buffers))
        else:
            means = [buffer.clone() for buffer in buffers]
    statistics = _floats(means)
    torch._foreach_mul_(statistics, 1 / len(parts))
    average_over_processes(statistics, run.world.size)
    torch._foreach_copy_(buffers, means)
    return torch.stack(totals).sum(0)


def _floats(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor for tensor in tensors if tensor.is_floating_point()]


def _backward(run: Run, rows: Rows) -> Tensor:
    """Add the gradients of one part and return the sums of SUMMED_METRICS over its rows."""
    rows = hide_columns(rows, hidden_columns(run.preset), run.step_hash)
    reference_BA = None
    with autocast(run.device, run.dtype):
        prediction = run.model(rows)
        if run.reference is not None and "reference_weight" in rows:
            with torch.no_grad():
                reference_BA = run.reference(rows).logits
    legal_BA = legal_labels(rows["planes"], prediction.logits.shape[1])
    losses = row_losses(run.config, run.preset.value, prediction, rows, legal_BA, reference_BA)
    (losses["loss"].mean() / run.parts).backward()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        best_B = prediction.logits.masked_fill(~legal_BA, float("-inf")).argmax(1)
        has_label_B = rows["label"] >= 0
        metrics = losses | {
            "top1": best_B == rows["label"],
            "legal_mass": torch.exp(-losses["illegal"]) * has_label_B,
            "known": has_label_B,
        }
        return torch.stack([metrics[name].detach().float().sum() for name in SUMMED_METRICS])


def row_losses(
    config: TrainConfig,
    value_head: str,
    prediction: Prediction,
    rows: Rows,
    legal_BA: Tensor,
    reference_BA: Tensor | None = None,
) -> dict[str, Tensor]:
    """Return each row's `loss`, and its terms before the settings' weights, float32 `[B]`.

    The terms are `policy_loss`, `value_loss`, `illegal` (minus the log of the legal moves' total
    probability), and `moves_left_loss` if the network has that head, each multiplied by its weight
    in `rows`. These are the columns of `model.training.targets`; `reference_BA` are the reference
    network's logits, which rows without a policy target learn from.
    """
    policy_B, illegal_B = _PolicyTerms.apply(  # type: ignore[no-untyped-call]
        prediction.logits, legal_BA, rows["policy_moves"], rows["policy_shares"]
    )
    policy_B, illegal_B = policy_B * rows["policy_weight"], illegal_B * rows["policy_weight"]
    if reference_BA is not None:
        masked_BA, target_BA = (
            logits_BA.masked_fill(~legal_BA, ILLEGAL_LOGIT)
            for logits_BA in (prediction.logits, reference_BA)
        )
        reference_B = F.cross_entropy(masked_BA, target_BA.softmax(1), reduction="none")
        policy_B = policy_B + reference_B * rows["reference_weight"]
    value_B = _value_loss(config, value_head, prediction.wdl, rows["value_target"])
    value_B = value_B * rows["value_weight"]
    loss_B = policy_B + config.legality_weight * illegal_B + config.value_weight * value_B
    terms = {"policy_loss": policy_B, "value_loss": value_B, "illegal": illegal_B}
    if prediction.plies_left is not None:
        error_B = (prediction.plies_left - rows["plies_left"]) / PLIES_PER_UNIT
        terms["moves_left_loss"] = _huber(error_B, 0.5) * rows["plies_weight"]
        loss_B = loss_B + MOVES_LEFT_WEIGHT * terms["moves_left_loss"]
    return {"loss": loss_B, **terms}


def _value_loss(config: TrainConfig, value_head: str, wdl_B3: Tensor, target_B3: Tensor) -> Tensor:
    """Return the value loss `[B]` from log-probabilities of win, draw, loss and their targets.

    `mse` and `huber` compare scores, win - loss; `auto` is mse unless the value head is wdl, where
    it is the cross-entropy.
    """
    if config.value_loss == "auto" and value_head == "wdl":
        return -(target_B3 * wdl_B3).sum(1)
    win_B, _, loss_B = wdl_B3.exp().unbind(1)
    error_B = win_B - loss_B - (target_B3[:, 0] - target_B3[:, 2])
    return _huber(error_B, HUBER_DELTA) if config.value_loss == "huber" else error_B.square()


def _huber(error_B: Tensor, delta: float) -> Tensor:
    return F.huber_loss(error_B, torch.zeros_like(error_B), reduction="none", delta=delta)


class _PolicyTerms(torch.autograd.Function):
    """Policy cross-entropy among legal moves, and minus the log of their total probability, `[B]`.

    The target puts `shares_BK` on `moves_BK`. The cross-entropy of logits z is
    `log(sum of exp z over legal moves) - sum of share * z`, so no `[B, A]` target is needed. Both
    terms are in nats. They share one exponential, and the gradient is handwritten for speed.
    """

    @staticmethod
    def forward(
        ctx: Any, logits_BA: Tensor, legal_BA: Tensor, moves_BK: Tensor, shares_BK: Tensor
    ) -> tuple[Tensor, Tensor]:
        top_B1 = logits_BA.masked_fill(~legal_BA, float("-inf")).amax(1, keepdim=True)
        top_B1 = top_B1.clamp(min=ILLEGAL_LOGIT)  # rows without a legal move have -inf
        powers_BA = (logits_BA - top_B1).clamp_(max=MAX_LOGIT_GAP).exp_()
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


@torch.no_grad()
def _update_average(run: Run) -> None:
    averaged = [*run.ema.parameters(), *run.ema.buffers()]
    current = [*run.network.parameters(), *run.network.buffers()]
    if run.config.ema:
        changes = torch._foreach_sub(_floats(current), _floats(averaged))
        torch._foreach_mul_(changes, run.average_weight)
        torch._foreach_add_(_floats(averaged), changes)
        is_copied = [not tensor.is_floating_point() for tensor in averaged]
        averaged, current = list(compress(averaged, is_copied)), list(compress(current, is_copied))
    if averaged:
        torch._foreach_copy_(averaged, current)


def check_finite(run: Run) -> None:
    """Raise DivergedError if a weight is not finite; on a GPU, not every step is checked."""
    finite = torch.stack([weight.isfinite().all() for weight in run.network.parameters()])
    if not bool(finite.all()):
        raise DivergedError(
            f"the weights are not finite at step {run.step}; train again with a lower learning rate"
        )
