"""One network class: a preset's stem, blocks and heads, put together.

Axes: B batch, P plane, C channels, Y row, X column, A label, V value outputs.
"""

import torch
from torch import Tensor, nn

from engine.views import view
from model.parts import ACTIVATIONS, BLOCKS, POLICY_HEADS, VALUE_HEADS, conv3
from model.presets import Preset


class Network(nn.Module):
    """Predict the move and the result from a position's planes."""

    def __init__(self, preset: Preset) -> None:
        super().__init__()
        self.preset = preset
        self.stem = nn.Sequential(conv3(view(preset.view).planes, preset.width), *self._after_stem(preset))
        self.blocks = nn.Sequential(*(BLOCKS[preset.block](preset) for _ in range(preset.blocks)))
        self.policy = POLICY_HEADS[preset.policy](preset)
        self.value = VALUE_HEADS[preset.value](preset)

    @staticmethod
    def _after_stem(preset: Preset) -> list[nn.Module]:
        """Norm and activate before post-activation blocks; pre-activation ones bring their own."""
        if preset.block == "pre":
            return []
        return [nn.BatchNorm2d(preset.width), ACTIVATIONS[preset.activation]()]

    def forward(self, planes_BPYX: Tensor) -> tuple[Tensor, Tensor]:
        """Give policy logits `[B, 4096]` in the labels of the preset's view, and the value.

        The value is the mover's: `[B, 3]` logits of win, draw and loss, or `[B, 1]` in -1..1, as the preset says.
        """
        x_BCYX = self.blocks(self.stem(planes_BPYX))
        return self.policy(x_BCYX), self.value(x_BCYX)


def build(preset: Preset, seed: int) -> Network:
    """Make a network with fresh weights that depend on the seed alone."""
    state = torch.get_rng_state()
    torch.manual_seed(seed)
    network = Network(preset)
    torch.set_rng_state(state)
    for parameter in network.parameters():
        if parameter.ndim == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    return network


def parameters(network: nn.Module) -> int:
    """Count trainable numbers."""
    return sum(parameter.numel() for parameter in network.parameters())
