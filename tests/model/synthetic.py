"""Small presets, and synthetic batches in which the move is always the lowest legal label."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from model.network.preset import Preset
from model.training import loop

Batch = dict[str, NDArray[Any]]

TINY = Preset(
    name="tiny",
    view="marro77",
    width=8,
    blocks=1,
    block="post",
    activation="relu",
    gate="affine",
    squeeze=4,
    policy="planes",
    policy_width=0,
    value="wdl",
    value_width=2,
    value_hidden=8,
)
TINY_TANH = replace(
    TINY,
    name="tiny-tanh",
    view="chessmarro77",
    block="pre",
    activation="mish",
    gate="scale",
    policy="linear",
    policy_width=2,
    value="tanh",
)
ATTENTION = replace(
    TINY,
    name="tiny-attention",
    view="marro13+last2+attacks",
    block="attention",
    blocks=2,
    gate="none",
    heads=2,
    feed_forward=16,
    condition="ratings_speed",
    condition_width=4,
    move_features_width=8,
)


def batch(rows: int, seed: int = 0) -> Batch:
    """Make rows with about five legal moves each.

    The label is the lowest legal one, and the plane of the own queens depends on the result only.
    """
    random = np.random.default_rng(seed)
    planes = np.zeros((rows, 77), np.uint64)
    first, second = random.integers(0, 2**63, (2, rows, 12), dtype=np.uint64)
    planes[:, :12] = first & second
    planes[:, 12] = np.where(random.random(rows) < 0.5, np.uint64(0), ~np.uint64(0))
    labels = np.full(rows, 4096)
    for row in range(rows):
        for label in random.choice(4096, 5, replace=False):
            planes[row, 13 + label // 64] |= np.uint64(1) << np.uint64(label % 64)
            labels[row] = min(labels[row], label)
    results = random.integers(-1, 2, rows).astype(np.int8)
    planes[:, 8] = np.choose(results + 1, [np.uint64(0), np.uint64(0xFF), ~np.uint64(0)])
    games = np.arange(rows, dtype=np.uint32)
    return {"planes": planes, "label": labels.astype(np.uint16), "result": results, "game": games}


def perturb(network: nn.Module, scale: float, seed: int = 0) -> None:
    """Change every parameter at random, so that layers that begin at zero have an effect."""
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=random))


def stream(size: int = 16, distinct: int = 4) -> Callable[[int], Iterator[Batch]]:
    """Return a function that opens an endless stream of `distinct` batches in turn at a step."""

    def open_batches(step: int) -> Iterator[Batch]:
        while True:
            yield batch(size, seed=step % distinct)
            step += 1

    return open_batches


class FakeClock:
    """Replaces the clock of a training run: each step takes the same time on every machine."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds_per_step: float) -> None:
        self.now = 1000.0
        take_step = loop.take_step

        def take_timed_step(*arguments: Any) -> Any:
            self.now += seconds_per_step
            return take_step(*arguments)

        monkeypatch.setattr(loop, "take_step", take_timed_step)
        monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: self.now))
