"""Building blocks that presets select: activations, gates, residual blocks.

Axes: B batch, C channels, Y row (0 is the 8th rank, seen from the view's side), X column (0 is the
a-file).
"""

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.network.preset import Preset

SQUARES = 64


class Gate(nn.Module):
    """Squeeze-and-excitation gate (Hu et al. 2018, arXiv:1709.01507).

    With `bias`, it also shifts each channel, as in Leela Chess Zero.
    """

    def __init__(
        self, width: int, hidden: int, activation: Callable[[], nn.Module], *, bias: bool
    ) -> None:
        super().__init__()
        self.squeeze = nn.Linear(width, hidden)
        self.activation = activation()
        self.excite = nn.Linear(hidden, 2 * width if bias else width)
        self.bias = bias

    def forward(self, x_BCYX: Tensor) -> Tensor:
        """Scale and shift the channels of `[B, C, Y, X]`."""
        gate_BC = self.excite(self.activation(self.squeeze(board_mean(x_BCYX))))
        if not self.bias:
            return x_BCYX * torch.sigmoid(gate_BC)[:, :, None, None]
        scale_BC11, shift_BC11 = gate_BC[:, :, None, None].chunk(2, 1)
        return torch.addcmul(shift_BC11, x_BCYX, torch.sigmoid(scale_BC11))


def board_mean(x_BCYX: Tensor) -> Tensor:
    """Average each channel over the board, `[B, C]`.

    A matrix product is used because, on a CPU, `mean` and its gradient take four times as long in
    channels-last bf16.
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
            one.repeat(self.groups)
            for one in (self.running_mean, self.running_var, self.weight, self.bias)
        )
        # fold the groups into the channels
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
    """Return a 3x3 convolution that keeps the board's size, without a bias: the norm has one."""
    return nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False)


class PostBlock(nn.Module):
    """Post-activation residual block (He et al. 2015, arXiv:1512.03385)."""

    def __init__(self, row: Preset) -> None:
        super().__init__()
        self.conv1 = conv3(row.width, row.width)
        self.norm1 = Norm(row.width)
        self.act1 = ACTIVATIONS[row.activation]()
        self.conv2 = conv3(row.width, row.width)
        self.norm2 = Norm(row.width)
        self.gate = GATES[row.gate](row)
        self.act2 = ACTIVATIONS[row.activation]()
        # the block starts as the identity, which speeds up the first steps
        nn.init.zeros_(self.norm2.weight)

    def forward(self, x_BCYX: Tensor) -> Tensor:
        """Transform `[B, C, Y, X]`."""
        y = self.act1(self.norm1(self.conv1(x_BCYX)))
        y = self.gate(self.norm2(self.conv2(y)))
        return self.act2(y.add_(x_BCYX))  # type: ignore[no-any-return]


class PreBlock(nn.Module):
    """Pre-activation residual block (He et al. 2016, arXiv:1603.05027)."""

    def __init__(self, row: Preset) -> None:
        super().__init__()
        self.norm1 = Norm(row.width)
        self.act1 = ACTIVATIONS[row.activation]()
        self.conv1 = conv3(row.width, row.width)
        self.norm2 = Norm(row.width)
        self.act2 = ACTIVATIONS[row.activation]()
        self.conv2 = conv3(row.width, row.width)
        self.gate = GATES[row.gate](row)

    def forward(self, x_BCYX: Tensor) -> Tensor:
        """Transform `[B, C, Y, X]`."""
        y = self.conv1(self.act1(self.norm1(x_BCYX)))
        y = self.conv2(self.act2(self.norm2(y)))
        return self.gate(y) + x_BCYX  # type: ignore[no-any-return]


class Float32(nn.Module):
    """Run a layer in float32 even under autocast: bf16 logits would tie, which costs accuracy."""

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
    "none": lambda row: nn.Identity(),
    "scale": lambda row: Gate(row.width, row.squeeze, ACTIVATIONS[row.activation], bias=False),
    "affine": lambda row: Gate(row.width, row.squeeze, ACTIVATIONS[row.activation], bias=True),
}
