"""The table of optimizers, a wrapper that combines two of them, and Muon.

Weights of convolutions and linear layers decay; norms, biases and embeddings do not. Optimizer
state is allocated at the start, so that a run can be saved and restored at any step.

Muon's five iterations are polynomials of the Gram matrix `G = X X^T`. torch's optimizer multiplies
by X in each iteration. Here they run on G, batched over all matrices with the same size of G, and X
is used only twice, which halves the time for a small network on a CPU. Products are in float32:
TF32 would cause errors of 10 % in the steps of ill-conditioned matrices.

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

ParameterGroup = dict[str, Any]
OptimizerFactory = Callable[[TrainConfig, list[ParameterGroup]], torch.optim.Optimizer]
"""Function that creates an optimizer for groups of weights."""

ADAMW_BETAS = (0.9, 0.99)


def _adamw(config: TrainConfig, groups: list[ParameterGroup]) -> torch.optim.Optimizer:
    is_cuda = any(weight.is_cuda for group in groups for weight in group["params"])
    optimizer = torch.optim.AdamW(
        groups, lr=config.learning_rate, betas=ADAMW_BETAS, fused=True, capturable=is_cuda
    )
    # silence the warning about steps that are taken before a capture
    optimizer._warned_capturable_if_run_uncaptured = True
    return optimizer


def _sgd(config: TrainConfig, groups: list[ParameterGroup]) -> torch.optim.Optimizer:
    momentum = config.momentum
    return torch.optim.SGD(
        groups, config.learning_rate, momentum, nesterov=momentum > 0, fused=True
    )


def _muon(config: TrainConfig, groups: list[ParameterGroup]) -> torch.optim.Optimizer:
    return Muon(groups, lr=config.learning_rate, momentum=config.momentum, weight_decay=0.0)


OPTIMIZERS: Mapping[str, tuple[OptimizerFactory, OptimizerFactory]] = {
    "adamw": (_adamw, _adamw),
    "sgd": (_sgd, _sgd),
    "muon": (_muon, _adamw),
}
"""For each name, the optimizer of convolutions and linear layers, and that of other weights."""


def _initial_state(optimizer: torch.optim.Optimizer, weight: Tensor) -> dict[str, Tensor]:
    if not isinstance(optimizer, torch.optim.AdamW):
        return {"momentum_buffer": torch.zeros_like(weight)}
    moments = {name: torch.zeros_like(weight) for name in ("exp_avg", "exp_avg_sq")}
    return {"step": torch.zeros((), device=weight.device), **moments}


def flatten_to_matrix(weight: Tensor) -> Tensor:
    """View a weight as a matrix `[outputs, inputs]`, without copying.

    The inputs of a channels-last convolution stay in memory order, which does not affect Muon.
    """
    if weight.ndim == 4 and not weight.is_contiguous():
        weight = weight.permute(0, 2, 3, 1)
    return weight.view(len(weight), -1)


class CombinedOptimizer:
    """The optimizers of a network, stepped as one."""

    def __init__(self, config: TrainConfig, network: nn.Module) -> None:
        layers = dict(network.named_modules())
        self.weights: dict[str, Tensor] = {}
        """Each weight by its name; for Muon, its view as a matrix."""
        self.matrices: list[tuple[Tensor, Tensor]] = []
        """The weights that Muon steps, and their views as matrices."""
        create_decaying, create_other = OPTIMIZERS[config.optimizer]
        decaying: ParameterGroup = {"params": [], "weight_decay": config.weight_decay}
        other: ParameterGroup = {"params": [], "weight_decay": 0.0}
        for name, weight in network.named_parameters():
            layer, _, parameter = name.rpartition(".")
            decays = parameter == "weight" and isinstance(layers[layer], (nn.Conv2d, nn.Linear))
            self.weights[name] = weight
            if decays and create_decaying is _muon:
                self.weights[name] = nn.Parameter(flatten_to_matrix(weight.data))
                self.matrices.append((weight, self.weights[name]))
            (decaying if decays else other)["params"].append(self.weights[name])
        if create_decaying is create_other:
            self.optimizers = [create_decaying(config, [decaying, other])]
        else:
            self.optimizers = [create_decaying(config, [decaying]), create_other(config, [other])]
        # a tensor, so that a captured step reads the current rate
        self.rate = torch.tensor(config.learning_rate, device=next(network.parameters()).device)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.rate
                for weight in group["params"]:
                    optimizer.state[weight] = _initial_state(optimizer, weight)

    def set_learning_rate(self, rate: float) -> None:
        """Set the learning rate of the next steps."""
        self.rate.fill_(rate)

    def step(self) -> None:
        """Update every weight that has a gradient."""
        for weight, matrix in self.matrices:
            if weight.grad is not None:
                is_contiguous = weight.is_contiguous()
                layout = torch.contiguous_format if is_contiguous else torch.channels_last
                matrix.grad = flatten_to_matrix(weight.grad.contiguous(memory_format=layout))
        for optimizer in self.optimizers:
            optimizer.step()
        for _, matrix in self.matrices:
            matrix.grad = None

    def state_tensors(self) -> dict[str, Tensor]:
        """Return the state tensors by `<weight>.<name>`; copy into them to restore a save."""
        states: dict[Tensor, dict[str, Tensor]] = {}
        for optimizer in self.optimizers:
            states |= optimizer.state
        return {
            f"{name}.{moment}": tensor
            for name, weight in self.weights.items()
            for moment, tensor in states[weight].items()
        }


MUON_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of the odd polynomial of degree five that brings singular values near 1."""
MUON_ITERATIONS = 5
MIN_NORM = 1e-7
"""Lower bound of the norm that a matrix is divided by, as in torch."""
ADAMW_RMS = 0.2
"""Root mean square of AdamW's step at a learning rate of 1, as measured by Liu et al."""


class Muon(torch.optim.Optimizer):
    """Muon with Nesterov momentum. The caller creates each `momentum_buffer`."""

    def __init__(
        self, groups: list[dict[str, Any]], *, lr: float, momentum: float, weight_decay: float
    ) -> None:
        super().__init__(groups, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every matrix that has a gradient. Rounding depends on the number of threads."""
        for group in self.param_groups:
            by_size: dict[int, list[Tensor]] = defaultdict(list)
            for weight in group["params"]:
                if weight.grad is not None:
                    by_size[min(weight.shape)].append(weight)
            for weights in by_size.values():
                self._step(weights, group["lr"], group["momentum"], group["weight_decay"])

    def _step(
        self, weights: list[Tensor], lr: float | Tensor, momentum: float, weight_decay: float
    ) -> None:
        """Update matrices whose smaller sides are equal."""
        lr = torch.as_tensor(lr, device=weights[0].device)
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        buffers = [self.state[weight]["momentum_buffer"] for weight in weights]
        torch._foreach_lerp_(buffers, gradients, 1 - momentum)
        steps = orthogonalize(list(torch._foreach_lerp(gradients, buffers, momentum)))
        torch._foreach_mul_(weights, 1 - lr * weight_decay)
        for weight, step_RC in zip(weights, steps, strict=True):
            weight.addcmul_(step_RC, lr, value=-ADAMW_RMS * max(weight.shape) ** 0.5)


def orthogonalize(matrices: list[Tensor]) -> list[Tensor]:
    """Return matrices `[R, C]` with singular values near 1; their smaller sides must be equal."""
    wide = [x_RC.mT if x_RC.shape[0] > x_RC.shape[1] else x_RC for x_RC in matrices]
    gram_NSS = torch.stack([x_SC @ x_SC.mT for x_SC in wide])
    squared_N11 = gram_NSS.diagonal(dim1=1, dim2=2).sum(1)[:, None, None].clamp(min=MIN_NORM**2)
    gram_NSS = gram_NSS / squared_N11
    factor_NSS = _compute_factors(gram_NSS)
    product_NSS = factor_NSS / squared_N11.sqrt()
    for _ in range(MUON_ITERATIONS - 1):
        # the matrices are polynomials of one Gram matrix, so the order of products does not matter
        gram_NSS = factor_NSS @ (factor_NSS @ gram_NSS)
        factor_NSS = _compute_factors(gram_NSS)
        product_NSS = factor_NSS @ product_NSS
    steps = [product_SS @ x_SC for product_SS, x_SC in zip(product_NSS, wide, strict=True)]
    return [y.mT if y.shape != x.shape else y for y, x in zip(steps, matrices, strict=True)]


def _compute_factors(gram_NSS: Tensor) -> Tensor:
    """Return the matrices that an iteration multiplies by, given the current Gram matrices."""
    a, b, c = MUON_COEFFICIENTS
    identity_SS = torch.eye(gram_NSS.shape[1], device=gram_NSS.device)
    return torch.baddbmm(a * identity_SS + b * gram_NSS, gram_NSS, gram_NSS, alpha=c)
