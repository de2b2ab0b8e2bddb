"""Conditioning on both players' ratings and the mover's clock, any of which may be unknown.

Each number is interpolated between two of its fixed steps, and one more entry stands for unknown.
So the network treats a rating between two steps as a mix of both.

column                    steps                                             unknown
elo, opponent_elo         600, 750 ... 3000 (17)                            0
clock                     0, 1, 3, 7 ... 8191 s (14)                        65535
base                      15, 31, 63 ... 8191 s (10)                        65535
increment                 0, 1, 3, 7 ... 127 s (8)                          255

Steps of seconds are even in log2(1 + seconds).

Axes: B batch, N steps, C channels.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from engine.board.rng import GOLDEN, mix
from engine.encoding.views import LAST_MOVES, NO_LAST_MOVE

HIDE_ONE_IN = 8
"""In training one row in this many has its ratings hidden, one its clock, one its last moves, so
that unknown is learned."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Encoding of one column."""

    unknown: int
    """Value for null in a batch."""
    low: float
    """First step."""
    size: float
    """Distance between steps."""
    count: int
    """Number of steps."""
    logarithm: bool = False
    """Whether the steps are even in log2(1 + value)."""


STEPS: Mapping[str, Steps] = {
    "elo": Steps(0, 600, 150, 17),
    "opponent_elo": Steps(0, 600, 150, 17),
    "clock": Steps(65535, 0, 1, 14, logarithm=True),
    "base": Steps(65535, 4, 1, 10, logarithm=True),
    "increment": Steps(255, 0, 1, 8, logarithm=True),
}
RATINGS = ("elo", "opponent_elo")
CLOCKS = ("clock", "base", "increment")
CONDITIONS: Mapping[str, tuple[str, ...]] = {
    "none": (),
    "ratings": RATINGS,
    "ratings_clock": (*RATINGS, *CLOCKS),
}
"""Columns that are read, by a preset's `condition`."""


UNKNOWN: Mapping[str, int] = {name: steps.unknown for name, steps in STEPS.items()} | dict.fromkeys(
    LAST_MOVES, NO_LAST_MOVE
)
"""Value for unknown in the columns that may be hidden."""


def encode_conditions(columns: Mapping[str, Tensor], names: tuple[str, ...]) -> Tensor:
    """Encode columns `[B]` as interpolation weights (a soft one-hot), float32 `[B, N]`; each
    column's weights sum to one.
    """
    return torch.cat([_memberships(columns[name], STEPS[name]) for name in names], 1)


def width(names: tuple[str, ...]) -> int:
    """Return the number of memberships of some columns."""
    return sum(STEPS[name].count + 1 for name in names)


def _memberships(column_B: Tensor, steps: Steps) -> Tensor:
    known_B = column_B != steps.unknown
    value_B = column_B.float()
    if steps.logarithm:
        value_B = torch.log1p(value_B) / math.log(2)
    place_B1 = ((value_B - steps.low) / steps.size).clamp(0, steps.count - 1)[:, None]
    places_N = torch.arange(steps.count, device=column_B.device)
    shares_BN = (1 - (place_B1 - places_N).abs()).clamp(min=0) * known_B[:, None]
    return torch.cat([shares_BN, (~known_B)[:, None].float()], 1)


def draw_of(seed: int, step: int) -> int:
    """Return the random number that selects a step's hidden rows, 32 bits, by splitmix64 (Steele et
    al. 2014).

    It depends on seed and step only, so that a resumed run hides what an uninterrupted one would.
    """
    words = np.array([seed % (1 << 64)], dtype=np.uint64)
    for number in (step, 0):
        words = mix(words + np.uint64(number) + GOLDEN)
    return int(words[0]) >> 32


def hide(columns: Mapping[str, Tensor], names: tuple[str, ...], draw: int) -> dict[str, Tensor]:
    """Return columns with the ratings of some rows, the clocks of others and the last moves of
    others set to unknown.

    The rows are selected by a hash of (game, ply, draw), 32 bits, with the finalizer of
    MurmurHash3, and not by their place in a batch: microbatches and processes hide what one batch
    would.
    """
    out = dict(columns)
    mixed_B = (
        columns["game"].long() * 0x9E3779B1 + columns["ply"].long() * 0x85EBCA77 + draw
    ) & 0xFFFFFFFF
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        mixed_B = ((mixed_B ^ (mixed_B >> shift)) * factor) & 0xFFFFFFFF
    mixed_B ^= mixed_B >> 16
    for group, shift in ((RATINGS, 12), (CLOCKS, 20), (LAST_MOVES, 4)):
        hidden_B = (mixed_B >> shift) % HIDE_ONE_IN == 0
        for name in group:
            if name in names:
                out[name] = torch.where(
                    hidden_B, torch.full_like(columns[name], UNKNOWN[name]), columns[name]
                )
    return out


class Condition(nn.Module):
    """Scale and shift each channel by the conditions (FiLM: Perez et al. 2018,
    arXiv:1709.07871).
    """

    def __init__(self, names: tuple[str, ...], hidden: int, channels: int, places: int) -> None:
        super().__init__()
        self.places = places
        self.layers = nn.Sequential(
            nn.Linear(width(names), hidden), nn.ReLU(), nn.Linear(hidden, 2 * places * channels)
        )
        with torch.no_grad():
            self.layers[2].weight.mul_(0.1)  # type: ignore[operator]

    def forward(self, features_BN: Tensor) -> tuple[Tensor, ...]:
        """Return a scale and a shift `[B, C, 1, 1]` for each place in the network, alternating."""
        return self.layers(features_BN)[:, :, None, None].chunk(2 * self.places, 1)  # type: ignore[no-any-return]


def scale_and_shift(x_BCYX: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Apply the scale and shift of one place; zeros change nothing."""
    return torch.addcmul(x_BCYX + shift.to(x_BCYX.dtype), x_BCYX, scale.to(x_BCYX.dtype))
