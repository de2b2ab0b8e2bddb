"""Building blocks that presets select: activations, gates, residual blocks, attention.

Axes: B batch, C channels, Y row (0 is the 8th rank, seen from the view's side), X column (0 is the
a-file), S square (8 * row + column), H head, D channels of a head.
"""

from collections.abc import Callable, Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.network.preset import Preset

SQUARES = 64


class Gate(nn.Module):
    """Squeeze-and-excitation gate (Hu et al. 2018, arXiv:1709.01507).

    With `bias`, it also shifts each channel, as in Leela Chess Zero.
    """

    def __init__(self, preset: Preset, *, bias: bool) -> None:
        super().__init__()
        self.squeeze = nn.Linear(preset.width, preset.squeeze)
        self.activation = ACTIVATIONS[preset.activation]()
        self.excite = nn.Linear(preset.squeeze, 2 * preset.width if bias else preset.width)
        self.bias = bias

    def forward(self, x_BCYX: Tensor) -> Tensor:
        """Scale the channels of `[B, C, Y, X]`, and shift them if the gate has `bias`."""
        gate_BC = self.excite(self.activation(self.squeeze(board_mean(x_BCYX))))
        if not self.bias:
            return x_BCYX * torch.sigmoid(gate_BC)[:, :, None, None]
        scale_BC11, shift_BC11 = gate_BC[:, :, None, None].chunk(2, 1)
        return torch.addcmul(shift_BC11, x_BCYX, torch.sigmoid(scale_BC11))


def board_mean(x_BCYX: Tensor) -> Tensor:
    """Average each channel over the board, `[B, C]`.

    On a CPU, a matrix product and its gradient are four times as fast as `mean` in channels-last
    bf16.
    """
    x_BSC = x_BCYX.permute(0, 2, 3, 1).flatten(1, 2)
    weights_B1S = x_BSC.new_full((1, 1, SQUARES), 1 / SQUARES).expand(x_BSC.shape[0], -1, -1)
    return torch.bmm(weights_B1S, x_BSC)[:, 0]


class Norm(nn.BatchNorm2d):
    """Batch norm with separate statistics for each group of rows in training.

    Row i belongs to group i modulo `groups`. One call normalizes all groups, so a GPU runs few
    large kernels. The running statistics are updated with the groups' mean.
    """

    groups = 1
    """Number of groups, all of equal size."""
    momentum: float
    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def forward(self, x_BCYX: Tensor) -> Tensor:
        """Normalize `[B, C, Y, X]`; B is a multiple of `groups` in training."""
        if not self.training or self.groups == 1:
            return super().forward(x_BCYX)
        batch, channels, *board = x_BCYX.shape
        mean, var, weight, bias = (
            tensor.repeat(self.groups)
            for tensor in (self.running_mean, self.running_var, self.weight, self.bias)
        )
        # the channels of all groups become separate channels of one batch norm
        grouped = x_BCYX.reshape(batch // self.groups, self.groups * channels, *board)
        y = F.batch_norm(
            grouped, mean, var, weight, bias, training=True, momentum=self.momentum, eps=self.eps
        )
        with torch.no_grad():
            self.running_mean.copy_(mean.view(self.groups, channels).mean(0))
            self.running_var.copy_(var.view(self.groups, channels).mean(0))
            self.num_batches_tracked.add_(1)
        return y.reshape(x_BCYX.shape)


def conv3(channels_in: int, channels_out: int) -> nn.Conv2d:
    """Return a padded 3x3 convolution without a bias, which the norm that follows has."""
    return nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False)


class PostBlock(nn.Module):
    """Post-activation residual block (He et al. 2015, arXiv:1512.03385)."""

    def __init__(self, preset: Preset) -> None:
        super().__init__()
        self.conv1 = conv3(preset.width, preset.width)
        self.norm1 = Norm(preset.width)
        self.act1 = ACTIVATIONS[preset.activation]()
        self.conv2 = conv3(preset.width, preset.width)
        self.norm2 = Norm(preset.width)
        self.gate = GATES[preset.gate](preset)
        self.act2 = ACTIVATIONS[preset.activation]()
        # the block starts as the identity, which speeds up the first steps
        nn.init.zeros_(self.norm2.weight)

    def forward(self, x_BCYX: Tensor) -> Tensor:
        """Transform `[B, C, Y, X]`."""
        y = self.act1(self.norm1(self.conv1(x_BCYX)))
        y = self.gate(self.norm2(self.conv2(y)))
        return self.act2(y.add_(x_BCYX))  # type: ignore[no-any-return]


class PreBlock(nn.Module):
    """Pre-activation residual block (He et al. 2016, arXiv:1603.05027)."""

    def __init__(self, preset: Preset) -> None:
        super().__init__()
        self.norm1 = Norm(preset.width)
        self.act1 = ACTIVATIONS[preset.activation]()
        self.conv1 = conv3(preset.width, preset.width)
        self.norm2 = Norm(preset.width)
        self.act2 = ACTIVATIONS[preset.activation]()
        self.conv2 = conv3(preset.width, preset.width)
        self.gate = GATES[preset.gate](preset)

    def forward(self, x_BCYX: Tensor) -> Tensor:
        """Transform `[B, C, Y, X]`."""
        y = self.conv1(self.act1(self.norm1(x_BCYX)))
        y = self.conv2(self.act2(self.norm2(y)))
        return self.gate(y) + x_BCYX  # type: ignore[no-any-return]


class SquareEmbedding(nn.Module):
    """Add a learned vector to each square, since attention does not know where a square is."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.squares = nn.Parameter(torch.empty(SQUARES, width))
        nn.init.normal_(self.squares, std=0.02)

    def forward(self, x_BCYX: Tensor) -> Tensor:
        """Add the vectors to `[B, C, Y, X]`."""
        return x_BCYX + self.squares.to(x_BCYX.dtype).view(8, 8, -1).permute(2, 0, 1)


class LayerNorm(nn.LayerNorm):
    """Layer norm in the dtype of its input. Under autocast, torch's output would be float32."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalize the last axis; statistics are computed in float32."""
        kind = "cpu" if x.is_meta else x.device.type  # autocast does not support the meta device
        with torch.autocast(kind, enabled=False):
            weight, bias = self.weight.to(x.dtype), self.bias.to(x.dtype)
            return F.layer_norm(x, list(self.normalized_shape), weight, bias, self.eps)


class AttentionBlock(nn.Module):
    """Pre-norm transformer layer over the 64 squares (Vaswani et al. 2017, arXiv:1706.03762).

    Each head adds a learned bias for every pair of squares to its scores. Query, key and value are
    separate matrices because Muon orthogonalizes each.
    """

    def __init__(self, preset: Preset) -> None:
        super().__init__()
        self.heads = preset.heads
        self.norm1 = LayerNorm(preset.width)
        self.query, self.key, self.value = (
            nn.Linear(preset.width, preset.width, bias=False) for _ in range(3)
        )
        self.pair_bias = nn.Parameter(torch.zeros(preset.heads, SQUARES, SQUARES))
        self.project = nn.Linear(preset.width, preset.width)
        self.norm2 = LayerNorm(preset.width)
        self.expand = nn.Linear(preset.width, preset.feed_forward)
        self.contract = nn.Linear(preset.feed_forward, preset.width)
        for layer in (self.project, self.contract):  # the block starts as the identity
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x_BCYX: Tensor) -> Tensor:
        """Transform `[B, C, Y, X]`."""
        x_BSC = x_BCYX.permute(0, 2, 3, 1).flatten(1, 2)
        x_BSC = x_BSC + self.project(self._attend(self.norm1(x_BSC)))
        x_BSC = x_BSC + self.contract(F.gelu(self.expand(self.norm2(x_BSC))))
        y_BCYX: Tensor = x_BSC.view(-1, 8, 8, x_BSC.shape[2]).permute(0, 3, 1, 2)
        return y_BCYX

    def _attend(self, x_BSC: Tensor) -> Tensor:
        shape = (-1, SQUARES, self.heads, x_BSC.shape[2] // self.heads)
        query, key, value = (
            layer(x_BSC).view(shape).transpose(1, 2)  # [B, H, S, D]
            for layer in (self.query, self.key, self.value)
        )
        bias_HSS = self.pair_bias.to(query.dtype)
        mixed_BHSD: Tensor = F.scaled_dot_product_attention(query, key, value, attn_mask=bias_HSS)
        return mixed_BHSD.transpose(1, 2).flatten(2)


class Float32(nn.Module):
    """Run a layer in float32 even under autocast, because in bf16 many logits would be equal."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer to an input of any shape."""
        kind = "cpu" if x.is_meta else x.device.type  # autocast does not support the meta device
        with torch.autocast(kind, enabled=False):
            return self.layer(x.float())  # type: ignore[no-any-return]


ACTIVATIONS: Mapping[str, Callable[[], nn.Module]] = {
    "relu": lambda: nn.ReLU(inplace=True),
    "mish": nn.Mish,
}
GATES: Mapping[str, Callable[[Preset], nn.Module]] = {
    "none": lambda preset: nn.Identity(),
    "scale": partial(Gate, bias=False),
    "affine": partial(Gate, bias=True),
}
