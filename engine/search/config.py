"""The configuration of a search: one frozen dataclass, and the same as plain numbers for compiled code."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from engine.errors import UserError


class SearchError(UserError):
    """A configuration that makes no search, or a question that makes no sense."""


class SearchParams(NamedTuple):
    """The settings that compiled code reads; each has one type, so that kernels are compiled once."""

    gumbel: bool
    virtual_loss: float
    c_puct: float
    c_base: float
    c_factor: float
    fpu_reduction: float
    policy_temperature: float
    root_temperature: float
    dirichlet_fraction: float
    dirichlet_alpha: float
    max_considered_actions: int
    gumbel_scale: float
    value_scale: float
    maxvisit_init: float
    rescale_values: bool
    widening_factor: float
    widening_exponent: float
    top_k: int
    tail_mass: float
    repetition_penalty: float
    early_stop: bool
    dominance: float
    branching_exponent: float
    endgame_factor: float


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchConfig:
    """How to search.

    Defaults follow lc0 (c_puct, first-play urgency) and mctx (Gumbel); everything else is off by default.
    """

    algorithm: Literal["puct", "gumbel"] = "puct"
    """puct (AlphaZero), or gumbel: Sequential Halving at the root (Danihelka et al. 2022)."""
    simulations: int = 64
    """Simulations per move."""
    nodes: int = 0
    """Most positions in a game's tree; 0 for three times the simulations."""
    leaves: int = 1
    """Leaves of one tree that are evaluated together: more of them fill batches and cost strength at equal simulations."""
    virtual_loss: float = 1.0
    """Value that a visit in flight takes off a move, where `leaves` is more than one (puct)."""
    c_puct: float = 1.745
    """Weight of exploration by priors."""
    c_base: float = 38739.0
    """Visits at which exploration begins to grow logarithmically."""
    c_factor: float = 3.894
    """Strength of that growth; 0 for none."""
    fpu_reduction: float = 0.33
    """First-play urgency: an unvisited move has its parent's value less this times sqrt(sum of the visited moves' priors)."""
    policy_temperature: float = 1.4
    """Temperature of the evaluator's policy everywhere in the tree; above 1 is flatter (lc0: 1.36)."""
    root_temperature: float = 1.0
    """Temperature of the root's priors, on top of the other."""
    dirichlet_fraction: float = 0.0
    """Fraction of Dirichlet noise in the root's priors (puct; AlphaZero's self-play: 0.25)."""
    dirichlet_alpha: float = 0.3
    """Concentration of that noise."""
    max_considered_actions: int = 16
    """Most moves considered at the root (gumbel; mctx: max_num_considered_actions)."""
    gumbel_scale: float = 1.0
    """Scale of the Gumbel noise; 0 for none, the default of matches and judgements."""
    value_scale: float = 0.1
    """Weight of completed Q-values against logits (gumbel; as in mctx)."""
    maxvisit_init: float = 50.0
    """Added to the largest visit count in that weight (gumbel; as in mctx)."""
    rescale_values: bool = True
    """Rescale a position's Q-values to 0..1 before that weight, as mctx does (gumbel). Without it they are expected scores,
    and the policy stays as it is where all moves are alike."""
    widening_factor: float = 0.0
    """Progressive widening: only the first `widening_factor * visits ** widening_exponent` moves by prior; 0 for all."""
    widening_exponent: float = 0.5
    """Exponent of progressive widening."""
    top_k: int = 0
    """Only the first k moves by prior, unless all of them lose; 0 for all."""
    tail_mass: float = 0.0
    """Leave out the least likely moves, up to this sum of priors, unless all others lose."""
    repetition_penalty: float = 0.0
    """Value taken off root moves that repeat a position of the game."""
    early_stop: bool = False
    """Stop when the most visited root move can no longer be overtaken (puct)."""
    dominance: float = 0.0
    """Stop when one root move has this share of at least half the budget's visits; 0 for never (puct)."""
    branching_exponent: float = 0.0
    """Multiply the simulations of a move by (legal moves / 30) ** this, at least 0.25 and at most 2; 0 turns it off."""
    endgame_factor: float = 1.0
    """Multiply the simulations by this when only the kings are left, by 1 when all pieces are there, linearly between."""
    reuse: bool = True
    """Keep the subtree of the move that is played."""

    def __post_init__(self) -> None:
        """Raise SearchError for values out of range."""
        if self.algorithm not in ("puct", "gumbel"):
            raise SearchError(f"algorithm is puct or gumbel, not {self.algorithm!r}")
        for name, least in (
            ("simulations", 1),
            ("nodes", 0),
            ("leaves", 1),
            ("max_considered_actions", 1),
            ("top_k", 0),
        ):
            if getattr(self, name) < least:
                raise SearchError(f"{name} must be at least {least}, not {getattr(self, name)}")
        for name in ("policy_temperature", "root_temperature", "dirichlet_alpha", "c_base"):
            if not getattr(self, name) > 0.0:
                raise SearchError(f"{name} must be above 0, not {getattr(self, name)}")
        for name in ("dirichlet_fraction", "tail_mass", "dominance", "endgame_factor"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise SearchError(f"{name} must be between 0 and 1, not {getattr(self, name)}")
        for name in (
            *("virtual_loss", "c_puct", "c_factor", "fpu_reduction", "gumbel_scale", "value_scale", "maxvisit_init"),
            *("widening_factor", "widening_exponent", "repetition_penalty", "branching_exponent"),
        ):
            if not 0.0 <= getattr(self, name) < float("inf"):
                raise SearchError(f"{name} must be 0 or more, not {getattr(self, name)}")

    @property
    def capacity(self) -> int:
        """Return the most nodes of a game's tree."""
        return self.nodes or 3 * self.simulations + 16

    def params(self) -> SearchParams:
        """Return the settings for compiled code."""
        derived = {"gumbel": self.algorithm == "gumbel", "virtual_loss": self.virtual_loss * (self.leaves > 1)}
        kinds = SearchParams.__annotations__.items()  # int settings may hold floats and the other way round
        return SearchParams(**{name: kind(derived.get(name, getattr(self, name, None))) for name, kind in kinds})
