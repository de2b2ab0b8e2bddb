"""Build a network from a preset: encoder, trunk and decoder.

    rows -> encoder: planes, conditions, moves -> stem, blocks -> heads, decoder -> `Prediction`

Axes: B batch, P plane, C channels, Y row, X column.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from engine.encoding.views import view
from model.network import decoder, encoder
from model.network.blocks import (
    ACTIVATIONS,
    AttentionBlock,
    Norm,
    PostBlock,
    PreBlock,
    SquareEmbedding,
    conv3,
)
from model.network.preset import Preset

BLOCKS: Mapping[str, Callable[[Preset], nn.Module]] = {
    "post": PostBlock,
    "pre": PreBlock,
    "attention": AttentionBlock,
}
"""Builders by a preset's `block`; the tables below are by `policy` and `value`."""
POLICY_HEADS: Mapping[str, Callable[[Preset], nn.Module]] = {
    "planes": decoder.planes_policy,
    "linear": decoder.linear_policy,
    "factored": decoder.FactoredPolicy,
}
VALUE_HEADS: Mapping[str, Callable[[Preset], nn.Module]] = {
    "wdl": lambda preset: decoder.value_head(preset, 3),
    "tanh": lambda preset: decoder.value_head(preset, 1),
    "none": lambda preset: nn.Identity(),
}


def _build_stem(preset: Preset) -> nn.Sequential:
    """Build the layers before the blocks; a pre-activation block starts with its own norm."""
    convolution = conv3(view(preset.view).planes, preset.width)
    if preset.block == "pre":
        return nn.Sequential(convolution)
    stem = nn.Sequential(convolution, Norm(preset.width), ACTIVATIONS[preset.activation]())
    return stem.append(SquareEmbedding(preset.width)) if preset.block == "attention" else stem


def _build_blocks(preset: Preset) -> nn.Sequential:
    return nn.Sequential(*(BLOCKS[preset.block](preset) for _ in range(preset.blocks)))


class Network(nn.Module):
    """Policy-value network: predicts the move and the result of a position."""

    def __init__(self, preset: Preset) -> None:
        super().__init__()
        self.preset = preset
        self.stem = _build_stem(preset)
        self.blocks = _build_blocks(preset)
        self.policy = POLICY_HEADS[preset.policy](preset)
        self.value = VALUE_HEADS[preset.value](preset)
        if preset.towers == 2:
            self.value_stem, self.value_blocks = _build_stem(preset), _build_blocks(preset)
        if preset.move_features_width:
            self.move_feature_stem = encoder.MoveFeatureStem(preset)
            self.move_head = decoder.MoveHead(preset)
        if preset.moves_left:
            self.moves_left = decoder.moves_left_head(preset)
        if names := encoder.CONDITIONS[preset.condition]:
            layers = 2 * preset.towers  # the stem's output and the last block's
            self.condition = encoder.Condition(names, preset.condition_width, preset.width, layers)
        if preset.init == "kaiming":
            self.apply(_initialize_kaiming)

    def forward(self, rows: encoder.Rows) -> decoder.Prediction:
        """Return the predictions for the rows, for the side to move."""
        planes_BPYX, conditions_BN, moves = encoder.encode(self.preset, rows)
        films = () if conditions_BN is None else self.condition(conditions_BN)
        x_BCYX = v_BCYX = self._trunk(self.stem, self.blocks, planes_BPYX, films[:4], moves)
        if self.preset.towers == 2:
            v_BCYX = self._trunk(self.value_stem, self.value_blocks, planes_BPYX, films[4:], moves)
        policy = self.policy(x_BCYX)
        if moves:
            policy = self.move_head(policy, x_BCYX, moves)
        logits_BA = decoder.flatten_policy(policy)
        return decoder.Prediction(
            decoder.order_by_label(self.preset, logits_BA, rows["planes"]),
            decoder.log_wdl(self.preset.value, self.value(v_BCYX)),
            self.moves_left(v_BCYX).float()[:, 0] if self.preset.moves_left else None,
        )

    def _trunk(
        self, stem: nn.Module, blocks: nn.Module, planes_BPYX: Tensor, films: Any, moves: Any
    ) -> Tensor:
        """Return a trunk's output; `films` are scales and shifts after the stem and the blocks."""
        x_BCYX: Tensor = stem(planes_BPYX)
        if moves:
            x_BCYX = self.move_feature_stem(x_BCYX, moves)
        if films:
            x_BCYX = encoder.scale_and_shift(x_BCYX, *films[:2])
        x_BCYX = blocks(x_BCYX)
        return encoder.scale_and_shift(x_BCYX, *films[2:]) if films else x_BCYX


def _initialize_kaiming(module: nn.Module) -> None:
    """Initialize a layer as in He et al. 2015 (arXiv:1502.01852), with zero biases."""
    if isinstance(module, (nn.Conv2d, nn.Linear)):
        nn.init.kaiming_normal_(module.weight, mode="fan_in", nonlinearity="relu")
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def build(preset: Preset, seed: int) -> Network:
    """Build a network with initial weights that depend only on the preset and seed."""
    state = torch.get_rng_state()
    torch.manual_seed(seed)
    network = Network(preset)
    torch.set_rng_state(state)
    for parameter in network.parameters():
        if parameter.ndim == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    return network


def count_parameters(network: nn.Module) -> int:
    """Return the number of trainable parameters."""
    return sum(parameter.numel() for parameter in network.parameters())
