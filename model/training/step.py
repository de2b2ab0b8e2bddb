"""One step of training: batch -> prediction -> loss -> update.

    a batch in NumPy -> `prepare`: parts of its rows with their targets, on the device
                     -> `take_step`: prediction, loss and gradients of each part, added up and
                        clipped -> weights -> averaged weights

Batch norms take their statistics from one microbatch at a time (Hoffer et al. 2017,
arXiv:1705.08741), so what is learned depends on `norm_rows` and not on the device or the number of
processes. A part of a batch is what is computed at once: one microbatch on a processor, several on
a GPU, where launching the kernels takes longer than running them. A step draws no random numbers:
the order of batches, and which rows are shown without ratings, follow from seed and step.

Axes: B batch, A label.
"""

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from engine.errors import UserError
from model.data.rows import Batch, draw_of, hidden_columns, hide
from model.network.blocks import Norm
from model.network.decoder import legal_labels
from model.network.encoder import Rows
from model.network.network import Network, build
from model.network.preset import Preset
from model.training.config import TrainConfig, resolve_optimizer
from model.training.distributed import World, WorldError, all_reduce, average_over_processes
from model.training.loss import row_losses
from model.training.optimizers import CombinedOptimizer
from model.training.precision import autocast, device_for, dtype_for
from model.training.schedules import ema_decay, learning_rate
from model.training.stopping import NEVER_STOP, StopCheck
from model.training.targets import load_training_rows

COLUMNS = ("loss", "policy_loss", "value_loss", "top1", "legal_mass", "known")
"""Figures that are summed over the rows of each step; `known` counts those whose move is a target,
`top1` and `legal_mass` are sums over these."""
PASS_ROWS = 2048
"""Maximum number of rows in a part of several microbatches, for a GPU's memory."""
CHECK_STEPS = {"cpu": 1, "cuda": 16}
"""Steps between checks that loss and gradient are finite; a check stalls a GPU, and NaN stays in
the weights."""
CLIP = 1.0
"""Largest norm of the gradient; longer ones are scaled down to it."""


class DivergedError(UserError):
    """The loss or its gradient is infinite or NaN, or the loss rose far above its lowest value."""


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
    """The network as it is called: by itself, or in DistributedDataParallel."""
    ema: Network
    optimizer: CombinedOptimizer
    parts: int
    """Number of parts of this process's share of a batch, computed one after the other."""
    reference: Network | None = None
    """The network that the run began with, where its policy is kept in searched rows that teach the
    value alone."""
    best: dict[str, Tensor] = field(default_factory=dict)
    """The averaged weights of the best validation, kept where `patience` may return to them."""
    step: int = 0
    positions: int = 0
    seconds: float = 0.0


def new_run(config: TrainConfig, preset: Preset, world: World | None = None) -> Run:
    """Make a run at step 0; WorldError where the processes cannot share the microbatches of a batch
    equally.
    """
    config = resolve_optimizer(config, preset.name)
    world = world or World()
    if config.microbatches % world.size:
        raise WorldError(
            f"a batch of {config.batch_size} is {config.microbatches} microbatches of at least "
            f"{config.norm_rows} rows, which "
            f"{world.size} processes cannot share equally: change norm_rows or batch_size"
        )
    device = device_for(config.device, world.local if world.size > 1 else None)
    network = build(preset, config.seed).to(device).train()
    groups = _count_groups(config, world, device)
    for module in network.modules():
        if isinstance(module, Norm):
            module.groups = groups
            module.train(not config.frozen_norms)
    ema = copy.deepcopy(network).eval().requires_grad_(False)
    return Run(
        config=config,
        preset=preset,
        device=device,
        dtype=dtype_for(config.amp, device),
        world=world,
        network=network,
        model=network
        if world.size == 1
        else nn.parallel.DistributedDataParallel(network, broadcast_buffers=False),
        ema=ema,
        optimizer=CombinedOptimizer(config, network),
        parts=config.microbatches // world.size // groups,
        best={name: tensor.clone() for name, tensor in ema.state_dict().items()}
        if config.patience
        else {},
    )


def _count_groups(config: TrainConfig, world: World, device: torch.device) -> int:
    """Return the number of microbatches in a part; the parts of a process have equally many."""
    mine, rows = config.microbatches // world.size, config.batch_size // config.microbatches
    most = 1 if device.type == "cpu" else max(1, PASS_ROWS // rows)
    return max(count for count in range(1, min(most, mine) + 1) if mine % count == 0)


def keep_policy(run: Run, weights: Mapping[str, Tensor]) -> None:
    """Keep the policy of a network's weights in rows that have no move as target
    (arXiv:1606.09282).
    """
    run.reference = copy.deepcopy(run.ema)
    run.reference.load_state_dict(weights)


def prepare(run: Run, batch: Batch) -> list[Rows]:
    """Return the parts of this process's share of a batch, with their targets, on the run's device.

    It reads nothing of the run's state that a step changes, so it may run on another thread.
    """
    keeps = run.reference is not None
    return [
        load_training_rows(run.config, run.preset, part, run.device, keeps=keeps)
        for part in _deal(batch, run.parts)
    ]


def _deal(batch: Batch, count: int) -> Iterator[Batch]:
    """Deal a batch's rows to parts in turn, as they are dealt to processes and to a part's
    microbatches.
    """
    for number in range(count):
        yield (
            {name: column[number::count] for name, column in batch.items()} if count > 1 else batch
        )


def take_step(
    run: Run, parts: Sequence[Rows], fraction: float, stop_check: StopCheck = NEVER_STOP
) -> Tensor:
    """Do one optimizer step and return the sums of COLUMNS over its rows; DivergedError if it would
    not be finite.

    Raises WorkInterrupted when `stop_check` says so; the run is then as it was before the step.
    """
    config = run.config
    totals = _add_gradients(run, parts, stop_check)
    norm = nn.utils.clip_grad_norm_(run.network.parameters(), CLIP)
    totals = all_reduce(totals)
    is_due = run.step % CHECK_STEPS[run.device.type] == 0
    if is_due and not math.isfinite(float(totals[0]) + float(norm)):
        raise DivergedError(
            f"the loss is not finite at step {run.step}; train again with a lower learning rate"
        )
    run.optimizer.set_rate(learning_rate(config, fraction))
    run.optimizer.step()
    run.step += 1
    run.positions += sum(len(rows["planes"]) for rows in parts) * run.world.size
    _average(run)
    return totals


def _add_gradients(run: Run, parts: Sequence[Rows], stop_check: StopCheck) -> Tensor:
    """Add up the gradients of all parts and return the sums of COLUMNS over their rows.

    The norms' running statistics become the mean over the parts. Whatever is raised leaves the run
    as it was.
    """
    run.network.zero_grad()
    buffers = list(run.network.buffers())
    before, means = [buffer.clone() for buffer in buffers], list[Tensor]()
    totals: list[Tensor] = []
    try:
        for rows in parts:
            stop_check.check()
            _copy(before, buffers)
            is_last = len(totals) == len(parts) - 1
            alone = nullcontext() if is_last or run.model is run.network else run.model.no_sync()  # type: ignore[operator]
            with alone:
                totals.append(_backward(run, rows))
            if not means:
                means = [buffer.clone() for buffer in buffers]
            else:
                for mean, buffer in zip(_floats(means), _floats(buffers), strict=True):
                    mean += buffer
    except BaseException:
        _copy(before, buffers)
        run.network.zero_grad()
        raise
    if statistics := _floats(means):
        torch._foreach_mul_(statistics, 1 / len(parts))
        average_over_processes(statistics, run.world.size)
    _copy(means, buffers)
    return torch.stack(totals).sum(0)


@torch.no_grad()
def _copy(sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
    for source, target in zip(sources, targets, strict=True):
        target.copy_(source)


def _floats(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor for tensor in tensors if tensor.is_floating_point()]


def _backward(run: Run, rows: Rows) -> Tensor:
    """Add the gradients of a part, and return the sums of COLUMNS over its rows."""
    rows = hide(rows, hidden_columns(run.preset), draw_of(run.config.seed, run.step))
    reference_BA = None
    with autocast(run.device, run.dtype):
        prediction = run.model(rows)
        if run.reference is not None and "kept_weight" in rows:
            with torch.no_grad():
                reference_BA = run.reference(rows).logits
    legal_BA = legal_labels(rows["planes"], prediction.logits.shape[1])
    losses = row_losses(run.config, run.preset.value, prediction, rows, legal_BA, reference_BA)
    (losses["loss"].mean() / run.parts).backward()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        best_B = prediction.logits.masked_fill(~legal_BA, float("-inf")).argmax(1)
        known_B = rows["label"] >= 0
        figures = losses | {
            "top1": best_B == rows["label"],
            "legal_mass": torch.exp(-losses["illegal"]) * known_B,
            "known": known_B,
        }
        return torch.stack([figures[name].detach().float().sum() for name in COLUMNS])


@torch.no_grad()
def _average(run: Run) -> None:
    """Move the averaged weights and the norms' running statistics towards the raw ones."""
    mine = [*run.ema.parameters(), *run.ema.buffers()]
    raw = [*run.network.parameters(), *run.network.buffers()]
    torch._foreach_lerp_(_floats(mine), _floats(raw), 1 - ema_decay(run.config, run.step))
    for target, source in zip(mine, raw, strict=True):
        if not target.is_floating_point():
            target.copy_(source)


def check_finite(run: Run) -> None:
    """Raise DivergedError for weights that are not finite; a GPU's loss is checked less often."""
    if not bool(
        torch.stack([weight.isfinite().all() for weight in run.network.parameters()]).all()
    ):
        raise DivergedError(
            f"the weights are not finite at step {run.step}; train again with a lower learning rate"
        )
