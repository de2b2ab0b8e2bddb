"""What a preset is: one frozen row that says everything of a network, checked; the rows stand in `model.network.presets`."""

from dataclasses import MISSING, asdict, dataclass, fields
from functools import cache
from typing import Any, Literal, get_args, get_type_hints

from engine.encoding.move_vocabularies import vocabulary
from engine.encoding.views import view
from engine.errors import UserError
from engine.json_files import shown


class PresetError(UserError):
    """Name the field of a preset row that cannot be built."""


LARGEST = 4096
"""Sizes beyond this are refused: a row may come from a checkpoint that somebody else wrote."""
MOST_BLOCKS = 128
"""Blocks likewise: each takes about 7 ms to build, whatever its size."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """One network: which view it reads, its trunk, its heads and their sizes.

    The words in `block`, `activation`, `gate`, `bias`, `policy`, `value` and the like are keys of the tables that
    `model.network.network` builds from. A field with a default came after the first checkpoints: they mean the default.
    """

    name: str
    """What the row is called on the command line and in a checkpoint's card."""
    view: str
    """Encoding of planes that the network reads, a name of `engine.encoding.views` with its options."""
    moves: str = "marro4096"
    """Move vocabulary that it answers in, a name of `engine.encoding.move_vocabularies`, in the frame of the view."""
    width: int
    """Channels of the trunk."""
    blocks: int
    """Blocks in the trunk."""
    block: Literal["post", "pre", "attention"]
    """Kind of block: `post` or `pre` activation residual, or `attention` over the 64 squares."""
    towers: int = 1
    """Trunks: 1 for all heads, or 2, one for the policy and one for the value."""
    activation: Literal["relu", "mish"]
    """Nonlinearity everywhere but in the value's last layer: `relu` or `mish`."""
    gate: Literal["none", "scale", "affine"]
    """What ends each residual branch: `none`, `scale` (squeeze-and-excitation) or `affine` (the same, with a shift)."""
    squeeze: int
    """Hidden units of the gate, 0 with none."""
    heads: int = 0
    """Attention heads of an attention block, 0 for other blocks."""
    feedforward: int = 0
    """Hidden units of an attention block's second half, 0 for other blocks."""
    bias: Literal["none", "relative", "geometric"] = "none"
    """What attention knows of geometry: `none`, `relative` (by offset) or `geometric` (by offset, pair and board)."""
    policy: Literal["planes", "linear", "factored", "attention"]
    """Kind of policy head: `planes` (one for each kind of move), `linear`, `factored` or `attention`."""
    policy_width: int
    """Channels of the policy head's hidden convolution, bottleneck or queries; 0 for no hidden convolution."""
    value: Literal["wdl", "tanh", "none"]
    """Kind of value: `wdl` (three logits: win, draw, loss), `tanh` (one expected score from -1 to 1) or `none`."""
    value_neck: Literal["flat", "pool"] = "flat"
    """How the value head leaves the board: `flat` (all squares) or `pool` (their mean)."""
    value_width: int
    """Channels of the value head's 1x1 convolution."""
    value_hidden: int
    """Hidden units of the value head."""
    moves_left: int = 0
    """Channels of a head that says how many half-moves the game will last, 0 for none."""
    condition: Literal["none", "ratings", "ratings_clock"] = "none"
    """What else is read: `none`, `ratings` (both players') or `ratings_clock` (and the mover's clock)."""
    condition_width: int = 0
    """Hidden units that read it, 0 with none."""
    facts_width: int = 0
    """Hidden units that score each legal move by its features (engine.evaluation.move_features); 0 to read none."""
    facts_layers: int = 1
    """Layers that score a legal move: 1, or 2, the second of which is shown what the first likes best in the position."""
    init: Literal["torch", "kaiming"] = "torch"
    """How fresh weights are drawn: `torch` (its defaults, residual branches from zero) or `kaiming`."""

    def __post_init__(self) -> None:
        choices = words()
        for field in fields(self):
            value, kind = getattr(self, field.name), str if field.name in choices else field.type
            assert isinstance(kind, type)
            if not isinstance(value, kind) or isinstance(value, bool):
                raise PresetError(f"preset field {field.name} is {shown(value)}, and must be of type {kind.__name__}")
        label = shown(self.name, quote=False)
        for name, known in choices.items():
            if getattr(self, name) not in known:
                there = ", ".join(sorted(known))
                raise PresetError(
                    f"preset {label}: no {name} is called {shown(getattr(self, name))}; there are {there}"
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
            ("heads", 0, LARGEST),
            ("feedforward", 0, 4 * LARGEST),
            ("moves_left", 0, LARGEST),
            ("condition_width", 0, LARGEST),
            ("facts_width", 0, LARGEST),
            ("facts_layers", 1, 2),
        ):
            if not low <= getattr(self, name) <= high:
                raise PresetError(f"preset {label}: {name} is {getattr(self, name)}, and must be in {low}..{high}")
        if self.gate != "none" and not self.squeeze:
            raise PresetError(f"preset {label}: a gate of kind {self.gate} needs squeeze, its hidden units")
        if self.condition != "none" and not self.condition_width:
            raise PresetError(f"preset {label}: a condition needs condition_width, its hidden units")
        if self.block == "attention" and (not self.feedforward or not self.heads or self.width % self.heads):
            raise PresetError(f"preset {label}: attention needs feedforward, and heads that divide its width")

    def _check_policy(self) -> None:
        label = shown(self.name, quote=False)
        moves = vocabulary(self.moves)
        if self.policy in ("linear", "attention") and not self.policy_width:
            raise PresetError(f"preset {label}: a {self.policy} policy needs policy_width")
        if self.facts_width and (moves.name != "marro4096" or view(self.view).absolute):
            raise PresetError(f"preset {label}: move features are of moves in marro4096 and the mover's view")
        answers = {
            "planes": moves.planes > 0,
            "linear": not moves.factored,
            "factored": moves.factored,
            "attention": moves.name == "fromto4096",
        }
        if not answers[self.policy]:
            raise PresetError(f"preset {label}: a {self.policy} policy cannot answer in {moves.name}")


@cache
def words() -> dict[str, tuple[str, ...]]:
    """Return the words that each field of a preset may hold, for the fields that hold one of a few."""
    return {name: get_args(kind) for name, kind in get_type_hints(Preset).items() if get_args(kind)}


def preset_row(row: Preset) -> dict[str, Any]:
    """Write a preset as the plain values that a checkpoint's card holds."""
    return asdict(row)


def preset_from_row(row: object) -> Preset:
    """Rebuild a preset from a card's values, which may come from anybody: PresetError when they cannot be one.

    Fields that came after the card was written may be missing: they have their defaults.
    """
    if not isinstance(row, dict):
        raise PresetError("the preset is not an object of fields")
    names = {field.name for field in fields(Preset)}
    needed = {field.name for field in fields(Preset) if field.default is MISSING}
    strange = sorted(str(name) for name in (row.keys() - names) | (needed - row.keys()))
    if strange:
        raise PresetError(
            f"the preset's fields are not this version's; missing or unknown: {shown(', '.join(strange), 200, quote=False)}"
        )
    return Preset(**row)


def changed_fields(mine: Preset, row: object) -> list[str]:
    """Name the fields in which a preset differs from the one that a card describes, PresetError when it describes none."""
    theirs = preset_row(preset_from_row(row))
    return [name for name, value in preset_row(mine).items() if theirs[name] != value]
