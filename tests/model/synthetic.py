"""Batches that look like shards' rows, with a rule that a network can learn: the move is the lowest
legal label."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

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
TINY_SEED = replace(
    TINY,
    name="tiny-seed",
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


def bits(*squares: int) -> int:
    """Pack bits into a plane."""
    return sum(1 << square for square in squares)


def batch(rows: int, seed: int = 0) -> Batch:
    """Make rows with about five legal moves each, a legal label, and a result that the own queens'
    plane gives away."""
    random = np.random.default_rng(seed)
    planes = np.zeros((rows, 77), np.uint64)
    some, others = random.integers(0, 2**63, (2, rows, 12), dtype=np.uint64)
    planes[:, :12] = some & others
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


def stream(size: int = 16, distinct: int = 4) -> Callable[[int], Iterator[Batch]]:
    """Open an endless stream of a few batches in turn, which starts at a given step."""

    def open_batches(step: int) -> Iterator[Batch]:
        while True:
            yield batch(size, seed=step % distinct)
            step += 1

    return open_batches


class FakeClock:
    """A training run's clock that only its steps advance, so that `minutes` are as many steps on
    every machine."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds_per_step: float) -> None:
        """Let the loop read this clock from now on."""
        self.now = 1000.0
        take_step = loop.take_step

        def step(*arguments: Any) -> Any:
            self.now += seconds_per_step
            return take_step(*arguments)

        monkeypatch.setattr(loop, "take_step", step)
        monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: self.now))
