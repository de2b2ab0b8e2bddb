"""Optimizers as rows of a table, and one object that runs the chosen ones.

Weights are of two kinds: those of convolutions and linear layers decay; norms, biases and
embeddings do not. A row says how each kind is stepped, and which state a rule keeps of a weight
between steps. That state is made at once and not at the first step, so that a run can be saved and
restored at any step.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from model.training.config import TrainConfig
from model.training.muon import Muon

Group = dict[str, Any]
Rule = Callable[[TrainConfig, list[Group]], torch.optim.Optimizer]
"""Makes the optimizer of some weights."""

BETAS = (0.9, 0.99)


def _adamw(config: TrainConfig, groups: list[Group]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=BETAS, fused=True)


def _sgd(config: TrainConfig, groups: list[Group]) -> torch.optim.Optimizer:
    nesterov = config.momentum > 0
    return torch.optim.SGD(
        groups, lr=config.learning_rate, momentum=config.momentum, nesterov=nesterov
    )


def _muon(config: TrainConfig, groups: list[Group]) -> torch.optim.Optimizer:
    return Muon(groups, lr=config.learning_rate, momentum=config.momentum, weight_decay=0.0)


OPTIMIZERS: Mapping[str, tuple[Rule, Rule]] = {
    "adamw": (_adamw, _adamw),
    "sgd": (_sgd, _sgd),
    "muon": (_muon, _adamw),
}
"""By the setting `optimizer`: the rule of convolutions and linear layers, and that of all other
weights."""


def _initial_state(optimizer: torch.optim.Optimizer, weight: Tensor) -> dict[str, Tensor]:
    """Return the state that an optimizer keeps of a weight, by torch's names."""
    if isinstance(optimizer, torch.optim.AdamW):
        step = torch.zeros((), device=weight.device)
        return {
            "step": step,
            "exp_avg": torch.zeros_like(weight),
            "exp_avg_sq": torch.zeros_like(weight),
        }
    return {"momentum_buffer": torch.zeros_like(weight)}


def flatten_to_matrix(weight: Tensor) -> Tensor:
    """Show a weight of two or more axes as a matrix `[outputs, inputs]` over the same memory.

    A channels-last convolution keeps its inputs in the order of that memory, which makes no
    difference to Muon.
    """
    if weight.ndim == 4 and not weight.is_contiguous():
        weight = weight.permute(0, 2, 3, 1)
    return weight.view(len(weight), -1)


def _decayed(network: nn.Module) -> set[str]:
    """Return the names of the weights of convolutions and linear layers."""
    layers = (nn.Conv2d, nn.Linear)
    return {
        f"{name}.weight" for name, layer in network.named_modules() if isinstance(layer, layers)
    }


class CombinedOptimizer:
    """The optimizers of a network, stepped as one."""

    def __init__(self, config: TrainConfig, network: nn.Module) -> None:
        decayed = _decayed(network)
        # by name: the weight, or the matrix that stands for it
        self.stepped: dict[str, Tensor] = {}
        self.matrices: list[tuple[Tensor, Tensor]] = []
        rules = OPTIMIZERS[config.optimizer]
        groups: tuple[Group, Group] = (
            {"params": [], "weight_decay": config.weight_decay},
            {"params": [], "weight_decay": 0.0},
        )
        for name, weight in network.named_parameters():
            other = name not in decayed
            self.stepped[name] = weight
            if rules[other] is _muon:
                self.stepped[name] = nn.Parameter(flatten_to_matrix(weight.data))
                self.matrices.append((weight, self.stepped[name]))
            groups[other]["params"].append(self.stepped[name])
        if rules[0] is rules[1]:
            self.optimizers = [rules[0](config, list(groups))]
        else:
            self.optimizers = [
                rule(config, [group]) for rule, group in zip(rules, groups, strict=True)
            ]
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                for weight in group["params"]:
                    optimizer.state[weight] = _initial_state(optimizer, weight)

    def set_rate(self, rate: float) -> None:
        """Set the learning rate of the next steps."""
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate

    def step(self) -> None:
        """Step every weight."""
        for weight, matrix in self.matrices:
            if weight.grad is not None:
                layout = (
                    torch.channels_last if not weight.is_contiguous() else torch.contiguous_format
                )
                matrix.grad = flatten_to_matrix(weight.grad.contiguous(memory_format=layout))
        for optimizer in self.optimizers:
            optimizer.step()
        for _, matrix in self.matrices:
            matrix.grad = None

    def tensors(self) -> dict[str, Tensor]:
        """Return the state between steps by `<weight>.<name>`; writing to these tensors restores
        it.
        """
        states: dict[Tensor, dict[str, Tensor]] = {}
        for optimizer in self.optimizers:
            states |= optimizer.state
        return {
            f"{name}.{moment}": tensor
            for name, weight in self.stepped.items()
            for moment, tensor in states[weight].items()
        }
