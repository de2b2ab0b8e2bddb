"""A game of self-play, with the result of each search.

Each game draws random numbers from its own generator, seeded by the seed and its number, in a fixed
order: first those that apply to the whole game, then one per half-move. So a game does not depend
on the games beside it.

Axes: M moves of a position.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from engine.board import rules
from engine.board.position import TURN, Position
from engine.board.rules import MATE
from engine.search import Root

TOO_LONG, RESIGNED, UNEVENTFUL = 64, 65, 66
"""Endings beside those of engine.board.rules: stopped at `most_plies`, resigned by the side to
move, stopped at `draw_halfmoves`."""

ENDINGS = {
    **rules.ENDINGS,
    TOO_LONG: "too long",
    RESIGNED: "resignation",
    UNEVENTFUL: "halfmove clock",
}
"""Names of all endings."""

SAMPLED_TEMPERATURE = 0.7
"""Temperature of moves that are drawn without search, on top of the search's policy temperature."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The moves with a share of the improved policy after a search, likeliest by prior first."""

    labels: NDArray[np.uint16]  # [M]
    promotions: NDArray[np.uint8]  # [M] python-chess piece type, 0 for none
    shares: NDArray[np.float32]  # [M] of the improved policy, all of them above 0; they sum to one
    value: float
    """The root's value for the mover, in [-1, 1]: the mean of all simulations."""
    best_value: float
    """The value of the move with the largest share, which errs less than the mean."""
    simulations: int
    """Simulations in the tree, those kept from the move before included."""


@dataclass(slots=True)
class Game:
    """A game of self-play."""

    number: int
    start: Position
    """Position before the first move."""
    rng: np.random.Generator
    sampled: int
    """Half-moves at the beginning that are drawn from the policy."""
    resign_disabled: bool
    """Whether resigning is off in this game."""
    labels: list[int] = field(default_factory=list)
    """Moves so far, from the mover's side."""
    promotions: list[int] = field(default_factory=list)
    searches: list[SearchResult | None] = field(default_factory=list)
    """The search of each move; None for a move drawn without search."""
    lost_in_a_row: list[int] = field(default_factory=lambda: [0, 0])
    """Consecutive moves that seemed lost: of the side that began, and of the other."""
    resign_ply: int | None = None
    """Half-moves after which the side to move would have resigned, if resigning is off in this
    game."""
    ending: int | None = None
    """A code of ENDINGS; None while the game goes on."""
    result: int = 0
    """+1 White won, 0 draw, -1 Black won."""

    @property
    def plies(self) -> int:
        """Half-moves so far."""
        return len(self.labels)

    @property
    def resign_was_wrong(self) -> bool:
        """Return whether the side that would have resigned did not lose."""
        return self.resign_ply is not None and self.result != self._loss_after(self.resign_ply)

    def add(self, label: int, promotion: int, searched: SearchResult | None) -> None:
        """Add a move."""
        self.labels.append(label)
        self.promotions.append(promotion)
        self.searches.append(searched)

    def seems_lost(self, value: float, threshold: float, moves: int) -> bool:
        """Record the mover's value; return whether the game seems lost.

        It does where the last `moves` values of the mover are below minus `threshold`.
        """
        side = self.plies % 2
        self.lost_in_a_row[side] = self.lost_in_a_row[side] + 1 if -value > threshold else 0
        return self.lost_in_a_row[side] >= moves

    def finish(self, ending: int) -> "Game":
        """Set how the game ended; after a mate or a resignation the side to move has lost."""
        self.ending = ending
        self.result = self._loss_after(self.plies) if ending in (MATE, RESIGNED) else 0
        return self

    def _loss_after(self, plies: int) -> int:
        """Return the result in which the side to move after so many half-moves loses."""
        white = bool(self.start[TURN] == 0) == (plies % 2 == 0)
        return -1 if white else 1


def read_search(root: Root, label: int, promotion: int) -> SearchResult:
    """Return the result of the search of a root where (label, promotion) was chosen.

    Proven losses get no share, whatever their visits, unless all moves lose. Without any share, as
    at a mate found without a simulation, the chosen move gets all of it.
    """
    lost_M = root.proven == -1
    shares_M = (
        np.where(lost_M, np.float32(0.0), root.improved) if not lost_M.all() else root.improved
    )
    chosen_M = (root.labels == label) & (root.promotions == promotion)
    if root.mate > 0 or not shares_M.sum() > 0.0:
        shares_M = chosen_M.astype(np.float32)
    kept_M, best = shares_M > 0.0, int(shares_M.argmax())
    return SearchResult(
        labels=root.labels[kept_M],
        promotions=root.promotions[kept_M],
        shares=shares_M[kept_M] / shares_M.sum(),
        value=root.value,
        best_value=root.value_at(best),
        simulations=root.simulations,
    )


def sample_move(root: Root, drawn: float) -> tuple[int, int]:
    """Sample (label, promotion) from a root's priors by a number in 0..1; avoid proven losses.

    The priors are taken at SAMPLED_TEMPERATURE.
    """
    open_M = root.proven != -1
    weights_M = root.priors.astype(np.float64) ** (1.0 / SAMPLED_TEMPERATURE) * (
        open_M | ~open_M.any()
    )
    passed_M = np.cumsum(weights_M)
    index = min(
        int(np.searchsorted(passed_M, drawn * passed_M[-1], side="right")), len(passed_M) - 1
    )
    return int(root.labels[index]), int(root.promotions[index])
