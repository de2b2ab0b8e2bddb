"""A preset: one frozen, validated row that defines a network; `model.network.presets` has the
rows.
"""

from dataclasses import MISSING, asdict, dataclass, fields
from functools import cache
from typing import Any, Literal, get_args, get_type_hints

from engine.encoding.move_vocabularies import vocabulary
from engine.encoding.views import view
from engine.errors import UserError
from engine.json_files import shown


class PresetError(UserError):
    """A field of a preset is invalid."""


LARGEST = 4096
"""Largest size of a layer; larger ones are refused, since a row may come from a hostile
checkpoint."""
MOST_BLOCKS = 128
"""Largest number of blocks; each takes about 7 ms to build, whatever its size."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """A network: its view, trunk and heads, and their sizes.

    The words in `block`, `activation`, `gate`, `policy`, `value` and the like are keys of the
    tables that `model.network.network` builds from.
    """

    name: str
    """Name of the row on the command line and in a checkpoint's card."""
    view: str
    """Planes that the network reads, a view of `engine.encoding.views` with its options."""
    moves: str = "marro4096"
    """Move vocabulary of the policy, of `engine.encoding.move_vocabularies`, in the frame of the
    view."""
    width: int
    """Channels of the trunk."""
    blocks: int
    """Blocks in the trunk."""
    block: Literal["post", "pre"]
    """Kind of residual block: `post` or `pre` activation."""
    towers: int = 1
    """Trunks: 1 for all heads, or 2, one for the policy and one for the value."""
    activation: Literal["relu", "mish"]
    """Nonlinearity everywhere but in the value's last layer: `relu` or `mish`."""
    gate: Literal["none", "scale", "affine"]
    """End of each residual branch: `none`, `scale` (squeeze-and-excitation) or `affine` (the same,
    with a shift)."""
    squeeze: int
    """Hidden units of the gate, 0 with none."""
    policy: Literal["planes", "linear", "factored"]
    """Policy head: `planes` (one for each type of move), `linear` or `factored`."""
    policy_width: int
    """Channels of the policy head's hidden convolution or bottleneck; 0 for no hidden
    convolution."""
    value: Literal["wdl", "tanh", "none"]
    """Value head: `wdl` (logits of win, draw, loss), `tanh` (one expected score from -1 to 1) or
    `none`."""
    value_neck: Literal["flat", "pool"] = "flat"
    """Input of the value head's hidden layer: `flat` (all squares) or `pool` (their mean)."""
    value_width: int
    """Channels of the value head's 1x1 convolution."""
    value_hidden: int
    """Hidden units of the value head."""
    moves_left: int = 0
    """Channels of the moves-left head, which predicts the half-moves to the game's end; 0 for
    none."""
    condition: Literal["none", "ratings", "ratings_clock"] = "none"
    """Conditioning: `none`, `ratings` (both players') or `ratings_clock` (and the mover's
    clock)."""
    condition_width: int = 0
    """Hidden units of the conditioning, 0 with none."""
    move_features_width: int = 0
    """Hidden units that score each legal move by its features (engine.evaluation.move_features), 0
    for none."""
    init: Literal["torch", "kaiming"] = "torch"
    """Initialization: `torch` (its defaults, residual branches from zero) or `kaiming`."""

    def __post_init__(self) -> None:
        choices = words()
        for field in fields(self):
            value, kind = getattr(self, field.name), str if field.name in choices else field.type
            assert isinstance(kind, type)
            if not isinstance(value, kind) or isinstance(value, bool):
                raise PresetError(
                    f"preset field {field.name} is {shown(value)}, and must be of type "
                    f"{kind.__name__}"
                )
        label = shown(self.name, quote=False)
        for name, known in choices.items():
            if getattr(self, name) not in known:
                there = ", ".join(sorted(known))
                raise PresetError(
                    f"preset {label}: {name} must be one of {there}, got "
                    f"{shown(getattr(self, name))}"
                )
        view(self.view)
        self._check_sizes()
        self._check_policy()

    def _check_sizes(self) -> None:
        label = shown(self.name, quote=False)
        for name, low, high in (
            ("width", 1, LARGEST),
            ("blocks", 1, MOST_BLOCKS),
            ("value_width", 1, LARGEST),
            ("value_hidden", 1, LARGEST),
            ("towers", 1, 2),
            ("squeeze", 0, LARGEST),
            ("policy_width", 0, LARGEST),
            ("moves_left", 0, LARGEST),
            ("condition_width", 0, LARGEST),
            ("move_features_width", 0, LARGEST),
        ):
            if not low <= getattr(self, name) <= high:
                raise PresetError(
                    f"preset {label}: {name} is {getattr(self, name)}, and must be in {low}..{high}"
                )
        if self.gate != "none" and not self.squeeze:
            raise PresetError(
                f"preset {label}: a gate of kind {self.gate} needs squeeze, its hidden units"
            )
        if self.condition != "none" and not self.condition_width:
            raise PresetError(
                f"preset {label}: a condition needs condition_width, its hidden units"
            )

    def _check_policy(self) -> None:
        label = shown(self.name, quote=False)
        moves = vocabulary(self.moves)
        if self.policy == "linear" and not self.policy_width:
            raise PresetError(f"preset {label}: a linear policy needs policy_width")
        if self.move_features_width and (moves.name != "marro4096" or view(self.view).absolute):
            raise PresetError(
                f"preset {label}: move features are of moves in marro4096 and the mover's view"
            )
        answers = {
            "planes": moves.planes > 0,
            "linear": not moves.factored,
            "factored": moves.factored,
        }
        if not answers[self.policy]:
            raise PresetError(
                f"preset {label}: a {self.policy} policy cannot answer in {moves.name}"
            )


@cache
def words() -> dict[str, tuple[str, ...]]:
    """Return the choices of each field that is a word."""
    return {name: get_args(kind) for name, kind in get_type_hints(Preset).items() if get_args(kind)}


def preset_row(row: Preset) -> dict[str, Any]:
    """Return a preset as the plain values of a checkpoint's card."""
    return asdict(row)


def preset_from_row(row: object) -> Preset:
    """Return the preset of a card's values, which may be hostile; PresetError when they are no
    preset.

    Fields with a default may be missing: a new field must have one, by which older checkpoints
    load.
    """
    if not isinstance(row, dict):
        raise PresetError("the preset is not an object of fields")
    required = {field.name for field in fields(Preset) if field.default is MISSING}
    unknown = row.keys() - {field.name for field in fields(Preset)}
    strange = sorted(map(str, unknown | (required - row.keys())))
    if strange:
        raise PresetError(
            f"the preset's fields are not this version's; missing or unknown: "
            f"{shown(', '.join(strange), 200, quote=False)}"
        )
    return Preset(**row)


def changed_fields(mine: Preset, row: object) -> list[str]:
    """Return the fields in which a preset differs from a card's; PresetError when the card's is no
    preset.
    """
    theirs = preset_from_row(row)
    return [
        field.name
        for field in fields(Preset)
        if getattr(mine, field.name) != getattr(theirs, field.name)
    ]
