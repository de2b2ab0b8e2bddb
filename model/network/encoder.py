"""Encode packed rows as the inputs of a network's trunk.

    rows -> `encode`: planes of the preset's view    -> stem
                      ratings and clocks             -> `Condition`: scale and shift of each channel
                      legal moves and their features -> `MoveFeatureStem`: added to both squares

Ratings and clocks are encoded as interpolation weights on fixed steps, plus one entry for unknown.
A value between two steps is a mix of both.

column                    steps                                             unknown
elo, opponent_elo         600, 750 ... 3000 (17)                            0
clock                     0, 1, 3, 7 ... 8191 s (14)                        65535
base                      15, 31, 63 ... 8191 s (10)                        65535
increment                 0, 1, 3, 7 ... 127 s (8)                          255

Steps in seconds are evenly spaced in log2(1 + seconds).

Axes: B batch, P plane, Y row (0 is the 8th rank, seen from the view's side), X column, C channels,
N steps, M legal moves of all rows, F features, K encoded features, S squares of all boards. Bit X
of a plane's byte Y is column X of row Y.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from engine.board.movegen import MOVE_TYPES
from engine.encoding.planes import LABELS
from engine.encoding.views import LAST_MOVES, NO_LAST_MOVE, View, counters, pack_view_planes, view
from engine.evaluation.move_features import CHECK, LEAVES, RISKS, STANDS, TAKES, TARGET
from model.network.blocks import SQUARES
from model.network.preset import Preset

Rows = Mapping[str, Tensor]
"""Packed rows on a device, seen from the side to move: `planes` as bytes, uint8 `[B, 77, 8]`; the
columns that the preset reads, int64 `[B]`; `attacks`, uint8 `[B, 12, 8]`, if the view has them;
`moves`, int64 `[M]`, and `move_features`, uint8 `[M, F]`, if the preset reads them. A move is
row * 4096 + label, or NO_MOVE in padding."""
NO_MOVE = -1
MINOR_PIECE_UNITS = 30
"""Smallest gain or loss that counts as a minor piece, in tens of centipawns."""
UNITS_PER_ONE = 50.0
"""Gain or loss that is encoded as 1, in tens of centipawns."""
ENCODED_FEATURES = 3 * CHECK + 5
"""Number of encoded features of a move: three for each amount, and five flags."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Encoding of one column by interpolation between evenly spaced steps."""

    unknown: int
    """Value of the column that means unknown."""
    low: float
    """First step, as log2(1 + value) if `logarithm` is set."""
    size: float
    """Distance between two steps, in the unit of `low`."""
    count: int
    """Number of steps."""
    logarithm: bool = False
    """Whether the steps are evenly spaced in log2(1 + value)."""


CONDITION_STEPS: Mapping[str, Steps] = {
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
    "ratings_speed": (*RATINGS, "base", "increment"),
    "ratings_clock": (*RATINGS, *CLOCKS),
}
"""Columns read for each value of a preset's `condition`."""
UNKNOWN: Mapping[str, int] = {
    name: steps.unknown for name, steps in CONDITION_STEPS.items()
} | dict.fromkeys(LAST_MOVES, NO_LAST_MOVE)
"""Value for "unknown" in each column that training may hide."""


class Inputs(NamedTuple):
    """The inputs of a trunk; None for those that the preset does not use."""

    planes: Tensor
    """Unpacked planes of the view, `[B, P, Y, X]`, channels last."""
    conditions: Tensor | None
    """Interpolation weights of ratings and clocks, float32 `[B, N]`."""
    moves: "Moves | None"
    """Legal moves with their features."""


def encode(preset: Preset, rows: Rows) -> Inputs:
    """Encode rows for a preset's trunk, in autocast's dtype if enabled."""
    names, device = CONDITIONS[preset.condition], rows["planes"].device.type
    dtype = torch.float32
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
    return Inputs(
        expand_planes(view(preset.view), rows, dtype),
        encode_conditions(rows, names) if names else None,
        Moves(rows) if preset.move_features_width else None,
    )


def to_tensor(array: NDArray[Any]) -> Tensor:
    """Convert an array to a tensor, without a copy unless it is read-only or not contiguous."""
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))


@cache
def list_bit_numbers(device: torch.device) -> Tensor:
    """Return the bit numbers 0 to 7, uint8 `[8]`."""
    return torch.arange(8, dtype=torch.uint8, device=device)


@cache
def _load_view_array(view_name: str, array: str, device: torch.device) -> Tensor:
    return to_tensor(getattr(view(view_name), array)).to(device, torch.int64)


def unpack_planes(bytes_BPY: Tensor, dtype: torch.dtype) -> Tensor:
    """Unpack bits into planes `[B, P, Y, X]` of zeros and ones, channels last in memory."""
    bytes_BYP = bytes_BPY.permute(0, 2, 1).contiguous()  # moving packed bytes is cheaper
    bits_BYXP = (bytes_BYP[:, :, None, :] >> list_bit_numbers(bytes_BPY.device)[:, None]) & 1
    return bits_BYXP.to(dtype).permute(0, 3, 1, 2)


def expand_planes(preset_view: View, rows: Rows, dtype: torch.dtype) -> Tensor:
    """Return all planes of a view unpacked, `[B, P, Y, X]`, channels last."""
    load_array = partial(_load_view_array, preset_view.name, device=rows["planes"].device)
    binary_BPYX = unpack_planes(pack_view_planes(preset_view, rows, torch, load_array), dtype)
    if not preset_view.counters:
        return binary_BPYX
    counters_BP = counters(preset_view, rows, torch).to(dtype)
    constant_BPYX = counters_BP[:, :, None, None].expand(-1, -1, 8, 8)
    return torch.cat((binary_BPYX, constant_BPYX), 1).contiguous(memory_format=torch.channels_last)


def encode_conditions(rows: Rows, names: tuple[str, ...]) -> Tensor:
    """Encode columns as interpolation weights, float32 `[B, N]`; those of a column sum to one."""
    return torch.cat([_interpolate(rows[name], CONDITION_STEPS[name]) for name in names], 1)


def count_condition_weights(names: tuple[str, ...]) -> int:
    """Return the total number of interpolation weights of the columns."""
    return sum(CONDITION_STEPS[name].count + 1 for name in names)


def _interpolate(column_B: Tensor, steps: Steps) -> Tensor:
    known_B = column_B != steps.unknown
    value_B = column_B.float()
    if steps.logarithm:
        value_B = torch.log1p(value_B) / math.log(2)
    position_B1 = ((value_B - steps.low) / steps.size).clamp(0, steps.count - 1)[:, None]
    steps_N = torch.arange(steps.count, device=column_B.device)
    weights_BN = (1 - (position_B1 - steps_N).abs()).clamp(min=0) * known_B[:, None]
    return torch.cat([weights_BN, (~known_B)[:, None].float()], 1)


class Condition(nn.Module):
    """Scale and shift channels by conditions (FiLM: Perez et al. 2018, arXiv:1709.07871)."""

    def __init__(self, names: tuple[str, ...], hidden: int, channels: int, layers: int) -> None:
        """Condition `layers` layers of `channels` channels on the columns in `names`."""
        super().__init__()
        self.conditioned_layers = layers
        self.layers = nn.Sequential(
            nn.Linear(count_condition_weights(names), hidden),
            nn.ReLU(),
            nn.Linear(hidden, 2 * layers * channels),
        )
        with torch.no_grad():
            self.layers[2].weight.mul_(0.1)  # type: ignore[operator]

    def forward(self, weights_BN: Tensor) -> tuple[Tensor, ...]:
        """Return a scale and a shift, `[B, C, 1, 1]` each, for each conditioned layer."""
        values_BC11: Tensor = self.layers(weights_BN)[:, :, None, None]
        return values_BC11.chunk(2 * self.conditioned_layers, 1)


def scale_and_shift(x_BCYX: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Return x * (1 + scale) + shift."""
    return torch.addcmul(x_BCYX + shift.to(x_BCYX.dtype), x_BCYX, scale.to(x_BCYX.dtype))


def encode_features(features_MF: Tensor) -> Tensor:
    """Encode move features, float32 `[M, K]`.

    The columns are scaled amounts, flags for amounts above 0, flags for amounts of at least a minor
    piece, and five comparisons.
    """
    amounts_MF = features_MF[:, :CHECK].float()
    takes, risks, leaves, stands, check = (
        features_MF[:, index] for index in (TAKES, RISKS, LEAVES, STANDS, CHECK)
    )
    flags = (takes > risks, takes < risks, leaves < stands, check > 0, check > 1)
    parts = (
        amounts_MF / UNITS_PER_ONE,
        amounts_MF > 0,
        amounts_MF >= MINOR_PIECE_UNITS,
        torch.stack(flags, -1),
    )
    return torch.cat([part.float() for part in parts], -1)


class Moves:
    """Legal moves `[M]`: indices into the batch's logits and squares, features, padding mask."""

    def __init__(self, rows: Rows) -> None:
        self.mask = (rows["moves"] >= 0)[:, None].float()
        self.logit_indices = rows["moves"].clamp(min=0)
        self.rows = self.logit_indices // LABELS
        first_squares_M = self.rows * SQUARES
        self.kinds = self.logit_indices % LABELS // SQUARES
        self.sources = first_squares_M + self.logit_indices % SQUARES
        self.targets = first_squares_M + rows["move_features"][:, TARGET]
        self.features = encode_features(rows["move_features"])


def list_squares(board_BCYX: Tensor) -> Tensor:
    """Flatten boards `[B, C, Y, X]` into a list of squares `[S, C]`."""
    return board_BCYX.permute(0, 2, 3, 1).flatten(0, 2)


class MoveFeatureStem(nn.Module):
    """Add the features of each legal move to the stem's output, at its from- and to-square."""

    def __init__(self, preset: Preset) -> None:
        super().__init__()
        self.move_features = nn.Linear(ENCODED_FEATURES, 2 * preset.width)
        self.kinds = nn.Embedding(MOVE_TYPES, 2 * preset.width)
        nn.init.normal_(self.kinds.weight, std=0.1)

    def forward(self, x_BCYX: Tensor, moves: Moves) -> Tensor:
        """Return `[B, C, Y, X]` with the moves' features added."""
        # index_select, because the gradient of nn.Embedding would sort the indices
        kinds_MC = self.kinds.weight.index_select(0, moves.kinds)
        added_MC = F.relu(self.move_features(moves.features) + kinds_MC)
        added_MC = (added_MC * moves.mask).to(x_BCYX.dtype)
        squares_SC = list_squares(x_BCYX)
        for chunk_MC, squares_M in zip(
            added_MC.chunk(2, 1), (moves.sources, moves.targets), strict=True
        ):
            squares_SC = squares_SC.index_add(0, squares_M, chunk_MC)
        return squares_SC.view(-1, *x_BCYX.shape[2:], x_BCYX.shape[1]).permute(0, 3, 1, 2)
