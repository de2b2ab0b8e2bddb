"""How positions are drawn from datasets, and how a checkpoint searches them."""

from dataclasses import dataclass, field
from typing import Literal, get_args

from engine.errors import UserError
from engine.search import SearchConfig


class ReanalyseError(UserError):
    """A reanalysis that cannot be begun, continued or finished; the positions that were searched are kept."""


PHASES = ("opening", "middlegame", "endgame")
"""By the half-moves played and the pieces that are left: `pipeline.reanalyse.draw.phase_of`."""


def _search() -> SearchConfig:
    # Of the searches that `fianchetto judge` compared, this one's policy lost least for its evaluations (docs/findings.md).
    return SearchConfig(
        algorithm="gumbel",
        simulations=128,
        max_considered_actions=16,
        gumbel_scale=0.0,
        policy_temperature=1.0,
        value_scale=1.0,
        rescale_values=False,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class ReanalyseConfig:
    """A reanalysis; all of it is in the manifest, and a directory begun otherwise is refused."""

    count: int = 20_000
    """Positions to search; fewer where the datasets hold fewer."""
    seed: int = 0
    """Seed of the drawing of positions and of the searches."""
    a_game: int = 1
    """Most positions of one game: values of one game's positions are nearly one value."""
    first_ply: int = 6
    """Half-moves of a game before its first position that may be drawn."""
    phases: tuple[float, ...] = (0.2, 0.5, 0.3)
    """Weights of opening, middlegame and endgame among the positions drawn."""
    decided: float = 0.25
    """Weight of a position that an engine's evaluation calls decided (3 pawns and more), beside 1 of any other."""
    moved: float = 0.25
    """Share of the positions that are searched after more moves, drawn from the checkpoint's policy."""
    moved_plies: int = 1
    """Most moves drawn for a position; their number is uniform from 1 to this."""
    moved_temperature: float = 1.0
    """Temperature of the policy from which these moves are drawn."""
    interior: int = 0
    """Visits of a node within the tree that make it a row too, which teaches a value and no moves; 0 for roots alone."""
    search: SearchConfig = field(default_factory=_search)
    """How each position is searched."""
    width: int = 64
    """Positions that each process searches side by side, one batch of evaluations for all: 64 suits a core, 1024 a GPU."""
    cache_mib: int = 8
    """MiB of the evaluation cache of each such group; 0 for none."""
    device: Literal["auto", "cpu", "cuda", "onnx"] = "auto"
    """Where the network runs: auto, cpu, cuda, or onnx: on the processor by onnxruntime, from the checkpoint's model.onnx, the
    fastest on a CPU when exported with `--int8`. A fine-tune exports its networks itself."""
    amp: Literal["auto", "bf16", "fp16", "off"] = "auto"
    """The network's arithmetic: auto, bf16, fp16 or off."""

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        for name, (least, most) in _RANGES.items():
            if not least <= getattr(self, name) <= most:
                raise ReanalyseError(f"{name} must be from {least} to {most}, not {getattr(self, name)}")
        for name in ("device", "amp"):
            if getattr(self, name) not in (known := get_args(self.__annotations__[name])):
                raise ReanalyseError(f"{name} is one of {', '.join(known)}, not {getattr(self, name)!r}")
        if self.device == "onnx" and self.amp != "auto":
            raise ReanalyseError("with the device onnx amp is auto: the arithmetic was chosen by `fianchetto export`")
        whole = sum(self.phases)
        if len(self.phases) != len(PHASES) or not all(share >= 0.0 for share in self.phases) or not 0.0 < whole < 1e6:
            raise ReanalyseError(f"phases are {len(PHASES)} weights of 0 or more: {', '.join(PHASES)}")

    @property
    def uses_network(self) -> bool:
        """Return whether a checkpoint is needed: always."""
        return True

    @property
    def blocks(self) -> int:
        """Return how many groups of `width` positions there are at most."""
        return -(-self.count // self.width)


_RANGES: dict[str, tuple[float, float]] = {
    "count": (1, 10**9),
    "seed": (0, 2**32 - 1),
    "a_game": (1, 10**4),
    "first_ply": (0, 10**4),
    "decided": (0.0, 1.0),
    "moved": (0.0, 1.0),
    "moved_plies": (1, 100),
    "moved_temperature": (0.01, 100.0),
    "interior": (0, 10**6),
    "width": (1, 10**5),
    "cache_mib": (0, 10**5),
}
"""The settings that are numbers: least and most."""
