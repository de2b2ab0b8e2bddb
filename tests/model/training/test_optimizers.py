"""Optimizers: each learns, resumes exactly, and decays only weights of layers."""

from dataclasses import replace
from typing import get_args

import pytest
import torch
from torch import nn

from model.network.network import build
from model.network.presets import preset
from model.training.config import OptimizerName, TrainConfig
from model.training.optimizers import CombinedOptimizer, Muon, orthogonalize

CONFIG = TrainConfig(steps=10, learning_rate=0.01, weight_decay=0.1)
LAYERS = (nn.Conv2d, nn.Linear)
NAMES = [name for name in get_args(OptimizerName) if name != "auto"]


def make_network() -> nn.Module:
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5)
    )
    network[0].weight.data = network[0].weight.data.contiguous(memory_format=torch.channels_last)
    return network


def train(network: nn.Module, optimizer: CombinedOptimizer, steps: range) -> float:
    """Train on a fixed batch and return the last loss."""
    x = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    loss = torch.zeros(())
    for step in steps:
        network.zero_grad()
        optimizer.set_learning_rate(0.01 / (1 + step / 10))
        loss = nn.functional.cross_entropy(network(x), torch.tensor([0, 1, 2, 3, 4, 0]))
        loss.backward()
        optimizer.step()
    return float(loss.detach())


@pytest.mark.parametrize("name", NAMES)
def test_each_optimizer_learns_and_resumes_exactly(name: OptimizerName) -> None:
    config = replace(CONFIG, optimizer=name)
    whole, saved, resumed = make_network(), make_network(), make_network()
    optimizer, before = CombinedOptimizer(config, whole), CombinedOptimizer(config, saved)
    first_loss = train(whole, optimizer, range(1))
    train(whole, optimizer, range(1, 7))
    train(saved, before, range(4))
    resumed.load_state_dict(saved.state_dict())
    after = CombinedOptimizer(config, resumed)
    assert before.state_tensors().keys() == after.state_tensors().keys()
    for key, tensor in after.state_tensors().items():
        tensor.copy_(before.state_tensors()[key])
    train(resumed, after, range(4, 7))
    for key, tensor in whole.state_dict().items():
        assert torch.equal(resumed.state_dict()[key], tensor), key
    assert train(whole, optimizer, range(7, 61)) < first_loss / 4


@pytest.mark.parametrize("name", NAMES)
def test_only_weights_of_layers_decay(name: OptimizerName) -> None:
    network = build(replace(preset("fianchetto-human"), width=8, blocks=1), 0)
    layers = {key for key, module in network.named_modules() if isinstance(module, LAYERS)}
    optimizer = CombinedOptimizer(replace(CONFIG, optimizer=name), network)
    before = {key: weight.detach().clone() for key, weight in network.named_parameters()}
    optimizer.set_learning_rate(0.01)
    for weight in network.parameters():
        weight.grad = torch.zeros_like(weight)
    optimizer.step()
    for key, weight in network.named_parameters():
        decays = key.removesuffix(".weight") in layers
        if before[key].any():
            assert torch.equal(weight, before[key]) != decays, key
        if decays and name != "sgd":  # sgd applies the decay through the momentum
            assert torch.allclose(weight, before[key] * (1 - 0.01 * 0.1), rtol=1e-5), key


def test_muon_equals_torchs() -> None:
    """Torch iterates on whole matrices, in bf16: its rounding is 1 % of the steps."""
    random = torch.Generator().manual_seed(3)
    shapes = [(16, 40), (40, 16), (16, 40), (1, 7), (12, 12), (16, 40)]
    ours, theirs = ([nn.Parameter(torch.ones(shape)) for shape in shapes] for _ in range(2))
    muon = Muon([{"params": ours}], lr=0.1, momentum=0.9, weight_decay=0.05)
    for weight in ours:
        muon.state[weight] = {"momentum_buffer": torch.zeros_like(weight)}
    settings = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.05, "adjust_lr_fn": "match_rms_adamw"}
    reference = torch.optim.Muon(theirs, **settings)
    for _ in range(4):
        for one, other in zip(ours, theirs, strict=True):
            one.grad = other.grad = torch.randn(one.shape, generator=random)
        ours[2].grad = theirs[2].grad = None  # a weight without a gradient must not change
        muon.step()
        reference.step()
    for one, other in zip(ours, theirs, strict=True):
        moved = (other.detach() - 1).norm()
        assert float((one.detach() - other.detach()).norm()) <= 0.02 * float(moved)
    assert torch.equal(ours[2], torch.ones(16, 40))


def test_nearly_singular_matrices_equal_double_precision() -> None:
    random = torch.Generator().manual_seed(4)
    left, right = (
        torch.linalg.qr(torch.randn(n, 24, generator=random, dtype=torch.float64))[0]
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
