"""The state of one training run: raw and averaged weights, optimizer, counters; one step of it; saved and restored.

A step has no state of chance: the order of batches, and which rows are shown without ratings, follow from seed and step.
Axes: B batch, A label.
"""

import copy
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from engine.errors import UserError
from model.checkpoint import fit
from model.data.inputs import Batch, DeviceBatch
from model.data.outputs import flat
from model.metrics import Totals, row_figures
from model.network.conditioning import draw_of
from model.network.network import Network, build
from model.network.preset import Preset
from model.training.config import TrainConfig, with_optimizer
from model.training.distributed import World, all_reduce
from model.training.microbatches import Replicas, parts_per_process, split
from model.training.objective.distillation import ReferencePolicy, divergence
from model.training.objective.losses import VALUE_FORMS, row_losses
from model.training.objective.targets import inputs_and_targets, step_columns
from model.training.optimizers import CombinedOptimizer
from model.training.precision import autocast, check_compiler, device_for, dtype_for
from model.training.schedules import ema_decay, learning_rate, reference_kl_weight
from model.training.stopping import NEVER_STOP, StopCheck

COLUMNS = ("loss", "policy_loss", "value_loss", "top1", "legal_mass")
"""What is summed over the rows of each step; with a reference policy `seed_kl` too."""

SMALLEST_SCALE = 2.0**-14
"""A loss that overflows fp16 even when scaled by this is not finite by itself."""


class DivergedError(UserError):
    """The loss or its gradient became infinite or not a number, or the loss rose far above what it had been."""


@dataclass(slots=True)
class Run:
    """A run in progress."""

    config: TrainConfig
    preset: Preset
    device: torch.device
    dtype: torch.dtype
    world: World
    network: Network
    replicas: Replicas
    """The network as it is trained: once for each part of a batch."""
    ema: Network
    optimizer: CombinedOptimizer
    scaler: torch.amp.GradScaler
    reference: ReferencePolicy | None = None
    """The policy that the network's is kept near, where the configuration says so."""
    best: dict[str, Tensor] = field(default_factory=dict)
    """The averaged weights that were measured best, kept where `patience` may go back to them."""
    step: int = 0
    positions: int = 0
    seconds: float = 0.0

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the names of what is summed over the rows of each step."""
        return (*COLUMNS, "seed_kl") if self.reference is not None else COLUMNS


def begin(
    config: TrainConfig,
    preset: Preset,
    world: World | None = None,
    reference: ReferencePolicy | None = None,
    parts: int = 0,
) -> Run:
    """Make a run at step 0, its steps in `parts` of all processes, or where that is 0 as configured."""
    config = with_optimizer(config, preset.name)
    world = world or World()
    device = device_for(config.device, world.local if world.size > 1 else None)
    network = build(preset, config.seed).to(device).train()
    if config.frozen_norms:
        for module in network.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()
    ema = copy.deepcopy(network).eval().requires_grad_(False)
    dtype = dtype_for(config.amp, device)
    return Run(
        config=config,
        preset=preset,
        device=device,
        dtype=dtype,
        world=world,
        network=network,
        replicas=_replicas(config, network, device, world, parts or config.parts),
        ema=ema,
        optimizer=CombinedOptimizer(config, network),
        scaler=torch.amp.GradScaler(device.type, enabled=dtype == torch.float16),
        reference=None if reference is None else reference.on(device, dtype),
        best={name: tensor.clone() for name, tensor in ema.state_dict().items()} if config.patience else {},
    )


def _replicas(config: TrainConfig, network: Network, device: torch.device, world: World, parts: int) -> Replicas:
    replicas = Replicas(network, parts_per_process(parts, config.batch_size, device, world), world)
    if config.compile:
        check_compiler()
        for replica in replicas.copies:
            replica.compile()
    return replicas


def prepare(run: Run, batch: Batch) -> list[DeviceBatch]:
    """Return the parts of this process's share of a batch, all that a step needs of them on the device of the run.

    Nothing of the run's state is read, so that it may be done on another thread while a step runs.
    """
    return [step_columns(run.config, run.preset, part, run.device) for part in split(batch, run.replicas.parts)]


def take_step(
    run: Run,
    parts: Sequence[DeviceBatch],
    fraction: float,
    pool: ThreadPoolExecutor | None = None,
    stop_check: StopCheck = NEVER_STOP,
) -> Tensor:
    """Do one optimizer step and give the sums of `run.columns` over its rows; DivergedError if it would not be finite.

    `parts`, by `prepare`, are worked on by the threads of `pool` (model.training.microbatches), or in turn. Raises
    WorkInterrupted when `stop_check` says so: the run is then as it was before the step.
    """
    config, world = run.config, run.world
    run.optimizer.zero_grad()
    kl_weight = reference_kl_weight(config, fraction)
    sums = run.replicas.work(lambda replica, part: backward(run, replica, part, kl_weight), parts, pool, stop_check)
    run.scaler.unscale_(run.optimizer.as_torch())
    norm = nn.utils.clip_grad_norm_(run.network.parameters(), config.clip)
    totals = all_reduce(torch.stack(sums).sum(0))
    if run.device.type == "cpu" and not _finite(run, totals, norm):  # a GPU would stall
        raise DivergedError(_why_not_finite(run, parts))
    run.optimizer.set_rate(learning_rate(config, fraction))
    step = partial(run.scaler.step, run.optimizer.as_torch())
    if pool is None:
        step()
    else:
        pool.submit(
            step
        ).result()  # there as many threads share an operation as share those of a part, whatever they are in all
    run.scaler.update()
    run.step += 1
    run.positions += sum(len(part["planes"]) for part in parts) * world.size
    _average(run)
    return totals


def backward(run: Run, replica: Callable[..., Any], part: DeviceBatch, kl_weight: float) -> Tensor:
    """Add a part's gradients to its replica's, and give its rows' sums of `run.columns`."""
    draw = draw_of(run.config.seed, run.step)
    read, targets = inputs_and_targets(run.preset, part, run.dtype, draw=draw)
    with autocast(run.device, run.dtype):
        outputs = replica(read)
    losses = row_losses(run.config, VALUE_FORMS[run.preset.value], outputs, targets)
    if run.reference is not None:
        losses["seed_kl"] = divergence(run.reference.logits(read), flat(outputs[0]), targets.legal)
        losses["loss"] = losses["loss"] + kl_weight * losses["seed_kl"]
    loss_B = losses["loss"] if targets.weights is None else losses["loss"] * targets.weights
    loss = loss_B.mean() / (run.replicas.parts * run.world.size)
    run.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        best_B = flat(outputs[0]).masked_fill(~targets.legal, float("-inf")).argmax(1)
        figures = losses | {
            "loss": loss_B,
            "top1": (best_B == targets.labels).float(),
            "legal_mass": torch.exp(-losses["illegal"]),
        }
        return torch.stack([figures[name].detach().sum() for name in run.columns])


def _finite(run: Run, totals: Tensor, norm: Tensor) -> bool:
    """Return whether the step's loss and gradient are finite; a scaled gradient may overflow, and the step is left out."""
    if run.scaler.is_enabled():
        return math.isfinite(float(totals[0])) and run.scaler.get_scale() >= SMALLEST_SCALE
    return math.isfinite(float(totals[0]) + float(norm))


def _why_not_finite(run: Run, parts: Sequence[DeviceBatch]) -> str:
    illegal = rows = 0
    for part in parts:
        _, targets = inputs_and_targets(run.preset, part, run.dtype, draw=None)
        illegal += int((~targets.legal.gather(1, targets.labels[:, None])).sum())
        rows += len(targets.labels)
    if illegal:
        return f"step {run.step}: {illegal} of {rows} labels are no legal move of their position; ingest the data again"
    return f"the loss is not finite at step {run.step}; train again with a lower learning rate"


@torch.no_grad()
def _average(run: Run) -> None:
    """Move the averaged weights and the norms' running statistics towards the raw ones."""
    mine = [*run.ema.parameters(), *run.ema.buffers()]
    raw = [*run.network.parameters(), *run.network.buffers()]
    weight = 1 - ema_decay(run.config, run.step)
    torch._foreach_lerp_(
        [tensor for tensor in mine if tensor.is_floating_point()],
        [tensor for tensor in raw if tensor.is_floating_point()],
        weight,
    )
    for target, source in zip(mine, raw, strict=True):
        if not target.is_floating_point():
            target.copy_(source)


def check_finite(run: Run) -> None:
    """Refuse to go on, or to save, with weights that are not finite; for devices that are not checked at each step."""
    if not bool(torch.stack([parameter.isfinite().all() for parameter in run.network.parameters()]).all()):
        raise DivergedError(f"the weights are not finite at step {run.step}; train again with a lower learning rate")


@torch.inference_mode()
def measure(run: Run, batches: Any, limit: int, stop_check: StopCheck = NEVER_STOP) -> dict[str, float]:
    """Return the figures of the averaged weights on the first `limit` positions; WorkInterrupted as in `take_step`."""
    totals = Totals()
    form = VALUE_FORMS[run.preset.value]
    for batch in batches:
        if totals.count >= limit:
            break
        stop_check.check()
        rows = {name: column[: limit - totals.count] for name, column in batch.items()}
        columns = step_columns(run.config, run.preset, rows, run.device)
        read, targets = inputs_and_targets(run.preset, columns, run.dtype, draw=None)
        with autocast(run.device, run.dtype):
            policy, value_BV, *_ = run.ema(read)
        figures = row_figures(
            flat(policy), form.wdl(value_BV), targets.legal, targets.labels, targets.results, targets.ended
        )
        totals.add({name: column.cpu() for name, column in figures.items()})
    return totals.summary()


@torch.no_grad()
def keep_best(run: Run) -> None:
    """Remember the averaged weights as the best so far."""
    for name, tensor in run.ema.state_dict().items():
        run.best[name].copy_(tensor)


def tensors_of(run: Run, *, resumable: bool) -> dict[str, dict[str, Tensor]]:
    """Return what a checkpoint holds; `resumable` adds the raw weights and the optimizer's state."""
    groups = {"weights": dict(run.ema.state_dict())}
    if resumable:
        groups["training"] = _training_tensors(run)
    return groups


def _training_tensors(run: Run) -> dict[str, Tensor]:
    tensors = {f"network.{name}": tensor for name, tensor in run.network.state_dict().items()}
    tensors |= {f"optimizer.{name}": tensor for name, tensor in run.optimizer.tensors().items()}
    tensors |= {f"best.{name}": tensor for name, tensor in run.best.items()}
    if run.scaler.is_enabled():
        state = run.scaler.state_dict()
        tensors["scaler"] = torch.tensor([state["scale"], state["_growth_tracker"]], dtype=torch.float64)
    return tensors


def restore(run: Run, card: dict[str, Any], tensors: dict[str, dict[str, Tensor]], where: str) -> None:
    """Put a fresh run back where a save left it."""
    fit(run.ema.state_dict(), tensors["weights"], where)
    training = _training_tensors(run)
    fit(training, tensors["training"], where)
    if run.scaler.is_enabled():
        scale, growth = training["scaler"].tolist()
        run.scaler.load_state_dict(run.scaler.state_dict() | {"scale": scale, "_growth_tracker": int(growth)})
    run.step, run.positions, run.seconds = card["step"], card["positions"], float(card["seconds"])
