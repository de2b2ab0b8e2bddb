"""Configuration of a search, also as a named tuple for compiled code."""

import sys
from collections import namedtuple
from dataclasses import dataclass, fields
from typing import Any, Literal, cast

from engine.errors import UserError


class SearchError(UserError):
    """An invalid configuration or call of a search, or an invalid result of its evaluator."""


SearchParams = Any
"""Named tuple for compiled code: `gumbel` (bool), and the fields of SearchConfig that it reads."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchConfig:
    """Settings of a search.

    Defaults follow lc0 (c_puct, first-play urgency), KataGo (c_stdev) and mctx (Gumbel). All other
    options are off by default.
    """

    algorithm: Literal["puct", "gumbel"] = "puct"
    """puct (AlphaZero), or gumbel: Sequential Halving at the root (Danihelka et al. 2022)."""
    simulations: int = 64
    """Simulations per searched position."""
    nodes: int = 0
    """Maximum number of positions in a game's tree; 0 for three times the simulations plus 16."""
    leaves: int = 1
    """Leaves of one tree evaluated per batch. More leaves fill larger batches, but weaken play
    at the same number of simulations."""
    c_puct: float = 1.745
    """Weight of the exploration term (puct)."""
    c_base: float = 38739.0
    """Visits at which exploration begins to grow logarithmically (puct)."""
    c_factor: float = 3.894
    """Weight of the logarithmic growth of exploration; 0 for none (puct)."""
    c_stdev: float = 0.85
    """How much a node's exploration depends on the standard deviation of its values; 0 ignores it
    (puct; KataGo's cpuctUtilityStdevScale)."""
    fpu_reduction: float = 0.33
    """First-play urgency: an unvisited move has its parent's value, minus fpu_reduction * sqrt(sum
    of visited moves' priors) (puct)."""
    policy_temperature: float = 1.4
    """Softmax temperature of the policy at every node; above 1 is flatter (lc0: 1.36)."""
    dirichlet_fraction: float = 0.0
    """Fraction of Dirichlet noise in the root's priors (puct; AlphaZero's self-play: 0.25)."""
    dirichlet_alpha: float = 0.3
    """Concentration of the Dirichlet noise; values below 1 favor a few moves (puct)."""
    max_considered_actions: int = 16
    """Maximum number of moves considered at the root (gumbel; mctx: max_num_considered_actions)."""
    gumbel_scale: float = 1.0
    """Scale of the Gumbel noise; 0 for none, as matches use by default (gumbel)."""
    value_scale: float = 0.1
    """Weight of completed Q-values relative to the logits (gumbel; as in mctx)."""
    rescale_values: bool = True
    """Rescale each node's Q-values to 0..1, as mctx does (gumbel). Otherwise, small differences in
    value hardly change the policy."""
    widening_factor: float = 0.0
    """Progressive widening: search only the widening_factor * sqrt(visits) moves with the highest
    priors, unless all of them lose; 0 searches all (puct)."""
    top_k: int = 0
    """Search only the top_k moves with the highest priors, unless all of them lose; 0 searches all
    (puct)."""
    tail_mass: float = 0.0
    """Skip the least likely moves, up to this total prior, unless all others lose; 0 skips none
    (puct)."""
    repetition_penalty: float = 0.0
    """Amount subtracted from the value (-1 to 1) of root moves that repeat a position."""
    early_stop: bool = False
    """Stop when the most visited root move can no longer be overtaken (puct)."""
    dominance: float = 0.0
    """Stop once half of the simulations are done and a root move has at least this share of the
    visits; 0 never stops (puct)."""
    branching_exponent: float = 0.0
    """Multiply the simulations by (legal moves / 30) ** branching_exponent, clipped to 0.25..2; 0
    is off."""
    endgame_factor: float = 1.0
    """Multiply the simulations by a factor that falls linearly from 1 (all pieces on the board) to
    this value (only kings); 1 is off."""

    def __post_init__(self) -> None:
        if self.algorithm not in ("puct", "gumbel"):
            raise SearchError(f"algorithm must be puct or gumbel, not {self.algorithm!r}")
        for names, bounds, minimum, maximum in _BOUNDS:
            for name in names.split():
                value = getattr(self, name)
                if not minimum <= value <= maximum:
                    raise SearchError(f"{name} must be {bounds}, not {value}")

    @property
    def capacity(self) -> int:
        """Return the maximum number of nodes of a game's tree."""
        return self.nodes or 3 * self.simulations + 16

    def params(self) -> SearchParams:
        """Return the settings that compiled code reads."""
        # Numba compiles again for each type, so every value gets the type of its default
        numbers = [kind(getattr(self, name)) for name, kind in _COMPILED_TYPES.items()]
        return _ParamsTuple(self.algorithm == "gumbel", *numbers)


_ABOVE_0, _MAX = sys.float_info.min, sys.float_info.max
_BOUNDS = (
    ("simulations leaves max_considered_actions", "at least 1", 1, _MAX),
    ("nodes top_k", "at least 0", 0, _MAX),
    ("policy_temperature dirichlet_alpha c_base", "above 0 and finite", _ABOVE_0, _MAX),
    ("c_stdev dirichlet_fraction tail_mass dominance endgame_factor", "between 0 and 1", 0, 1),
    ("c_puct c_factor fpu_reduction gumbel_scale value_scale", "0 or more and finite", 0, _MAX),
    ("widening_factor repetition_penalty branching_exponent", "0 or more and finite", 0, _MAX),
)
"""Fields, their bounds in words, and their minimum and maximum."""
_NOT_COMPILED = ("algorithm", "simulations", "nodes", "leaves")
_COMPILED_TYPES: dict[str, Any] = {
    field.name: type(field.default)
    for field in fields(SearchConfig)
    if field.name not in _NOT_COMPILED
}
_ParamsTuple = cast("Any", namedtuple("_ParamsTuple", ["gumbel", *_COMPILED_TYPES]))
