"""Self-play: many games side by side, each to its end, with the result of the search of every move.

A game that ends hands its slot to the next game number, so that the evaluator's batches stay full.
A game depends on the seed, its number, the settings and the evaluator alone: it is the same at any
width.

Axes: N slots.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import chess
import numpy as np

from engine.board.position import COUNTERS, HALFMOVE_MASK, Position, from_fen
from engine.errors import UserError
from engine.evaluation.evaluator import Evaluator
from engine.progress import Stop, never
from engine.search import Search, SearchConfig
from engine.selfplay.game import RESIGNED, TOO_LONG, UNEVENTFUL, Game, read_search, sample_move

MIN_TEMPERATURE = 0.1
"""Temperature below which the best move is played."""
RESIGN_PLIES = 20
"""Half-moves before which neither side resigns."""
RESIGN_MOVES = 2
"""Consecutive moves of one side that must look lost before it resigns."""
RESIGN_DISABLED_SHARE = 0.1
"""Share of games without resignation, which measures how often resigning would have been wrong."""


class SelfPlayError(UserError):
    """Settings of self-play out of range."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SelfPlayConfig:
    """How games are played; a SearchConfig says how moves are searched."""

    width: int = 64
    """Games or positions searched side by side in each process: 64 suits a core, 1024 a GPU."""
    sampled_plies: int = 0
    """Maximum number of opening half-moves sampled from the policy without search; each game draws
    its own number."""
    opening_plies: int = 16
    """Half-moves of the opening, in which moves are sampled by visits (gumbel: by the improved
    policy) at temperature 1."""
    cooling_plies: float = 8.0
    """Half-life of the temperature after the opening, in half-moves; 0 plays the best move at
    once."""
    most_plies: int = 512
    """Half-moves after which a game is stopped and counts as a draw."""
    draw_halfmoves: int = 0
    """Stop a game as a draw after this many half-moves without capture or pawn move; 0 leaves it to
    the rules (100)."""
    resign: float = 0.0
    """Threshold from 0 to 1: a player resigns when its values stay below minus this threshold; 0
    never resigns."""

    def __post_init__(self) -> None:
        """Raise SelfPlayError for values out of range."""
        for name, least in {
            "width": 1,
            "sampled_plies": 0,
            "opening_plies": 0,
            "most_plies": 1,
            "draw_halfmoves": 0,
        }.items():
            if getattr(self, name) < least:
                raise SelfPlayError(f"{name} must be at least {least}, not {getattr(self, name)}")
        if not 0.0 <= self.cooling_plies < float("inf"):
            raise SelfPlayError(f"cooling_plies must be 0 or more, not {self.cooling_plies}")
        if not 0.0 <= self.resign < 1.0:
            raise SelfPlayError(f"resign must be 0 or more and below 1, not {self.resign}")

    def temperature_at(self, ply: int) -> float:
        """Return the temperature of the move after `ply` half-moves.

        It is 1 in the opening, then falls to 0.
        """
        late = ply - self.opening_plies
        if late < 0:
            return 1.0
        cooled = 0.5 ** ((late + 1) / self.cooling_plies) if self.cooling_plies > 0.0 else 0.0
        return cooled if cooled >= MIN_TEMPERATURE else 0.0


def play_games(
    evaluator: Evaluator,
    search_config: SearchConfig,
    config: SelfPlayConfig,
    *,
    games: int | Iterable[int],
    seed: int = 0,
    starts: Sequence[Position] = (),
    stop: Stop = never,
) -> Iterator[Game]:
    """Play games number 0 .. `games - 1`, or those of the given numbers, and yield each as it ends.

    Game number n begins at `starts[n % len(starts)]`, by default at the initial position. The order
    in which games end depends on the width; the games do not. `stop` is polled before every move;
    when it returns True, unfinished games are dropped.
    """
    numbers = list(range(games) if isinstance(games, int) else games)
    search = Search(
        evaluator, search_config, games=min(config.width, max(len(numbers), 1)), seed=seed
    )
    slots = _Slots(search, config, starts or [from_fen(chess.STARTING_FEN)], seed)
    waiting = iter(numbers)
    for slot in range(search.games):
        yield from slots.begin(slot, waiting)
    while slots.games and not stop():
        for slot, game in slots.move():
            yield game
            yield from slots.begin(slot, waiting)


class _Slots:
    """The games in progress, by slot of the search."""

    def __init__(
        self, search: Search, config: SelfPlayConfig, starts: Sequence[Position], seed: int
    ) -> None:
        self.search, self.config, self.starts, self.seed = search, config, starts, seed
        self.games: dict[int, Game] = {}

    def begin(self, slot: int, numbers: Iterator[int]) -> Iterator[Game]:
        """Begin the next game in a slot, if any; yield games that are over without a move."""
        for number in numbers:
            start = self.starts[number % len(self.starts)]
            rng = np.random.Generator(np.random.PCG64((self.seed % 2**64, number)))
            sampled, resign_disabled = (
                int(rng.integers(self.config.sampled_plies + 1)),
                bool(rng.random() < RESIGN_DISABLED_SHARE),
            )
            game = Game(number, start, rng, sampled, resign_disabled)
            self.search.start(slot, start, game=number)
            ending = self.search.outcome(slot)
            if ending is None:
                self.games[slot] = game
                return
            yield game.finish(ending)

    def move(self) -> Iterator[tuple[int, Game]]:
        """Search and play a move in every game; yield those that end by it, with their slots."""
        slots = np.array(sorted(self.games), dtype=np.int64)
        games = [self.games[slot] for slot in slots.tolist()]
        samples = np.array([game.plies < game.sampled for game in games], dtype=np.bool_)
        temperatures = np.array([self.config.temperature_at(game.plies) for game in games])
        self.search.run(
            slots, simulations=np.where(samples, 1, self.search.config.simulations), noise=~samples
        )
        labels, promotions = self.search.choose(slots, temperature=temperatures)
        for index, game in enumerate(games):
            slot, label, promotion = int(slots[index]), int(labels[index]), int(promotions[index])
            root, drawn = self.search.root(slot), game.rng.random()
            if samples[index]:
                if root.mate <= 0:
                    label, promotion = sample_move(root, drawn)
                game.add(label, promotion, None)
            elif self._resigns(game, root.value):
                yield slot, self.games.pop(slot).finish(RESIGNED)
                continue
            else:
                game.add(label, promotion, read_search(root, label, promotion))
            self.search.play(slot, label, promotion)
            ending = self._ending(slot)
            if ending is not None:
                yield slot, self.games.pop(slot).finish(ending)

    def _resigns(self, game: Game, value: float) -> bool:
        """Return whether the mover resigns; where resigning is off, store when it would have."""
        if not self.config.resign > 0.0 or game.plies < RESIGN_PLIES:
            return False
        if not game.seems_lost(value, self.config.resign, RESIGN_MOVES):
            return False
        if game.resign_disabled and game.resign_ply is None:
            game.resign_ply = game.plies
        return not game.resign_disabled

    def _ending(self, slot: int) -> int | None:
        """Return how a game is over after a move, None while it goes on."""
        ending = self.search.outcome(slot)
        if ending is not None:
            return ending
        if self.games[slot].plies >= self.config.most_plies:
            return TOO_LONG
        if self.config.draw_halfmoves:
            quiet = int(self.search.position(slot)[COUNTERS] & HALFMOVE_MASK)
            if quiet >= self.config.draw_halfmoves:
                return UNEVENTFUL
        return None
