"""The state of one training run: raw and averaged weights, optimizer, counters; one step of it; saved and restored.

Axes: B batch, A label.
"""

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from engine.errors import UserError
from engine.views import View, view
from model.checkpoint import fit
from model.config import TrainConfig, ema_decay, learning_rate
from model.inputs import Batch, Inputs, inputs
from model.losses import VALUE_FORMS, policy_terms
from model.metrics import Totals, row_figures
from model.network import Network, build
from model.precision import autocast, device_for, dtype_for
from model.presets import Preset

MOMENTS = ("exp_avg", "exp_avg_sq", "step")
"""What AdamW keeps for each weight."""

COLUMNS = ("loss", "policy_loss", "value_loss", "top1", "legal_mass")
"""What is summed over the rows of each step."""


class DivergedError(UserError):
    """The loss or its gradient became infinite or not a number."""


@dataclass(slots=True)
class Run:
    """A run in progress."""

    config: TrainConfig
    preset: Preset
    view: View
    device: torch.device
    dtype: torch.dtype
    network: Network
    ema: Network
    optimizer: torch.optim.AdamW
    step: int = 0
    positions: int = 0
    seconds: float = 0.0


def begin(config: TrainConfig, preset: Preset) -> Run:
    """Make a run at step 0."""
    device = device_for(config.device)
    network = build(preset, config.seed).to(device)
    ema = copy.deepcopy(network).eval().requires_grad_(False)
    return Run(
        config=config,
        preset=preset,
        view=view(preset.view),
        device=device,
        dtype=dtype_for(config.amp, device),
        network=network.train(),
        ema=ema,
        optimizer=_optimizer(config, network),
    )


def _optimizer(config: TrainConfig, network: nn.Module) -> torch.optim.AdamW:
    """Decay matrices only: norms and biases are no measure of complexity."""
    matrices = [parameter for parameter in network.parameters() if parameter.ndim >= 2]
    others = [parameter for parameter in network.parameters() if parameter.ndim < 2]
    groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=config.learning_rate, betas=(0.9, 0.99), fused=True)
    for parameter in network.parameters():
        optimizer.state[parameter] = {
            "step": torch.zeros((), device=parameter.device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return optimizer


def take_step(run: Run, batch: Batch, fraction: float) -> Tensor:
    """Do one optimizer step and give the sums of COLUMNS over its rows; DivergedError if it would not be finite."""
    config = run.config
    data = inputs(batch, run.view, run.device, run.dtype)
    with autocast(run.device, run.dtype):
        logits_BA, value_BV = run.network(data.planes)
    policy_B, illegal_B = policy_terms(logits_BA, data.legal, data.labels)
    value_B = VALUE_FORMS[run.preset.value].loss(value_BV, data.results)
    loss_B = policy_B + config.legality_weight * illegal_B + config.value_weight * value_B
    loss = loss_B.mean()
    run.optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    norm = nn.utils.clip_grad_norm_(run.network.parameters(), config.clip)
    if run.device.type == "cpu" and not math.isfinite(float(loss.detach()) + float(norm)):  # a GPU would stall
        raise DivergedError(_why_not_finite(data, run.step))
    rate = learning_rate(config, fraction)
    for group in run.optimizer.param_groups:
        group["lr"] = rate
    run.optimizer.step()
    run.step += 1
    run.positions += len(data.labels)
    _average(run)
    with torch.no_grad():
        best_B = logits_BA.detach().masked_fill(~data.legal, float("-inf")).argmax(1)
        columns = (loss_B, policy_B, value_B, (best_B == data.labels).float(), torch.exp(-illegal_B))
        return torch.stack([column.detach().sum() for column in columns])


def _why_not_finite(data: Inputs, step: int) -> str:
    illegal = int((~data.legal.gather(1, data.labels[:, None])).sum())
    if illegal:
        rows = len(data.labels)
        return f"step {step}: {illegal} of {rows} labels are no legal move of their position; ingest the data again"
    return f"the loss is not finite at step {step}; train again with a lower learning rate"


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
def measure(run: Run, batches: Any, limit: int) -> dict[str, float]:
    """Measure the averaged weights on the first `limit` positions of an iterator of batches."""
    totals = Totals()
    form = VALUE_FORMS[run.preset.value]
    for batch in batches:
        if totals.count >= limit:
            break
        data = inputs(
            {name: column[: limit - totals.count] for name, column in batch.items()}, run.view, run.device, run.dtype
        )
        with autocast(run.device, run.dtype):
            logits_BA, value_BV = run.ema(data.planes)
        figures = row_figures(logits_BA, form.wdl(value_BV), data.legal, data.labels, data.results)
        totals.add({name: column.cpu() for name, column in figures.items()})
    return totals.summary()


def tensors_of(run: Run, *, resumable: bool) -> dict[str, dict[str, Tensor]]:
    """Gather what a checkpoint holds; `resumable` adds the raw weights and the optimizer's moments."""
    groups = {"weights": dict(run.ema.state_dict())}
    if resumable:
        groups["training"] = _training_tensors(run)
    return groups


def _training_tensors(run: Run) -> dict[str, Tensor]:
    tensors = {f"network.{name}": tensor for name, tensor in run.network.state_dict().items()}
    for name, parameter in run.network.named_parameters():
        tensors |= {f"optimizer.{name}.{moment}": run.optimizer.state[parameter][moment] for moment in MOMENTS}
    return tensors


def restore(run: Run, card: dict[str, Any], tensors: dict[str, dict[str, Tensor]], where: str) -> None:
    """Put a fresh run back where a save left it."""
    fit(run.ema.state_dict(), tensors["weights"], where)
    fit(_training_tensors(run), tensors["training"], where)
    run.step, run.positions, run.seconds = card["step"], card["positions"], float(card["seconds"])
