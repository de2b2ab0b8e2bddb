"""Optimizers as rows of a table, and one object that runs the chosen ones.

Weights are of two kinds: those of convolutions and linear layers decay; norms, biases, embeddings and tables of positions do
not. A row says how each kind is stepped, and which state a rule keeps of a weight between steps. That state is made at once
and not at the first step, so that a run can be saved and restored at any step.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from model.training.config import TrainConfig
from model.training.muon import Muon

State = Callable[[Tensor], dict[str, Tensor]]
"""Makes the state that a rule keeps of a weight, by the names that torch's optimizer gives it."""
Group = dict[str, Any]

BETAS = (0.9, 0.99)


def _adam_state(weight: Tensor) -> dict[str, Tensor]:
    return {
        "step": torch.zeros((), device=weight.device),
        "exp_avg": torch.zeros_like(weight),
        "exp_avg_sq": torch.zeros_like(weight),
    }


def _momentum_state(weight: Tensor) -> dict[str, Tensor]:
    return {"momentum_buffer": torch.zeros_like(weight)}


def _adamw(config: TrainConfig, groups: list[Group]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=BETAS, fused=True)


def _sgd(config: TrainConfig, groups: list[Group]) -> torch.optim.Optimizer:
    nesterov = config.momentum > 0
    return torch.optim.SGD(groups, lr=config.learning_rate, momentum=config.momentum, nesterov=nesterov)


def _muon(config: TrainConfig, groups: list[Group]) -> torch.optim.Optimizer:
    return Muon(groups, lr=config.learning_rate, momentum=config.momentum, weight_decay=0.0)


@dataclass(frozen=True, slots=True)
class Rule:
    """One way to step weights."""

    make: Callable[[TrainConfig, list[Group]], torch.optim.Optimizer]
    state: State


ADAMW, SGD, MUON = Rule(_adamw, _adam_state), Rule(_sgd, _momentum_state), Rule(_muon, _momentum_state)

OPTIMIZERS: Mapping[str, tuple[Rule, Rule]] = {"adamw": (ADAMW, ADAMW), "sgd": (SGD, SGD), "muon": (MUON, ADAMW)}
"""By the setting `optimizer`: the rule of convolutions and linear layers, and that of all other weights."""


def flatten_to_matrix(weight: Tensor) -> Tensor:
    """Show a weight of two or more axes as a matrix `[outputs, inputs]` over the same memory.

    A channels-last convolution keeps its inputs in the order of that memory, which makes no difference to Muon.
    """
    if weight.ndim == 4 and not weight.is_contiguous():
        weight = weight.permute(0, 2, 3, 1)
    return weight.view(len(weight), -1)


def _decayed(network: nn.Module) -> set[str]:
    """Return the names of the weights of convolutions and linear layers."""
    layers = (nn.Conv2d, nn.Linear)
    return {f"{name}.weight" for name, layer in network.named_modules() if isinstance(layer, layers)}


class CombinedOptimizer:
    """The optimizers of a network. A gradient scaler sees one optimizer over all weights."""

    def __init__(self, config: TrainConfig, network: nn.Module) -> None:
        named = list(network.named_parameters())
        decayed = _decayed(network)
        self.param_groups: list[Group] = [{"params": [weight for _, weight in named]}]
        self.stepped: dict[str, Tensor] = {}  # by name: the weight, or the matrix that stands for it
        self.matrices: list[tuple[Tensor, Tensor]] = []
        rules = OPTIMIZERS[config.optimizer]
        groups: tuple[Group, Group] = (
            {"params": [], "weight_decay": config.weight_decay},
            {"params": [], "weight_decay": 0.0},
        )
        for name, weight in named:
            other = name not in decayed
            self.stepped[name] = weight
            if rules[other] is MUON:
                self.stepped[name] = nn.Parameter(flatten_to_matrix(weight.data))
                self.matrices.append((weight, self.stepped[name]))
            groups[other]["params"].append(self.stepped[name])
        if rules[0] is rules[1]:
            self.optimizers = [(rules[0], rules[0].make(config, list(groups)))]
        else:
            self.optimizers = [(rule, rule.make(config, [group])) for rule, group in zip(rules, groups, strict=True)]
        for rule, optimizer in self.optimizers:
            for group in optimizer.param_groups:
                for weight in group["params"]:
                    optimizer.state[weight] = rule.state(weight)

    def set_rate(self, rate: float) -> None:
        """Set the learning rate of the next steps."""
        for _, optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate

    def zero_grad(self) -> None:
        """Clear the gradients."""
        for weight in self.param_groups[0]["params"]:
            weight.grad = None

    def step(self) -> None:
        """Step every weight."""
        for weight, matrix in self.matrices:
            if weight.grad is not None:
                layout = torch.channels_last if not weight.is_contiguous() else torch.contiguous_format
                matrix.grad = flatten_to_matrix(weight.grad.contiguous(memory_format=layout))
        for _, optimizer in self.optimizers:
            optimizer.step()
        for _, matrix in self.matrices:
            matrix.grad = None

    def torch_optimizer(self) -> torch.optim.Optimizer:
        """Return this object typed for torch.amp.GradScaler, which uses only `param_groups` and `step`."""
        return cast("torch.optim.Optimizer", self)

    def tensors(self) -> dict[str, Tensor]:
        """Return the state between steps by `<weight>.<name>`; writing to these tensors restores it."""
        states: dict[Tensor, dict[str, Tensor]] = {}
        for _, optimizer in self.optimizers:
            states |= optimizer.state
        return {
            f"{name}.{moment}": tensor
            for name, weight in self.stepped.items()
            for moment, tensor in states[weight].items()
        }
