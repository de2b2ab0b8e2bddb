"""Optimizers as rows of a table, and one object that runs the chosen ones; Muon.

Weights are of two kinds: those of convolutions and linear layers decay; norms, biases and
embeddings do not. A row says how each kind is stepped, and which state a rule keeps of a weight
between steps. That state is made at once and not at the first step, so that a run can be saved and
restored at any step.

Muon iterates on small Gram matrices, many at a time. torch's optimizer steps one matrix after the
other, and multiplies by the whole matrix X in each of five iterations. But these iterations are
polynomials of the Gram matrix `G = X X^T`. Here they run on G, for all matrices with a G of the
same size at once, and X is multiplied only twice. That takes half of the time for a small network
of wide matrices on a processor. Products are in float32; TF32, which this program leaves off, would
make the steps of ill-conditioned matrices wrong by a tenth.

Sources: kellerjordan.github.io/posts/muon; steps as long as AdamW's: Liu et al. 2025,
arXiv:2502.16982.

Axes: N matrices, R rows, C columns, S the smaller of the two.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from model.training.config import TrainConfig

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


COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of the odd polynomial of degree five that brings singular values near 1."""
ITERATIONS = 5
SMALLEST = 1e-7
"""Smallest norm in a division, as in torch."""
RMS = 0.2
"""Root mean square of AdamW's step for a learning rate of 1, as Liu et al. measured."""


class Muon(torch.optim.Optimizer):
    """Muon with Nesterov momentum; the caller must put a `momentum_buffer` (torch's name) into the
    state of each matrix.
    """

    def __init__(
        self, groups: list[dict[str, Any]], *, lr: float, momentum: float, weight_decay: float
    ) -> None:
        super().__init__(groups, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Step every matrix that has a gradient. Rounding depends on the number of threads."""
        for group in self.param_groups:
            by_size: dict[int, list[Tensor]] = defaultdict(list)
            for weight in group["params"]:
                if weight.grad is not None:
                    by_size[min(weight.shape)].append(weight)
            for same in by_size.values():
                self._step(
                    same, **{name: group[name] for name in ("lr", "momentum", "weight_decay")}
                )

    def _step(self, weights: list[Tensor], lr: float, momentum: float, weight_decay: float) -> None:
        """Step matrices whose smaller side is the same."""
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        buffers = [self.state[weight]["momentum_buffer"] for weight in weights]
        torch._foreach_lerp_(buffers, gradients, 1 - momentum)
        steps = orthogonalize(list(torch._foreach_lerp(gradients, buffers, momentum)))
        torch._foreach_mul_(weights, 1 - lr * weight_decay)
        for weight, step_RC in zip(weights, steps, strict=True):
            weight.add_(step_RC, alpha=-lr * RMS * max(weight.shape) ** 0.5)


def orthogonalize(matrices: list[Tensor]) -> list[Tensor]:
    """Return matrices with the same singular vectors, and singular values of 0.68 to 1.14 where
    they were not tiny.

    The smaller sides of all, float32 `[R, C]`, are equal.
    """
    wide = [x_RC.mT if x_RC.shape[0] > x_RC.shape[1] else x_RC for x_RC in matrices]
    gram_NSS = torch.stack([x_SC @ x_SC.mT for x_SC in wide])
    squared_N11 = gram_NSS.diagonal(dim1=1, dim2=2).sum(1)[:, None, None].clamp(min=SMALLEST**2)
    gram_NSS = gram_NSS / squared_N11
    factor_NSS = _factor(gram_NSS)
    product_NSS = factor_NSS / squared_N11.sqrt()
    for _ in range(ITERATIONS - 1):
        # all are polynomials of the first, so they commute
        gram_NSS = factor_NSS @ (factor_NSS @ gram_NSS)
        factor_NSS = _factor(gram_NSS)
        product_NSS = factor_NSS @ product_NSS
    steps = [product_SS @ x_SC for product_SS, x_SC in zip(product_NSS, wide, strict=True)]
    return [y.mT if y.shape != x.shape else y for y, x in zip(steps, matrices, strict=True)]


def _factor(gram_NSS: Tensor) -> Tensor:
    """Return the factor by which an iteration multiplies the matrices of these Gram matrices."""
    a, b, c = COEFFICIENTS
    one_SS = torch.eye(gram_NSS.shape[1], device=gram_NSS.device)
    return torch.baddbmm(a * one_SS + b * gram_NSS, gram_NSS, gram_NSS, alpha=c)
