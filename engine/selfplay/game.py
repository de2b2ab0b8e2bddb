"""A game of self-play: its state while it is played, and the record of it and of its searches when it is over.

A game has random numbers of its own, from the seed and its number, and draws them in a fixed order: first what is decided
once a game, then one number a half-move. So nothing depends on which games are played beside it.

Axes: T moves of a game, M moves of a position.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from engine.board import rules
from engine.board.position import TURN, Position, from_fen
from engine.board.rules import MATE
from engine.encoding.planes import label_of
from engine.match.openings import Opening
from engine.search import Root
from engine.search.chess_rules import position_and_history

TOO_LONG, RESIGNED, UNEVENTFUL = 64, 65, 66
"""Endings beside those of engine.board.rules: stopped at `most_plies`; resigned by the side to move; stopped at
`draw_halfmoves`."""

ENDINGS = {
    **rules.ENDINGS,
    TOO_LONG: "too long",
    RESIGNED: "resignation",
    UNEVENTFUL: "halfmove clock",
}
"""Endings in words."""

NOT_SEARCHED = float("nan")


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The result of a full search of a position: moves with a share of the improved policy, likeliest by prior first."""

    labels: NDArray[np.uint16]  # [M]
    promotions: NDArray[np.uint8]  # [M] python-chess piece type, 0 for none
    visits: NDArray[np.int32]  # [M]
    shares: NDArray[np.float32]  # [M] of the improved policy, all of them above 0; they sum to one
    value: float
    """Expected score of the mover, in [-1, 1]."""
    draw: float
    """Probability of a draw."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlayedGame:
    """A finished game. All moves are in it, those of its opening too; each is seen by its mover."""

    number: int
    start: Position
    """Before the first move."""
    labels: NDArray[np.uint16]  # [T]
    promotions: NDArray[np.uint8]  # [T]
    book: int
    """Half-moves at the beginning that the opening gave."""
    searches: list[SearchResult | None]  # [T] None where the search was not a full one, or there was none
    values: NDArray[np.float32]  # [T] the mover's expected score by the search, nan where there was none
    simulations: int
    """Simulations of all its searches."""
    ending: int
    """How it ended: a code of ENDINGS."""
    result: int
    """+1 White has won, 0 draw, -1 Black has won."""
    given_up: int | None
    """Half-moves after which the side to move would have resigned, had this game not been chosen to be played on."""

    @property
    def falsely_given_up(self) -> bool:
        """Return whether that side did not lose in the end."""
        if self.given_up is None:
            return False
        white = bool(self.start[TURN] == 0) == (self.given_up % 2 == 0)
        return self.result != (-1 if white else 1)


@dataclass(slots=True)
class Start:
    """Where the searched moves of a game begin."""

    before: Position
    """Before the opening's moves."""
    position: Position
    """After them."""
    keys: list[int]
    """Of the positions since the last capture or pawn move (engine.search.chess_rules)."""
    moves: list[tuple[int, int]]
    """The opening's moves, (label, promotion)."""


def start_of(opening: Opening) -> Start:
    """Turn an opening into where a search begins."""
    board, moves = opening.board(), []
    position, keys = position_and_history(board)
    while board.move_stack:
        move = board.pop()
        moves.append((label_of(move, board.turn), move.promotion or 0))
    return Start(from_fen(opening.fen), position, keys, moves[::-1])


@dataclass(slots=True)
class GameInProgress:
    """A game under way."""

    number: int
    start: Start
    rng: np.random.Generator
    sampled: int
    """Half-moves after the opening that are drawn from the policy."""
    plays_on: bool
    """Whether resigning is off in this game."""
    labels: list[int] = field(default_factory=list)
    promotions: list[int] = field(default_factory=list)
    searches: list[SearchResult | None] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    hopeless: list[int] = field(default_factory=lambda: [0, 0])
    """Moves in a row that seemed lost: of the side that began, and of the other."""
    given_up: int | None = None

    def __post_init__(self) -> None:
        """Play the opening."""
        for label, promotion in self.start.moves:
            self.add(label, promotion, None, NOT_SEARCHED)

    @property
    def plies(self) -> int:
        """Half-moves so far."""
        return len(self.labels)

    @property
    def samples(self) -> bool:
        """Return whether the next move is drawn from the policy."""
        return self.plies < len(self.start.moves) + self.sampled

    def add(self, label: int, promotion: int, searched: SearchResult | None, value: float) -> None:
        """Add a move."""
        self.labels.append(label)
        self.promotions.append(promotion)
        self.searches.append(searched)
        self.values.append(value)

    def seems_lost(self, value: float, threshold: float, moves: int) -> bool:
        """Count the mover's value; return whether it has been below minus `threshold` at `moves` of its moves in a row."""
        side = self.plies % 2
        self.hopeless[side] = self.hopeless[side] + 1 if -value > threshold else 0
        return self.hopeless[side] >= moves

    def finished(self, ending: int, simulations: int) -> PlayedGame:
        """Return the record of the finished game; after a mate or a resignation the side to move has lost."""
        white = bool(self.start.before[TURN] == 0) == (self.plies % 2 == 0)
        result = 0
        if ending in (MATE, RESIGNED):
            result = -1 if white else 1
        return PlayedGame(
            number=self.number,
            start=self.start.before,
            labels=np.array(self.labels, dtype=np.uint16),
            promotions=np.array(self.promotions, dtype=np.uint8),
            book=len(self.start.moves),
            searches=self.searches,
            values=np.array(self.values, dtype=np.float32),
            simulations=simulations,
            ending=ending,
            result=result,
            given_up=self.given_up,
        )


def search_result_of(root: Root, label: int, promotion: int) -> SearchResult:
    """Return the result of the search of a root where (label, promotion) is played.

    Proven losses have no share while another move is there, whatever they were visited before. Where nothing else is left, as
    at a mate found without a simulation, the move that is played has all.
    """
    lost_M = root.proven == -1
    shares_M = np.where(lost_M, np.float32(0.0), root.improved) if not lost_M.all() else root.improved
    played_M = (root.labels == label) & (root.promotions == promotion)
    if root.mate > 0 or not shares_M.sum() > 0.0:
        shares_M = played_M.astype(np.float32)
    kept_M = shares_M > 0.0
    return SearchResult(
        labels=root.labels[kept_M],
        promotions=root.promotions[kept_M],
        visits=root.visits[kept_M],
        shares=shares_M[kept_M] / shares_M.sum(),
        value=root.value,
        draw=root.draw,
    )


def sampled_move(root: Root, temperature: float, drawn: float) -> tuple[int, int]:
    """Draw (label, promotion) from a root's priors ** (1 / temperature) by a number in 0..1; no proven loss if avoidable."""
    open_M = root.proven != -1
    weights_M = root.priors.astype(np.float64) ** (1.0 / temperature) * (open_M | ~open_M.any())
    if not weights_M.sum() > 0.0:  # priors too small for the power
        weights_M = (root.priors == root.priors[open_M | ~open_M.any()].max()).astype(np.float64)
    passed_M = np.cumsum(weights_M)
    index = min(int(np.searchsorted(passed_M, drawn * passed_M[-1], side="right")), len(passed_M) - 1)
    return int(root.labels[index]), int(root.promotions[index])
