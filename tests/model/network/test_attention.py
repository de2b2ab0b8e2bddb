"""Attention blocks: a layer equals an implementation in NumPy, and costs what it should."""

from dataclasses import replace
from math import erf, sqrt

import numpy as np
import torch
from numpy.typing import NDArray

from model.costs import count_costs
from model.network.blocks import AttentionBlock
from model.network.presets import presets
from tests.model.synthetic import ATTENTION, perturb

Array = NDArray[np.float64]
WIDE = replace(ATTENTION, width=24, heads=3, feed_forward=40)


def apply_layer(x: Array, weights: dict[str, Array], heads: int) -> Array:
    """Apply a pre-norm layer to the squares of one board, float64 `[64, C]`."""

    def linear(name: str, given: Array) -> Array:
        return given @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def normalize(name: str, given: Array) -> Array:
        centered = given - given.mean(1, keepdims=True)
        deviation = np.sqrt((centered**2).mean(1, keepdims=True) + 1e-5)
        return centered / deviation * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    normed, depth, mixed = normalize("norm1", x), x.shape[1] // heads, np.zeros_like(x)
    for head in range(heads):
        own = slice(head * depth, (head + 1) * depth)
        query, key, value = (
            normed @ weights[f"{name}.weight"][own].T for name in ("query", "key", "value")
        )
        powers = np.exp(query @ key.T / sqrt(depth) + weights["pair_bias"][head])
        mixed[:, own] = powers / powers.sum(1, keepdims=True) @ value
    x = x + linear("project", mixed)
    hidden = linear("expand", normalize("norm2", x))
    return x + linear("contract", hidden * (1 + np.vectorize(erf)(hidden / sqrt(2))) / 2)


def test_a_layer_equals_numpys_and_starts_as_the_identity() -> None:
    block = AttentionBlock(WIDE)
    boards = torch.randn((2, 24, 8, 8), generator=torch.Generator().manual_seed(5))
    assert torch.equal(block(boards), boards)
    perturb(block, 0.3)
    weights = {name: tensor.double().numpy() for name, tensor in block.state_dict().items()}
    for layout in (torch.contiguous_format, torch.channels_last):
        with torch.no_grad():
            outputs = block(boards.contiguous(memory_format=layout)).numpy()
        for board, output in zip(boards.double().numpy(), outputs, strict=True):
            expected = apply_layer(board.reshape(24, 64).T, weights, heads=3).T.reshape(24, 8, 8)
            np.testing.assert_allclose(output, expected, atol=1e-4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert block(boards.bfloat16()).dtype == torch.bfloat16, "norms keep the dtype"


def test_parameters_and_operations_of_a_layer() -> None:
    human_m = presets()["fianchetto-human-m"]
    two, three = (count_costs(replace(human_m, blocks=count)) for count in (2, 3))
    matrices = 4 * 256**2 + 2 * 256 * 512
    assert three["flops"] - two["flops"] == 2 * 64 * matrices + 4 * 64**2 * 256
    assert three["parameters"] - two["parameters"] == matrices + 4 * 256 + 2 * 256 + 512 + 8 * 64**2
