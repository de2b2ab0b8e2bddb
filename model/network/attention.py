"""A transformer over the 64 squares: their embedding, the encoder block, and a bias for the board's geometry.

Axes: B batch, C channels, Y row, X column, S square (row * 8 + column), H head, K template, R offset (15 x 15).
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.network.blocks import ACTIVATIONS, SQUARES, board_mean
from model.network.preset import Preset

OFFSETS = 15 * 15
"""(row, column) differences of two squares, -7 to 7 each."""
TEMPLATES = 32
"""Patterns of offsets that the bias mixes."""


def offset_index() -> Tensor:
    """Return the index of the offset from each square to each other, int64 `[S, S]`, 0..224."""
    square = torch.arange(SQUARES)
    row_SS = square[None, :] // 8 - square[:, None] // 8
    column_SS = square[None, :] % 8 - square[:, None] % 8
    return (row_SS + 7) * 15 + column_SS + 7


class Squares(nn.Module):
    """Embed the planes and the position of each square."""

    def __init__(self, planes: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Conv2d(planes, width, 1)
        self.place = nn.Parameter(torch.randn(1, width, 8, 8) * 0.02)

    def forward(self, x_BPYX: Tensor) -> Tensor:
        """Embed `[B, P, Y, X]` as `[B, C, Y, X]`."""
        return self.embed(x_BPYX) + self.place  # type: ignore[no-any-return]


class GeometricBias(nn.Module):
    """Add a learned number for each pair of squares, and patterns of offsets mixed by the board for each head.

    A small form of Chessformer's geometric attention bias (arXiv:2605.19091).
    """

    offset_of: Tensor

    def __init__(self, row: Preset) -> None:
        super().__init__()
        self.heads = row.heads
        self.pairs = nn.Parameter(torch.zeros(row.heads, SQUARES, SQUARES))
        self.templates = nn.Parameter(torch.randn(TEMPLATES, OFFSETS) * 0.02)
        self.squeeze = nn.Linear(row.width, TEMPLATES)
        self.activation = ACTIVATIONS[row.activation]()
        self.mix = nn.Linear(TEMPLATES, row.heads * TEMPLATES)
        self.register_buffer("offset_of", offset_index(), persistent=False)

    def forward(self, x_BCYX: Tensor) -> Tensor:
        """Return the bias `[B, H, S, S]`."""
        mixed_BHK = self.mix(self.activation(self.squeeze(board_mean(x_BCYX)))).view(-1, self.heads, TEMPLATES)
        offsets_BHR = mixed_BHK @ self.templates.to(mixed_BHK.dtype)
        bias: Tensor = offsets_BHR[:, :, self.offset_of] + self.pairs.to(offsets_BHR.dtype)
        return bias


class AttentionBlock(nn.Module):
    """Norm, attend, add; norm, two layers, add (pre-norm: Xiong et al. 2020, arXiv:2002.04745)."""

    def __init__(self, row: Preset) -> None:
        super().__init__()
        self.heads = row.heads
        self.norm1 = nn.LayerNorm(row.width)
        self.projections = nn.Linear(row.width, 3 * row.width)
        self.bias = GeometricBias(row)
        self.join = nn.Linear(row.width, row.width)
        self.norm2 = nn.LayerNorm(row.width)
        self.widen = nn.Linear(row.width, row.feedforward)
        self.activation = ACTIVATIONS[row.activation]()
        self.narrow = nn.Linear(row.feedforward, row.width)

    def forward(self, x_BCYX: Tensor) -> Tensor:
        """Transform `[B, C, Y, X]`; channels last in memory, so the squares are tokens without a copy."""
        x_BSC = x_BCYX.permute(0, 2, 3, 1).flatten(1, 2)
        projected = self.projections(self.norm1(x_BSC))
        query, key, value = projected.view(x_BSC.shape[0], SQUARES, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=self.bias(x_BCYX).to(query.dtype))
        x_BSC = x_BSC + self.join(attended.transpose(1, 2).flatten(2))
        x_BSC = x_BSC + self.narrow(self.activation(self.widen(self.norm2(x_BSC))))
        return x_BSC.view(x_BSC.shape[0], 8, 8, -1).permute(0, 3, 1, 2)  # type: ignore[no-any-return]


class LastNorm(nn.Module):
    """Norm the channels of each square before the heads, since pre-norm blocks leave them unnormed."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x_BCYX: Tensor) -> Tensor:
        """Norm `[B, C, Y, X]`."""
        return self.norm(x_BCYX.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)  # type: ignore[no-any-return]
