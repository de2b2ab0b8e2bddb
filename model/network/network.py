"""One network class: a preset's stem, blocks and heads, put together; and the tables that a preset's words are looked up in.

Axes: B batch, P plane, C channels, Y row, X column, A index of the move vocabulary, V value outputs, N numbers of a
condition, M legal moves, F features.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from engine.encoding.views import view
from model.network.attention import AttentionBlock, LastNorm, Squares
from model.network.blocks import ACTIVATIONS, PostBlock, PreBlock, conv3
from model.network.conditioning import CONDITIONS, Condition, conditioned
from model.network.heads import (
    AttentionPolicy,
    FactoredPolicy,
    NoValue,
    Policy,
    linear_policy,
    moves_left_head,
    planes_policy,
    value_head,
)
from model.network.move_head import MoveFeatureStem, MoveHead, Moves
from model.network.preset import Preset

BLOCKS: Mapping[str, Callable[[Preset], nn.Module]] = {"post": PostBlock, "pre": PreBlock, "attention": AttentionBlock}
POLICY_HEADS: Mapping[str, Callable[[Preset], nn.Module]] = {
    "planes": planes_policy,
    "linear": linear_policy,
    "factored": FactoredPolicy,
    "attention": AttentionPolicy,
}
VALUE_HEADS: Mapping[str, Callable[[Preset], nn.Module]] = {
    "wdl": lambda row: value_head(row, 3, nn.Identity()),
    "tanh": lambda row: value_head(row, 1, nn.Tanh()),
    "none": lambda row: NoValue(),
}

Outputs = tuple[Policy, Tensor] | tuple[Policy, Tensor, Tensor]
"""Policy, value, and of a preset with `moves_left` the half-moves left `[B, 1]`."""


def input_names(row: Preset) -> tuple[str, ...]:
    """Name what a preset's network is called with."""
    conditions = ("conditions",) if CONDITIONS[row.condition] else ()
    return ("planes", *conditions, *(("moves", "facts") if row.facts_width else ()))


def _stem(row: Preset) -> nn.Sequential:
    """Build what comes before the blocks; pre-activation and pre-norm blocks bring their own norms."""
    planes = view(row.view).planes
    if row.block == "attention":
        return nn.Sequential(Squares(planes, row.width))
    convolution = conv3(planes, row.width)
    if row.block == "pre":
        return nn.Sequential(convolution)
    return nn.Sequential(convolution, nn.BatchNorm2d(row.width), ACTIVATIONS[row.activation]())


def _blocks(row: Preset) -> nn.Sequential:
    last = [LastNorm(row.width)] if row.block == "attention" else []
    return nn.Sequential(*(BLOCKS[row.block](row) for _ in range(row.blocks)), *last)


class Network(nn.Module):
    """Predict the move and the result from a position's planes."""

    def __init__(self, preset: Preset) -> None:
        super().__init__()
        self.preset = preset
        self.stem = _stem(preset)
        self.blocks = _blocks(preset)
        self.policy = POLICY_HEADS[preset.policy](preset)
        self.value = VALUE_HEADS[preset.value](preset)
        if preset.towers == 2:
            self.value_stem, self.value_blocks = _stem(preset), _blocks(preset)
        if preset.facts_width:
            self.facts_stem, self.move_head = MoveFeatureStem(preset), MoveHead(preset)
        if preset.moves_left:
            self.moves_left = moves_left_head(preset)
        if CONDITIONS[preset.condition]:
            names = CONDITIONS[preset.condition]
            self.condition = Condition(names, preset.condition_width, preset.width, 2 * preset.towers)
        if preset.init == "kaiming":
            self.apply(_kaiming)

    def forward(self, read: Tensor | Mapping[str, Tensor]) -> Outputs:
        """Return the policy in the preset's vocabulary and view, the value, and the moves left where the preset has them.

        `read` is planes `[B, P, Y, X]`, or a dict of `planes` and the preset's other inputs: `conditions` `[B, N]`; `moves`
        `[M]` and their features, `facts` `[M, F]` (engine.evaluation.move_features). Policy logits are `[B, A]` (of a factored
        head a pair, see `model.network.heads.Policy`). The value is the mover's: `[B, 3]` logits of win, draw and loss,
        `[B, 1]` in -1..1, or `[B, 0]`, as the preset says. Moves left are half-moves, `[B, 1]`.
        """
        given = {"planes": read} if isinstance(read, Tensor) else read
        assert given.keys() == set(input_names(self.preset)), "the inputs are not those that the preset reads"
        films = self.condition(given["conditions"]) if "conditions" in given else ()
        moves = Moves(given) if self.preset.facts_width else None
        x_BCYX = v_BCYX = self._trunk(self.stem, self.blocks, given["planes"], films[:4], moves)
        if self.preset.towers == 2:
            v_BCYX = self._trunk(self.value_stem, self.value_blocks, given["planes"], films[4:], moves)
        policy = self.policy(x_BCYX)
        if moves:
            policy = self.move_head(policy, x_BCYX, moves)
        left = (self.moves_left(v_BCYX),) if self.preset.moves_left else ()
        return policy, self.value(v_BCYX), *left

    def _trunk(
        self,
        stem: nn.Module,
        blocks: nn.Module,
        planes_BPYX: Tensor,
        films: tuple[Tensor, ...],
        moves: Moves | None,
    ) -> Tensor:
        """Run one tower: move features join behind its stem, conditions behind its stem and behind its blocks."""
        x_BCYX: Tensor = stem(planes_BPYX)
        if moves:
            x_BCYX = self.facts_stem(x_BCYX, moves)
        if films:
            x_BCYX = conditioned(x_BCYX, *films[:2])
        x_BCYX = blocks(x_BCYX)
        return conditioned(x_BCYX, *films[2:]) if films else x_BCYX


def _kaiming(module: nn.Module) -> None:
    """Draw a layer's weights by He et al. 2015 (arXiv:1502.01852), biases zero."""
    if isinstance(module, (nn.Conv2d, nn.Linear)):
        nn.init.kaiming_normal_(module.weight, mode="fan_in", nonlinearity="relu")
        if module.bias is not None:
            nn.init.zeros_(module.bias)


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
