"""Self-play: many games side by side, each to its end, with what the search thought of every move.

A game that ends hands its slot to the next game number, so that the evaluator's batches stay full. A game depends on the seed,
its number, the settings and the evaluator alone: played in any width and any company it is the same.

Axes: T moves of a game, M moves of a position, N slots asked.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import chess
import numpy as np
from numpy.typing import NDArray

from engine.errors import UserError
from engine.evaluators import Evaluator
from engine.position import TURN, Position, from_board
from engine.rules import MATE
from engine.search import Root, Search, SearchConfig

TOO_LONG, RESIGNED = 64, 65
"""Endings beside those of engine.rules: stopped at the most plies; given up by the side to move."""


class SelfPlayError(UserError):
    """Settings of self-play that cannot be meant."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SelfPlayConfig:
    """How games are played; how moves are searched is a SearchConfig."""

    width: int = 256
    """Games side by side."""
    temperature: float = 1.0
    """Temperature at which moves are drawn by their visits in the opening; 0 plays the best from the first move."""
    opening_plies: int = 16
    """Half-moves before the temperature begins to fall."""
    cooling_plies: float = 8.0
    """Half-moves in which it then halves; 0 for at once to nothing."""
    coldest: float = 0.1
    """Below this temperature the best move is played."""
    most_plies: int = 512
    """A game that is longer is stopped and counts as a draw."""
    resign: float = 0.0
    """Give up when the value is below minus this, between 0 and 1; 0 never does."""
    resign_plies: int = 20
    """Half-moves before nobody gives up."""

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        for name, least in (("width", 1), ("most_plies", 1), ("opening_plies", 0), ("resign_plies", 0)):
            if getattr(self, name) < least:
                raise SelfPlayError(f"{name} must be at least {least}, not {getattr(self, name)}")
        for name in ("temperature", "cooling_plies", "coldest"):
            if not 0.0 <= getattr(self, name) < float("inf"):
                raise SelfPlayError(f"{name} must be 0 or more, not {getattr(self, name)}")
        if not 0.0 <= self.resign < 1.0:
            raise SelfPlayError(f"resign must be 0 or more and below 1, not {self.resign}")

    def temperature_at(self, ply: int) -> float:
        """Give the temperature of the move after `ply` half-moves."""
        late = ply - self.opening_plies
        if late < 0:
            return self.temperature
        cooled = self.temperature * 0.5 ** ((late + 1) / self.cooling_plies) if self.cooling_plies > 0.0 else 0.0
        return cooled if cooled >= self.coldest else 0.0


@dataclass(frozen=True, slots=True)
class Thought:
    """What the search made of a position: moves with a share of the improved policy, likeliest by prior first."""

    labels: NDArray[np.uint16]  # [M]
    promotions: NDArray[np.uint8]  # [M] python-chess piece type, 0 for none
    visits: NDArray[np.int32]  # [M]
    shares: NDArray[np.float32]  # [M] of the improved policy, all of them above 0; they sum to one
    value: float
    """Expected score of the mover, in [-1, 1]."""
    draw: float
    """Probability of a draw."""


@dataclass(frozen=True, slots=True)
class PlayedGame:
    """A finished game."""

    number: int
    start: Position
    labels: NDArray[np.uint16]  # [T] moves played, each in its mover's view
    promotions: NDArray[np.uint8]  # [T]
    thoughts: list[Thought]  # [T]
    ending: int
    """How it ended: a code of engine.rules, TOO_LONG or RESIGNED."""
    result: int
    """+1 White has won, 0 draw, -1 Black has won."""


@dataclass(slots=True)
class _Going:
    """A game under way."""

    number: int
    start: Position
    labels: list[int] = field(default_factory=list)
    promotions: list[int] = field(default_factory=list)
    thoughts: list[Thought] = field(default_factory=list)

    def finished(self, ending: int) -> PlayedGame:
        """Close the game; whoever is to move has lost where there is a loser."""
        white = bool(self.start[TURN] == 0) == (len(self.labels) % 2 == 0)
        result = 0
        if ending in (MATE, RESIGNED):
            result = -1 if white else 1
        labels, promotions = np.array(self.labels, dtype=np.uint16), np.array(self.promotions, dtype=np.uint8)
        return PlayedGame(self.number, self.start, labels, promotions, self.thoughts, ending, result)


def _thought(root: Root, label: int, promotion: int) -> Thought:
    """Keep what the search made of a root where (label, promotion) is played.

    Proven losses have no share while another move is there, whatever they were visited before. Where nothing else is left, as
    at a mate found without a simulation, the move that is played has all.
    """
    lost_M = root.proven == -1
    shares_M = np.where(lost_M, np.float32(0.0), root.improved) if not lost_M.all() else root.improved
    played_M = (root.labels == label) & (root.promotions == promotion)
    if root.mate > 0 or not shares_M.sum() > 0.0:
        shares_M = played_M.astype(np.float32)
    kept_M = shares_M > 0.0
    return Thought(
        labels=root.labels[kept_M],
        promotions=root.promotions[kept_M],
        visits=root.visits[kept_M],
        shares=shares_M[kept_M] / shares_M.sum(),
        value=root.value,
        draw=root.draw,
    )


def play_games(
    evaluator: Evaluator,
    search_config: SearchConfig,
    config: SelfPlayConfig,
    *,
    games: int,
    first: int = 0,
    seed: int = 0,
    starts: Sequence[Position] = (),
) -> Iterator[PlayedGame]:
    """Play games number `first` .. `first + games - 1` and yield each as it ends.

    Game number n starts at `starts[n % len(starts)]`, by default at the start position. The order in which games end depends
    on the width; the games do not.
    """
    starts = starts or [from_board(chess.Board())]
    search = Search(evaluator, search_config, games=min(config.width, max(games, 1)), seed=seed)
    numbers = iter(range(first, first + games))
    going: dict[int, _Going] = {}
    for slot in range(search.games):
        yield from _next_game(search, slot, numbers, starts, going)
    while going:
        slots = np.array(sorted(going), dtype=np.int64)
        search.run(slots)
        temperatures = np.array([config.temperature_at(len(going[slot].labels)) for slot in slots.tolist()])
        labels, promotions = search.choose(slots, temperature=temperatures)
        ended = {}
        for slot, label, promotion in zip(slots.tolist(), labels.tolist(), promotions.tolist(), strict=True):
            root, game = search.root(slot), going[slot]
            if -root.value > config.resign > 0.0 and len(game.labels) >= config.resign_plies:
                ended[slot] = RESIGNED
                continue
            game.thoughts.append(_thought(root, label, promotion))
            game.labels.append(label)
            game.promotions.append(promotion)
        on = np.array([slot not in ended for slot in slots.tolist()], dtype=np.bool_)
        search.play_all(labels[on], promotions[on], slots[on])
        for slot in slots.tolist():
            ending = ended.get(slot, search.outcome(slot))
            if ending is None and len(going[slot].labels) >= config.most_plies:
                ending = TOO_LONG
            if ending is not None:
                yield going.pop(slot).finished(ending)
                yield from _next_game(search, slot, numbers, starts, going)


def _next_game(
    search: Search, slot: int, numbers: Iterator[int], starts: Sequence[Position], going: dict[int, _Going]
) -> Iterator[PlayedGame]:
    """Begin the next game in a slot, if there is one; yield those that are over before their first move."""
    for number in numbers:
        game = _Going(number, starts[number % len(starts)].copy())
        search.start(slot, game.start, game=number)
        ending = search.outcome(slot)
        if ending is None:
            going[slot] = game
            return
        yield game.finished(ending)
