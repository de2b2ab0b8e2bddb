"""Define `Preset`, the settings of a network; `model.network.presets` lists them."""

from dataclasses import asdict, fields
from typing import Annotated, Any, Literal

from pydantic import Field

from engine.encoding.move_vocabularies import vocabulary
from engine.encoding.views import view
from engine.errors import UserError
from engine.json_files import safe_text
from model.settings import settings


class PresetError(UserError):
    """A field of a preset is invalid."""


# Sizes are limited because a preset may come from a hostile checkpoint. The number of blocks has a
# lower limit because each takes about 7 ms to build, whatever its size.
Size = Annotated[int, Field(ge=1, le=4096)]
OptionalSize = Annotated[int, Field(ge=0, le=4096)]
Blocks = Annotated[int, Field(ge=1, le=128)]


@settings(PresetError)
class Preset:
    """A network's view, trunk and heads, and their sizes.

    The values of `block`, `activation`, `gate`, `policy` and `value` are keys of tables in
    `model.network`.
    """

    name: str
    """Name on the command line and in a checkpoint's card."""
    view: str
    """Planes that the network reads: a view of `engine.encoding.views` with its options."""
    moves: str = "marro4096"
    """Move vocabulary of the policy, from `engine.encoding.move_vocabularies`."""
    width: Size
    """Channels of the trunk."""
    blocks: Blocks
    """Blocks in the trunk."""
    block: Literal["post", "pre", "attention"]
    """Kind of residual block: two convolutions with `post`- or `pre`-activation, or an `attention`
    layer over the 64 squares with a feed-forward layer (GELU)."""
    heads: OptionalSize = 0
    """Attention heads of a block, a divisor of `width`; 0 without attention."""
    feed_forward: OptionalSize = 0
    """Hidden units of an attention block's feed-forward layer; 0 without attention."""
    towers: Annotated[int, Field(ge=1, le=2)] = 1
    """Number of trunks: 1 for all heads, or 2, one for the policy and one for the value."""
    activation: Literal["relu", "mish"]
    """Activation function: `relu` or `mish`."""
    gate: Literal["none", "scale", "affine"]
    """Gate of a residual branch: none, scale (squeeze-and-excitation), or affine (the same with a
    shift)."""
    squeeze: OptionalSize
    """Hidden units of the gate; 0 without a gate."""
    policy: Literal["planes", "linear", "factored"]
    """Policy head: `planes` (one per type of move), `linear`, or `factored` (first the from-square,
    then the to-square)."""
    policy_width: OptionalSize
    """Channels of the policy head's hidden convolution, or of a linear head's bottleneck; 0 for no
    hidden convolution."""
    value: Literal["wdl", "tanh", "none"]
    """Value head: wdl (three logits), tanh (a score from -1 to 1) or none."""
    value_neck: Literal["flat", "pool"] = "flat"
    """Input of the value head's hidden layer: `flat` (all squares) or `pool` (their mean)."""
    value_width: Size
    """Channels of the value head's 1x1 convolution."""
    value_hidden: Size
    """Hidden units of the value head."""
    moves_left: OptionalSize = 0
    """Channels of the head that predicts the half-moves left in the game; 0 for no head."""
    condition: Literal["none", "ratings", "ratings_speed", "ratings_clock"] = "none"
    """Conditioning: none, ratings (of both players), ratings_speed (ratings and the time control,
    base and increment), or ratings_clock (the same and the clock of the side to move)."""
    condition_width: OptionalSize = 0
    """Hidden units of the conditioning; 0 without conditioning."""
    move_features_width: OptionalSize = 0
    """Hidden units of the layers that score each legal move by its features; 0 for no layers."""
    init: Literal["torch", "kaiming"] = "torch"
    """Initialization of convolutions and linear layers: `torch` (its defaults, except for layers
    that start at zero) or `kaiming`."""

    def __post_init__(self) -> None:
        if problem := self._find_problem():
            raise PresetError(f"preset {safe_text(self.name, quote=False)}: {problem}")

    def _find_problem(self) -> str | None:
        """Describe fields that do not fit together; None if all do.

        Raises UnknownVocabularyError and UnknownViewError.
        """
        moves, is_absolute = vocabulary(self.moves), view(self.view).is_absolute
        if self.block == "attention":
            if not (self.heads and self.feed_forward):
                return "attention needs heads and feed_forward, its hidden units"
            if self.width % self.heads:
                return "heads must divide width"
            if self.gate != "none":
                return "attention has no gate: set gate='none'"
        if self.gate != "none" and not self.squeeze:
            return "gate needs squeeze, the number of its hidden units"
        if self.condition != "none" and not self.condition_width:
            return "condition needs condition_width, the number of its hidden units"
        if self.policy == "linear" and not self.policy_width:
            return "policy=linear needs policy_width"
        if self.move_features_width and (moves.name != "marro4096" or is_absolute):
            return "move features need the vocabulary marro4096 and the view of the side to move"
        if (self.policy == "factored") != moves.factored or (
            self.policy == "planes" and not moves.planes
        ):
            return f"a {self.policy} policy cannot use the vocabulary {moves.name}"
        return None


def preset_to_dict(preset: Preset) -> dict[str, Any]:
    """Return a preset as plain values, for a checkpoint's card."""
    return asdict(preset)


def preset_from_dict(values: object) -> Preset:
    """Build a preset from a card's values, which are not trusted; raise PresetError if invalid.

    Fields with a default may be missing. A new field must have a default, so that older checkpoints
    load.
    """
    if not isinstance(values, dict):
        raise PresetError("the preset must be a JSON object")
    if unknown := values.keys() - {field.name for field in fields(Preset)}:
        names = safe_text(", ".join(sorted(map(str, unknown))), 200, quote=False)
        raise PresetError(
            f"the preset has unknown fields, perhaps from a newer version of Fianchetto: {names}"
        )
    return Preset(**values)


def changed_fields(preset: Preset, values: object) -> list[str]:
    """Return the fields that differ from a card's preset; raise PresetError if that is invalid."""
    saved = preset_to_dict(preset_from_dict(values))
    return [name for name, value in preset_to_dict(preset).items() if value != saved[name]]
