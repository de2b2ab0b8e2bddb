"""The table of presets: this project's own networks, and the systems that it reproduces.

The reproduced systems follow their published descriptions. If a description omits a size, a comment
states our choice. The project's own networks of more than a million parameters are meant for a GPU
and have not been trained yet.
"""

from dataclasses import replace
from functools import cache

from engine.errors import UserError, suggest_name
from model.network.preset import Preset


class UnknownPresetError(UserError):
    """There is no preset with that name."""


def _fianchetto() -> tuple[Preset, ...]:
    xs = Preset(
        name="fianchetto-xs",
        view="marro77",
        width=64,
        blocks=6,
        block="post",
        activation="relu",
        gate="affine",
        squeeze=16,
        policy="planes",
        policy_width=0,
        value="wdl",
        value_width=16,
        value_hidden=64,
    )
    # xs conditioned on both players' ratings, without gates. In an hour of training on two cores,
    # the 13 % of the time that gates take is better spent on more positions. A search does not know
    # the ratings, which is why training hides them in some rows.
    rated = replace(
        xs, name="fianchetto-rated", gate="none", squeeze=0, condition="ratings", condition_width=32
    )
    # For predicting human moves. It reads the last eight half-moves, and move features in place of
    # the planes of legal moves. Each legal move is scored in comparison with the other moves.
    human = replace(
        rated, name="fianchetto-human", view="marro13+last8+attacks", move_features_width=128
    )
    # With attention over the squares, for a GPU. In a pilot of 27 November 2026, a network like
    # human-m reached 0.515 top-1 on RAPID after 150 seconds on an H100, where the embedded network
    # has 0.510 (docs/guides/hardware.md). On a CPU, a convolutional network of the same cost
    # learned as much in 0.6 times the time. human-l has not been trained.
    human_m = replace(
        human,
        name="fianchetto-human-m",
        width=256,
        blocks=8,
        block="attention",
        heads=8,
        feed_forward=512,
        condition="ratings_speed",
        value_width=32,
        value_hidden=128,
        condition_width=64,
    )
    human_l = replace(
        human_m,
        name="fianchetto-human-l",
        width=384,
        blocks=15,
        heads=12,
        feed_forward=768,
        condition_width=128,
    )
    # In published results, ratings lower the cross-entropy by 0.067 nats and clocks by 0.007.
    # Castling rights and the en-passant file are no inputs: the 77 planes include all legal moves.
    s = replace(
        xs,
        name="fianchetto-s",
        width=128,
        blocks=8,
        squeeze=32,
        value_width=32,
        value_hidden=128,
        moves_left=4,
        condition="ratings_clock",
        condition_width=64,
    )
    m = replace(
        s,
        name="fianchetto-m",
        width=192,
        blocks=12,
        squeeze=48,
        value_hidden=256,
        condition_width=128,
    )
    large = replace(m, name="fianchetto-l", width=320, blocks=15, squeeze=64)
    return xs, rated, human, human_m, human_l, s, m, large


def _chessmarro() -> tuple[Preset, ...]:
    # the published network has six blocks, a later version twelve
    six = Preset(
        name="chessmarro",
        view="chessmarro77",
        width=256,
        blocks=6,
        block="pre",
        activation="mish",
        gate="scale",
        squeeze=16,
        policy="linear",
        policy_width=32,
        value="tanh",
        value_width=32,
        value_hidden=256,
    )
    return six, replace(six, name="chessmarro-12", blocks=12)


def _plane_systems() -> tuple[Preset, ...]:
    """Return the systems with 18 or 19 planes: post-activation blocks, value in -1..1 or none."""
    # The description has two networks, one with a 64 x 64 policy and one with a value. Our choices:
    # width, blocks, the bottleneck, and the value's hidden units.
    bishop = Preset(
        name="bishop",
        view="planes18",
        moves="fromto4096",
        width=64,
        blocks=6,
        block="post",
        towers=2,
        activation="relu",
        gate="none",
        squeeze=0,
        policy="linear",
        policy_width=8,
        value="tanh",
        value_width=16,
        value_hidden=128,
    )
    # The description has a convolution, 19 blocks and AlphaZero's heads: the policy has a
    # convolution before its 73 planes, and the value one channel and 256 hidden units.
    alphazero = replace(
        bishop,
        name="alphazero19",
        view="planes19",
        moves="az4672",
        width=256,
        blocks=19,
        towers=1,
        policy="planes",
        policy_width=256,
        value_width=1,
        value_hidden=256,
    )
    # The description says 1 to 2 million parameters, but 8 blocks of 64 channels with plain 1x1
    # heads have 0.6 million. Our choice: a hidden 3x3 convolution before the 73 planes makes up the
    # difference.
    chess_policy = replace(
        alphazero,
        name="chess-policy",
        view="planes18",
        width=64,
        blocks=8,
        policy_width=768,
        value_neck="pool",
        value_width=32,
        value_hidden=32,
    )
    self_learning = replace(
        bishop,
        name="self-learning",
        moves="factored",
        towers=1,
        policy="factored",
        policy_width=0,
        value_width=16,
        value_hidden=128,
        init="kaiming",
    )
    policy_only = replace(chess_policy, name="chess-policy-only", value="none")
    return bishop, alphazero, chess_policy, policy_only, self_learning


@cache
def presets() -> dict[str, Preset]:
    """Return all presets by name."""
    table = (*_fianchetto(), *_chessmarro(), *_plane_systems())
    assert len({preset.name for preset in table}) == len(table)
    return {preset.name: preset for preset in table}


def preset(name: str) -> Preset:
    """Return the preset with this name; raise UnknownPresetError if there is none."""
    if name not in presets():
        raise UnknownPresetError(f"unknown preset {name[:60]!r}: {suggest_name(name, presets())}")
    return presets()[name]
