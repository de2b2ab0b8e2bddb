"""Every preset in the table: its shapes and size at full size, and that a small network of the same
parts can learn.

Full-size networks are walked with tensors that have shapes and no numbers, so the largest cost no
more than the smallest; the marked ones with numbers are for `make test-slow`.
"""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from engine.encoding.move_vocabularies import vocabulary
from model.checkpoint import load
from model.costs import blank
from model.data.inputs import Batch, legal_moves, move_to_device, network_input
from model.data.outputs import flatten_policy
from model.data.playouts import playout_rows
from model.inference.evaluator import NetworkEvaluator
from model.network.network import Network, build, parameters
from model.network.preset import Preset, preset_row
from model.network.presets import presets
from model.training.objective import VALUE_FORMS, wdl_of_results
from model.training.policy_loss import policy_terms
from tests.model.test_checkpoint import make

CPU = torch.device("cpu")
EVERY = pytest.mark.parametrize("row", presets().values(), ids=lambda row: row.name)
MILLION = 1_000_000
STATED = {
    "alphazero19": (20 * MILLION, 25 * MILLION),
    "chess-policy": (1 * MILLION, 2 * MILLION),
    "chess-policy-only": (1 * MILLION, 2 * MILLION),
    "fianchetto-xs": (578_691, 578_691),
    "fianchetto-rated": (569_027, 569_027),
    "fianchetto-human": (621_124, 621_124),
    "fianchetto-m": (6 * MILLION, 10 * MILLION),
    "fianchetto-l": (20 * MILLION, 40 * MILLION),
}
"""Parameters that systems state, or that a row was made for: smallest and largest."""


def loss_of(network: Network, batch: Batch) -> torch.Tensor:
    """Return the mean of the policy's cross-entropy among legal moves and the value's loss, on the
    CPU."""
    preset = network.preset
    columns = move_to_device(batch, preset, CPU)
    policy, value_BV, *_ = network(network_input(preset, columns, torch.float32))
    policy_B, _ = policy_terms(
        flatten_policy(policy), legal_moves(preset, columns), columns["target"]
    )
    return (
        policy_B + VALUE_FORMS[preset.value].loss(value_BV, wdl_of_results(columns["result"]))
    ).mean()


def small(row: Preset) -> Preset:
    """Make a network of the same parts that a test can train."""
    return replace(
        row,
        width=32,
        blocks=1,
        squeeze=min(row.squeeze, 8),
        policy_width=min(row.policy_width, 16),
        value_hidden=32,
        condition_width=min(row.condition_width, 16),
        move_features_width=min(row.move_features_width, 16),
    )


@cache
def rows(count: int = 256) -> dict[str, Any]:
    return playout_rows(count, seed=1)


@EVERY
def test_shapes_and_parameters_are_what_the_system_states_and_gradients_reach_all(
    row: Preset,
) -> None:
    with FakeTensorMode():
        network = Network(row)
        read = blank(row)
        two = (
            read.repeat(2, 1, 1, 1)
            if isinstance(read, torch.Tensor)
            else {k: v.repeat_interleave(2, 0) for k, v in read.items()}
        )
        policy, value, *left = network(two)
        assert value.shape == (2, {"wdl": 3, "tanh": 1, "none": 0}[row.value])
        assert [tuple(it.shape) for it in left] == ([(2, 1)] if row.moves_left else [])
        if row.policy == "factored":
            assert [tuple(part.shape) for part in policy] == [(2, 64), (2, 64, 64)]
        assert flatten_policy(policy).shape == (2, vocabulary(row.moves).size)
        (flatten_policy(policy).sum() + value.sum() + sum(it.sum() for it in left)).backward()
        lost = [name for name, parameter in network.named_parameters() if parameter.grad is None]
    assert lost == []
    count = parameters(network)
    low, high = STATED.get(row.name, (1, count))
    assert low <= count <= high


@EVERY
def test_a_gradient_is_not_nothing(row: Preset) -> None:
    network = build(small(row), seed=1)
    # residual branches begin at zero, and what lies before a zero gets no gradient
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    policy, value, *left = network(
        network_input(row, move_to_device(head(64), row, CPU), torch.float32)
    )
    weights = torch.randn(vocabulary(row.moves).size, generator=torch.Generator().manual_seed(0))
    total = (
        (flatten_policy(policy) * weights).sum() + (value**2).sum() + sum(it.sum() for it in left)
    )
    total.backward()
    silent = [
        name for name, parameter in network.named_parameters() if not parameter.grad.abs().sum() > 0
    ]
    assert silent == []


def head(count: int) -> dict[str, Any]:
    return {name: column[:count] for name, column in rows().items()}


@EVERY
def test_a_checkpoint_of_it_is_read_back_and_evaluates_alike(row: Preset, tmp_path: Path) -> None:
    make(tmp_path, small(row), seed=5)
    network, card = load(tmp_path)
    assert card["preset"] == preset_row(small(row))
    planes = rows()["planes"][:8]
    one, other = (
        NetworkEvaluator(it, amp="off")(planes, head(8))
        for it in (network, build(small(row), seed=5))
    )
    assert np.array_equal(one[0], other[0])
    assert np.array_equal(one[1], other[1])


DISTINCT = {replace(small(row), name="small"): row.name for row in reversed(presets().values())}
"""Small networks that differ in more than their names."""


@pytest.mark.parametrize("row", DISTINCT, ids=DISTINCT.get)
def test_it_learns_256_positions_by_heart(row: Preset) -> None:
    network = build(row, seed=2)
    # at a rate of 1e-2 one sticks, by its luck
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3, weight_decay=0.0, fused=True)
    losses: list[float] = []
    while len(losses) < 240 and not (losses and np.mean(losses[-4:]) < 0.5):
        places = np.arange(len(losses) % 4, 256, 4)
        loss = loss_of(network, {name: column[places] for name, column in rows().items()})
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[0] > 2.5, "it knows nothing at first"
    assert np.mean(losses[-4:]) < 0.5


@pytest.mark.slow
@EVERY
def test_at_full_size_it_learns_a_few_positions_fast(row: Preset) -> None:
    network = build(row, seed=2)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, weight_decay=0.0)
    few = head(8)
    losses = []
    for _ in range(14):
        loss = loss_of(network, few)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.7 * losses[0]
