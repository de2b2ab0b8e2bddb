"""Self-play: many games side by side, each to its end, with the result of the search of every move.

A game that ends hands its slot to the next game number, so that the evaluator's batches stay full. A game depends on the seed,
its number, the settings and the evaluator alone: at any width it is the same.

Playout cap randomisation (Wu 2019, "Accelerating self-play learning in Go"): a share of the moves is searched in full, with
noise, and recorded; the others are searched quickly, without noise, and only played. Both kinds share a batch and a tree.

Axes: N slots asked.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import chess
import numpy as np
from numpy.typing import NDArray

from engine.board.position import COUNTERS, HALFMOVE_MASK
from engine.errors import UserError
from engine.evaluation.evaluator import Evaluator
from engine.match.openings import Opening
from engine.progress import Stop, never
from engine.search import Search, SearchConfig
from engine.selfplay.game import (
    NOT_SEARCHED,
    RESIGNED,
    TOO_LONG,
    UNEVENTFUL,
    GameInProgress,
    PlayedGame,
    sampled_move,
    search_result_of,
    start_of,
)


class SelfPlayError(UserError):
    """Settings of self-play out of range."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SelfPlayConfig:
    """How games are played; how moves are searched is a SearchConfig."""

    width: int = 256
    """Games side by side."""
    full_share: float = 1.0
    """Share of moves that are searched in full and recorded; the others are searched quickly, without noise."""
    quick_simulations: int = 8
    """Simulations of those others."""
    sampled_plies: int = 0
    """Most half-moves after the opening that are drawn from the policy without search; each game draws how many."""
    sampled_temperature: float = 0.7
    """Temperature of these draws, on top of the search's policy temperature."""
    temperature: float = 1.0
    """Temperature at which moves are drawn by their visits in the opening; 0 plays the best from the first move.
    With gumbel they are drawn by the improved policy, since its visits are a plan and no opinion."""
    opening_plies: int = 16
    """Half-moves before the temperature begins to fall."""
    cooling_plies: float = 8.0
    """Half-moves in which it then halves; 0 for at once to nothing."""
    coldest: float = 0.1
    """Below this temperature the best move is played."""
    most_plies: int = 512
    """A game that is longer is stopped and counts as a draw."""
    draw_halfmoves: int = 0
    """A game is stopped as a draw after this many half-moves without capture or pawn move; 0 leaves it to the rules, 100."""
    resign: float = 0.0
    """Resign when the value is below minus this, between 0 and 1; 0 never does."""
    resign_plies: int = 20
    """Half-moves before which neither side resigns."""
    resign_moves: int = 1
    """Moves of one side in a row that must look that bad."""
    played_on: float = 0.0
    """Share of games without resignation, to measure how often resigning would have been wrong."""

    def __post_init__(self) -> None:
        """Raise SelfPlayError for values out of range."""
        for name, least in _LEAST.items():
            if getattr(self, name) < least:
                raise SelfPlayError(f"{name} must be at least {least}, not {getattr(self, name)}")
        for name in ("temperature", "cooling_plies", "coldest"):
            if not 0.0 <= getattr(self, name) < float("inf"):
                raise SelfPlayError(f"{name} must be 0 or more, not {getattr(self, name)}")
        if not 0.05 <= self.sampled_temperature <= 100.0:
            raise SelfPlayError(f"sampled_temperature must be between 0.05 and 100, not {self.sampled_temperature}")
        for name in ("full_share", "played_on"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise SelfPlayError(f"{name} must be between 0 and 1, not {getattr(self, name)}")
        if not 0.0 <= self.resign < 1.0:
            raise SelfPlayError(f"resign must be 0 or more and below 1, not {self.resign}")

    def temperature_at(self, ply: int) -> float:
        """Return the temperature of the move after `ply` half-moves."""
        late = ply - self.opening_plies
        if late < 0:
            return self.temperature
        cooled = self.temperature * 0.5 ** ((late + 1) / self.cooling_plies) if self.cooling_plies > 0.0 else 0.0
        return cooled if cooled >= self.coldest else 0.0


_LEAST = {
    "width": 1,
    "quick_simulations": 1,
    "sampled_plies": 0,
    "opening_plies": 0,
    "most_plies": 1,
    "draw_halfmoves": 0,
    "resign_plies": 0,
    "resign_moves": 1,
}


def play_games(
    evaluator: Evaluator,
    search_config: SearchConfig,
    config: SelfPlayConfig,
    *,
    games: int | Iterable[int],
    seed: int = 0,
    openings: Sequence[Opening] = (),
    stop: Stop = never,
) -> Iterator[PlayedGame]:
    """Play games number 0 .. `games - 1`, or those of the given numbers, and yield each as it ends.

    Game number n begins with `openings[n % len(openings)]`, by default at the start position. The order in which games end
    depends on the width; the games do not. `stop` is asked before every move: when it says so, games under way are dropped.
    """
    numbers = list(range(games) if isinstance(games, int) else games)
    search = Search(evaluator, search_config, games=min(config.width, max(len(numbers), 1)), seed=seed)
    slots = _Slots(search, config, openings or [Opening(chess.STARTING_FEN)], seed)
    waiting = iter(numbers)
    for slot in range(search.games):
        yield from slots.begin(slot, waiting)
    while slots.games and not stop():
        for slot, game in slots.move():
            yield game
            yield from slots.begin(slot, waiting)


class _Slots:
    """The games in progress, by slot of the search."""

    def __init__(self, search: Search, config: SelfPlayConfig, openings: Sequence[Opening], seed: int) -> None:
        self.search, self.config, self.openings, self.seed = search, config, openings, seed
        self.games: dict[int, GameInProgress] = {}

    def begin(self, slot: int, numbers: Iterator[int]) -> Iterator[PlayedGame]:
        """Begin the next game in a slot, if there is one; yield those that are over before their first move."""
        for number in numbers:
            start = start_of(self.openings[number % len(self.openings)])
            rng = np.random.Generator(np.random.PCG64((self.seed % 2**64, number)))
            sampled, plays_on = int(rng.integers(self.config.sampled_plies + 1)), rng.random()
            game = GameInProgress(number, start, rng, sampled, plays_on < self.config.played_on)
            self.search.start(slot, start.position, start.keys, game=number)
            ending = self.search.outcome(slot)
            if ending is None:
                self.games[slot] = game
                return
            yield game.finished(ending, 0)

    def move(self) -> Iterator[tuple[int, PlayedGame]]:
        """Search and play a move in every game; yield those that end by it, with their slots."""
        slots = np.array(sorted(self.games), dtype=np.int64)
        drawn = [self.games[slot].rng.random() for slot in slots.tolist()]
        samples = np.array([self.games[slot].samples for slot in slots.tolist()], dtype=np.bool_)
        full = (np.array(drawn) < self.config.full_share) & ~samples
        quick = np.where(samples, 1, self.config.quick_simulations)
        self.search.run(slots, simulations=np.where(full, self.search.config.simulations, quick), noise=full)
        labels, promotions = self._chosen(slots)
        values = self.search.values(slots).tolist()
        ended = {}
        for index, slot in enumerate(slots.tolist()):
            game = self.games[slot]
            if samples[index]:
                root = self.search.root(slot)
                if root.mate <= 0:
                    labels[index], promotions[index] = sampled_move(root, self.config.sampled_temperature, drawn[index])
                game.add(int(labels[index]), int(promotions[index]), None, NOT_SEARCHED)
            elif self._gives_up(game, values[index]):
                ended[slot] = RESIGNED
            else:
                label, promotion = int(labels[index]), int(promotions[index])
                searched = search_result_of(self.search.root(slot), label, promotion) if full[index] else None
                game.add(label, promotion, searched, values[index])
        on = np.array([slot not in ended for slot in slots.tolist()], dtype=np.bool_)
        self.search.play_all(labels[on], promotions[on], slots[on])
        for slot in slots.tolist():
            ending = ended[slot] if slot in ended else self._ending(slot)
            if ending is not None:
                yield slot, self.games.pop(slot).finished(ending, int(self.search.spent[slot]))

    def _chosen(self, slots: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Choose a move for each slot at its temperature; at zero by the search's own criterion."""
        temperatures = np.array([self.config.temperature_at(self.games[slot].plies) for slot in slots.tolist()])
        labels, promotions = np.empty(len(slots), dtype=np.int64), np.empty(len(slots), dtype=np.int64)
        for group, criterion in ((temperatures > 0.0, "improved"), (temperatures <= 0.0, "visits")):
            if group.any():
                chosen = self.search.choose(slots[group], temperature=temperatures[group], criterion=criterion)  # type: ignore[arg-type]
                labels[group], promotions[group] = chosen
        return labels, promotions

    def _gives_up(self, game: GameInProgress, value: float) -> bool:
        """Return whether the mover resigns; in a game that is played on, store when it would have."""
        config = self.config
        if not config.resign > 0.0 or game.plies < config.resign_plies:
            return False
        if not game.seems_lost(value, config.resign, config.resign_moves):
            return False
        if game.plays_on and game.given_up is None:
            game.given_up = game.plies
        return not game.plays_on

    def _ending(self, slot: int) -> int | None:
        """Return how a game is over after a move, None while it goes on."""
        ending = self.search.outcome(slot)
        if ending is not None:
            return ending
        if self.games[slot].plies >= self.config.most_plies:
            return TOO_LONG
        if self.config.draw_halfmoves:
            still = int(self.search.position(slot)[COUNTERS] & HALFMOVE_MASK)
            if still >= self.config.draw_halfmoves:
                return UNEVENTFUL
        return None
