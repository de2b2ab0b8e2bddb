"""Optimizers: each learns, decays only matrices, and resumes exactly."""

from dataclasses import replace
from typing import get_args

import pytest
import torch
from torch import nn

from model.network.network import build
from model.network.presets import preset
from model.training.config import OptimizerName, TrainConfig
from model.training.optimizers import (
    CombinedOptimizer,
    Muon,
    orthogonalize,
)

CONFIG = TrainConfig(steps=10, learning_rate=0.01, weight_decay=0.1)
LAYERS = (nn.Conv2d, nn.Linear)
NAMES = [name for name in get_args(OptimizerName) if name != "auto"]


def network() -> nn.Module:
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5)
    )
    module[0].weight.data = module[0].weight.data.contiguous(memory_format=torch.channels_last)
    return module


def descend(module: nn.Module, optimiser: CombinedOptimizer, steps: int, first: int = 0) -> float:
    """Learn a fixed batch and give the last loss."""
    x = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    loss = torch.zeros(())
    for step in range(first, first + steps):
        module.zero_grad()
        optimiser.set_learning_rate(0.01 / (1 + step / 10))
        loss = nn.functional.cross_entropy(module(x), torch.tensor([0, 1, 2, 3, 4, 0]))
        loss.backward()
        optimiser.step()
    return float(loss.detach())


@pytest.mark.parametrize("name", NAMES)
def test_each_optimizer_learns_and_resumes_exactly(
    name: OptimizerName,
) -> None:
    config = replace(CONFIG, optimizer=name)
    whole = network()
    optimiser = CombinedOptimizer(config, whole)
    first = descend(whole, optimiser, 1)
    descend(whole, optimiser, 6, first=1)
    half = network()
    before = CombinedOptimizer(config, half)
    descend(half, before, 4)
    again = network()
    again.load_state_dict(half.state_dict())
    after = CombinedOptimizer(config, again)
    saved = {key: tensor.clone() for key, tensor in before.state_tensors().items()}
    assert saved.keys() == after.state_tensors().keys()
    for key, tensor in after.state_tensors().items():
        tensor.copy_(saved[key])
    descend(again, after, 3, first=4)
    for key, tensor in whole.state_dict().items():
        assert torch.equal(again.state_dict()[key], tensor), key
    assert descend(whole, optimiser, 54, first=7) < first / 4


@pytest.mark.parametrize("name", NAMES)
def test_only_matrices_decay(name: OptimizerName) -> None:
    module = build(replace(preset("fianchetto-human"), width=8, blocks=1), 0)
    layers = {key: it for key, it in module.named_modules() if isinstance(it, LAYERS)}
    optimiser = CombinedOptimizer(replace(CONFIG, optimizer=name), module)
    before = {key: weight.detach().clone() for key, weight in module.named_parameters()}
    optimiser.set_learning_rate(0.01)
    for weight in module.parameters():
        weight.grad = torch.zeros_like(weight)
    optimiser.step()
    for key, weight in module.named_parameters():
        shrunk = key.removesuffix(".weight") in layers  # embeddings have two axes, and are not
        if before[key].any():
            assert torch.equal(weight, before[key]) != shrunk, key
        if shrunk and name != "sgd":  # whose decay goes through its momentum
            assert torch.allclose(weight, before[key] * (1 - 0.01 * 0.1), rtol=1e-5), key


def test_muon_equals_torchs() -> None:
    """Torch iterates on whole matrices, in bf16: its rounding is 1 % of the steps."""
    chance = torch.Generator().manual_seed(3)
    shapes = [(16, 40), (40, 16), (16, 40), (1, 7), (12, 12), (16, 40)]
    ours, theirs = ([nn.Parameter(torch.ones(shape)) for shape in shapes] for _ in range(2))
    made = Muon([{"params": ours}], lr=0.1, momentum=0.9, weight_decay=0.05)
    for weight in ours:
        made.state[weight] = {"momentum_buffer": torch.zeros_like(weight)}
    settings = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.05, "adjust_lr_fn": "match_rms_adamw"}
    reference = torch.optim.Muon(theirs, **settings)
    for _ in range(4):
        for one, other in zip(ours, theirs, strict=True):
            one.grad = other.grad = torch.randn(one.shape, generator=chance)
        ours[2].grad = theirs[2].grad = None  # what learned nothing stays as it is
        made.step()
        reference.step()
    for one, other in zip(ours, theirs, strict=True):
        moved = (other.detach() - 1).norm()
        assert float((one.detach() - other.detach()).norm()) <= 0.02 * float(moved)
    assert torch.equal(ours[2], torch.ones(16, 40))


def test_nearly_singular_matrices_equal_double_precision() -> None:
    chance = torch.Generator().manual_seed(4)
    left, right = (
        torch.linalg.qr(torch.randn(n, 24, generator=chance, dtype=torch.float64))[0]
        for n in (24, 60)
    )
    spread = left @ torch.diag(10.0 ** torch.linspace(0, -6, 24, dtype=torch.float64)) @ right.mT
    deficient = spread.clone()
    deficient[5:] = deficient[:1]
    given = [spread, deficient, 1e-5 * spread, torch.zeros_like(spread)]
    for x, y in zip(given, orthogonalize([x.float() for x in given]), strict=True):
        expected = x / x.norm().clamp(min=1e-7)
        for _ in range(5):
            gram = expected @ expected.mT
            expected = 3.4445 * expected + (-4.7750 * gram + 2.0315 * gram @ gram) @ expected
        assert float((y.double() - expected).norm()) <= 2e-3 * float(expected.norm())
