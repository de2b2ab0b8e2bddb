"""The configuration of a search: one frozen dataclass, and the same as plain numbers for compiled code."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from engine.errors import UserError


class SearchError(UserError):
    """A configuration that makes no search, or a question that makes no sense."""


class SearchParams(NamedTuple):
    """The numbers of a SearchConfig that compiled code reads; one type, so one compilation."""

    gumbel: bool
    c_puct: float
    c_base: float
    c_factor: float
    fpu_reduction: float
    temperature: float
    value_scale: float
    maxvisit_init: float
    value_rescale: bool
    virtual_loss: float
    widening: float
    widening_power: float
    top_k: int
    tail: float
    early_stop: bool
    dominance: float


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchConfig:
    """How to search.

    Defaults follow lc0 (c_puct, first-play urgency) and mctx (Gumbel); what is not theirs is off until it is asked for.
    """

    algorithm: Literal["puct", "gumbel"] = "puct"
    """puct: AlphaZero's rule; gumbel: Gumbel top-m with Sequential Halving at the root (Danihelka et al. 2022)."""
    simulations: int = 64
    """Simulations of a move."""
    nodes: int = 0
    """Most positions that a game's tree holds; 0 for three times the simulations."""
    leaves: int = 1
    """Leaves of one tree in a round; more than one costs strength at equal simulations and fills batches."""
    virtual_loss: float = 1.0
    """Virtual loss of a leaf that waits for its value, where `leaves` is more than one (puct)."""
    c_puct: float = 1.745
    """Weight of exploration by priors."""
    c_base: float = 38739.0
    """Visits at which the logarithmic growth of exploration sets in."""
    c_factor: float = 3.894
    """Strength of that growth; 0 for none."""
    fpu_reduction: float = 0.33
    """First-play urgency: an unvisited move is worth its parent's value less this times sqrt(sum of the visited priors)."""
    policy_temperature: float = 1.4
    """Temperature of the evaluator's policy in every position of the tree; above 1 is flatter (lc0 has 1.36)."""
    root_temperature: float = 1.0
    """Temperature of the priors at the root, on top of the other."""
    dirichlet_share: float = 0.0
    """Share of Dirichlet noise in the root's priors (puct); AlphaZero's self-play has 0.25."""
    dirichlet_alpha: float = 0.3
    """Concentration of that noise."""
    considered: int = 16
    """Moves considered at the root (gumbel; mctx: max_num_considered_actions)."""
    gumbel_scale: float = 1.0
    """Scale of the Gumbel noise; 0 takes the best moves without noise, the default of matches and judgements."""
    value_scale: float = 0.1
    """Weight of completed Q-values against logits (gumbel; mctx: value_scale)."""
    visit_offset: float = 50.0
    """Added to the largest visit count in that weight (gumbel; mctx: maxvisit_init)."""
    value_rescale: bool = True
    """Stretch a position's Q-values to 0..1 before that weight, as mctx does; without, they are expected scores from 0 to 1,
    and where all moves are alike the policy stays as it is (gumbel)."""
    widening: float = 0.0
    """Progressive widening: only the first `widening * visits ** widening_power` moves by prior; 0 for all."""
    widening_power: float = 0.5
    """Exponent of progressive widening."""
    top_k: int = 0
    """Only the first k moves by prior, unless all of them lose; 0 for all."""
    tail: float = 0.0
    """Leave out the least likely moves, up to this sum of priors, unless all others lose."""
    repetition_penalty: float = 0.0
    """Taken off the value of root moves that repeat a position of the game."""
    early_stop: bool = False
    """Stop when the most visited root move can no longer be overtaken (puct)."""
    dominance: float = 0.0
    """Stop when one root move has this share of at least half the budget's visits; 0 for never (puct)."""
    branching: float = 0.0
    """The simulations of a move are multiplied by (legal moves / 30) ** this, between 0.25 and 2; 0 for no such factor."""
    endgame: float = 1.0
    """Factor of the simulations when only the kings are left; linear in the number of pieces up to 1 for all of them."""
    reuse: bool = True
    """Keep the subtree of the move that was played."""

    def __post_init__(self) -> None:
        """Raise SearchError for values out of range."""
        if self.algorithm not in ("puct", "gumbel"):
            raise SearchError(f"algorithm is puct or gumbel, not {self.algorithm!r}")
        for name, least in (("simulations", 1), ("nodes", 0), ("leaves", 1), ("considered", 1), ("top_k", 0)):
            if getattr(self, name) < least:
                raise SearchError(f"{name} must be at least {least}, not {getattr(self, name)}")
        for name in ("policy_temperature", "root_temperature", "dirichlet_alpha", "c_base"):
            if not getattr(self, name) > 0.0:
                raise SearchError(f"{name} must be above 0, not {getattr(self, name)}")
        for name in ("dirichlet_share", "tail", "dominance", "endgame"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise SearchError(f"{name} must be between 0 and 1, not {getattr(self, name)}")
        for name in (
            *("virtual_loss", "c_puct", "c_factor", "fpu_reduction", "gumbel_scale", "value_scale", "visit_offset"),
            *("widening", "widening_power", "repetition_penalty", "branching"),
        ):
            if not 0.0 <= getattr(self, name) < float("inf"):
                raise SearchError(f"{name} must be 0 or more, not {getattr(self, name)}")

    @property
    def capacity(self) -> int:
        """Return the most nodes of a game's tree."""
        return self.nodes or 3 * self.simulations + 16

    def params(self) -> SearchParams:
        """Return the numbers for compiled code."""
        values = {
            "gumbel": self.algorithm == "gumbel",
            "temperature": self.policy_temperature,
            "maxvisit_init": self.visit_offset,
            "virtual_loss": self.virtual_loss if self.leaves > 1 else 0.0,
        }
        kinds = SearchParams.__annotations__.items()  # one type each, whatever numbers the configuration holds
        return SearchParams(**{name: kind(values.get(name, getattr(self, name, None))) for name, kind in kinds})
