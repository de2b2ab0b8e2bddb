"""Heads for the policy, the value and the half-moves left.

Axes: B batch, C channels, Y row, X column, A index of the preset's move vocabulary, F from-square,
T to-square.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.encoding.move_vocabularies import vocabulary
from model.network.blocks import ACTIVATIONS, SQUARES, Float32, Norm, board_mean, conv3
from model.network.preset import Preset

Policy = Tensor | tuple[Tensor, Tensor]
"""Logits `[B, A]`, or for a factored head from-logits `[B, F]` and to-given-from logits `[B, F,
T]`."""


def _hidden(row: Preset) -> list[nn.Module]:
    """Return the hidden 3x3 convolution of a policy head, if any."""
    if not row.policy_width:
        return []
    return [
        conv3(row.width, row.policy_width),
        Norm(row.policy_width),
        ACTIVATIONS[row.activation](),
    ]


def planes_policy(row: Preset) -> nn.Module:
    """Build a head with a plane of from-squares for each type of move; flattened, index = plane *
    64 + from.
    """
    planes = vocabulary(row.moves).planes
    return nn.Sequential(
        *_hidden(row), Float32(nn.Conv2d(row.policy_width or row.width, planes, 1)), nn.Flatten()
    )


def linear_policy(row: Preset) -> nn.Module:
    """Build a 1x1 bottleneck and one linear layer to all indices."""
    size = row.policy_width * SQUARES
    return nn.Sequential(
        *_bottleneck(row, row.policy_width),
        nn.Flatten(),
        Float32(nn.Linear(size, vocabulary(row.moves).size)),
    )


class FactoredPolicy(nn.Module):
    """Give logits of the from-square, and of the to-square for each from-square: 1 + 64 planes."""

    def __init__(self, row: Preset) -> None:
        super().__init__()
        self.hidden = nn.Sequential(*_hidden(row))
        self.planes = Float32(nn.Conv2d(row.policy_width or row.width, 1 + SQUARES, 1))

    def forward(self, x_BCYX: Tensor) -> tuple[Tensor, Tensor]:
        """Return from-logits `[B, F]` and to-given-from logits `[B, F, T]`."""
        planes_BPS = self.planes(self.hidden(x_BCYX)).flatten(2)
        return planes_BPS[:, 0], planes_BPS[:, 1:]


class Pool(nn.Module):
    """Average over the board, `[B, C]`."""

    def forward(self, x_BCYX: Tensor) -> Tensor:
        """Average `[B, C, Y, X]`."""
        return board_mean(x_BCYX)


class PliesLeft(nn.Module):
    """Make a number of half-moves positive; an input of zero gives 40."""

    def forward(self, x: Tensor) -> Tensor:
        """Turn any real number into plies."""
        return F.softplus(x) * (40 / 0.6931)


class NoValue(nn.Module):
    """Value head without outputs, [B, 0]."""

    def forward(self, x_BCYX: Tensor) -> Tensor:
        """Return `[B, 0]`."""
        return x_BCYX.new_zeros(x_BCYX.shape[0], 0, dtype=torch.float32)


def _bottleneck(row: Preset, channels: int) -> list[nn.Module]:
    """Return a 1x1 convolution to `channels`, its norm and activation."""
    return [
        nn.Conv2d(row.width, channels, 1, bias=False),
        Norm(channels),
        ACTIVATIONS[row.activation](),
    ]


def value_head(row: Preset, outputs: int, last: nn.Module) -> nn.Module:
    """Build a 1x1 convolution, the preset's neck, a hidden layer, a layer of `outputs` and a last
    function.
    """
    neck, size = (
        (Pool(), row.value_width)
        if row.value_neck == "pool"
        else (nn.Flatten(), row.value_width * SQUARES)
    )
    return nn.Sequential(
        *_bottleneck(row, row.value_width),
        neck,
        nn.Linear(size, row.value_hidden),
        ACTIVATIONS[row.activation](),
        Float32(nn.Linear(row.value_hidden, outputs)),
        last,
    )


def moves_left_head(row: Preset) -> nn.Module:
    """Build a head for the half-moves left in the game, `[B, 1]`."""
    size = row.moves_left * SQUARES
    return nn.Sequential(
        *_bottleneck(row, row.moves_left), nn.Flatten(), Float32(nn.Linear(size, 1)), PliesLeft()
    )
