"""The table of networks: one frozen row for each system, so that a network is data and not a class."""

import difflib
from dataclasses import asdict, dataclass, fields
from functools import cache
from typing import Any

from engine.errors import UserError
from engine.views import view


class UnknownPresetError(UserError):
    """Name the preset that does not exist, and the one that was probably meant."""


class PresetError(UserError):
    """Name the field of a preset row that cannot be built."""


LARGEST = 4096
"""Sizes beyond this are refused: a row may come from a checkpoint that somebody else wrote."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """One network: which view it reads, its trunk, its heads and their sizes.

    The words in `block`, `activation`, `gate`, `policy` and `value` are keys of the tables in `model.parts`.
    """

    name: str
    """What the row is called on the command line and in a checkpoint's card."""
    view: str
    """Encoding of planes and labels that the network reads and answers in, a name of `engine.views`."""
    width: int
    """Channels of the trunk."""
    blocks: int
    """Residual blocks in the trunk."""
    block: str
    """Kind of residual block: `post` or `pre` activation."""
    activation: str
    """Nonlinearity everywhere but in the value's last layer."""
    gate: str
    """What ends each block's branch: `none`, `scale` (squeeze-and-excitation) or `affine` (the same, with a shift)."""
    squeeze: int
    """Hidden units of the gate, 0 with none."""
    policy: str
    """Kind of policy head: `planes` (a plane for each move type) or `linear` (bottleneck, then one linear layer)."""
    policy_width: int
    """Channels of the policy head's hidden convolution, 0 for none."""
    value: str
    """Kind of value head: `wdl` (three logits: win, draw, loss) or `tanh` (one expected score from -1 to 1)."""
    value_width: int
    """Channels of the value head's 1x1 convolution."""
    value_hidden: int
    """Hidden units of the value head."""

    def __post_init__(self) -> None:
        from model.parts import TABLES

        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, field.type) or isinstance(value, bool):  # type: ignore[arg-type]
                raise PresetError(f"preset field {field.name} is {value!r}, and must be a {field.type}")
        view(self.view)
        for name in ("width", "blocks", "value_width", "value_hidden"):
            if not 1 <= getattr(self, name) <= LARGEST:
                raise PresetError(f"preset {self.name}: {name} is {getattr(self, name)}, and must be in 1..{LARGEST}")
        for name in ("squeeze", "policy_width"):
            if not 0 <= getattr(self, name) <= LARGEST:
                raise PresetError(f"preset {self.name}: {name} is {getattr(self, name)}, and must be in 0..{LARGEST}")
        if self.gate != "none" and not self.squeeze:
            raise PresetError(f"preset {self.name}: a gate of kind {self.gate} needs squeeze, its hidden units")
        if self.policy == "linear" and not self.policy_width:
            raise PresetError(f"preset {self.name}: a linear policy needs policy_width, its bottleneck's channels")
        for name, table in TABLES.items():
            if getattr(self, name) not in table:
                known = ", ".join(sorted(table))
                raise PresetError(f"preset {self.name}: no {name} is called {getattr(self, name)!r}; there are {known}")


@cache
def presets() -> dict[str, Preset]:
    """Give every preset by name."""
    rows = (
        Preset(
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
        ),
        # The seed architecture: ChessMarro's network as it was published.
        Preset(
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
        ),
    )
    return {row.name: row for row in rows}


def preset(name: str) -> Preset:
    """Find a preset by name, or raise UnknownPresetError with the nearest name there is."""
    rows = presets()
    if name in rows:
        return rows[name]
    near = difflib.get_close_matches(name, rows, n=1, cutoff=0.4)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise UnknownPresetError(f"there is no preset {name!r}{hint} (presets: {', '.join(rows)})")


def preset_row(row: Preset) -> dict[str, Any]:
    """Write a preset as the plain values that a checkpoint's card holds."""
    return asdict(row)


def preset_from_row(row: object) -> Preset:
    """Rebuild a preset from a card's values, which may come from anybody: PresetError when they cannot be one."""
    if not isinstance(row, dict):
        raise PresetError("the preset is not an object of fields")
    names = {field.name for field in fields(Preset)}
    if row.keys() != names:
        strange = ", ".join(sorted(str(name) for name in row.keys() ^ names))
        raise PresetError(f"the preset's fields are not this version's; missing or unknown: {strange}")
    return Preset(**row)
