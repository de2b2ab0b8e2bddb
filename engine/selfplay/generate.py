"""Play self-play games, many at a time, and record the search's result at each move.

When a game ends, the next game takes its slot, so that the evaluator's batches stay full. Each game
has its own random generator, seeded by the seed and the game number. It first draws the numbers
that hold for the whole game, then one per half-move. So a game depends only on the seed, its
number, the settings and the evaluator, not on the width.

Axes: N slots, M moves of a position.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import chess
import numpy as np
from numpy.typing import NDArray

from engine.board import rules
from engine.board.position import COUNTERS, HALFMOVE_MASK, from_fen
from engine.board.rules import MATE
from engine.errors import UserError
from engine.evaluation.evaluator import Evaluator
from engine.progress import Stop, never
from engine.search import Root, Search, SearchConfig

PLY_LIMIT, RESIGNED, HALFMOVE_LIMIT = 64, 65, 66
"""Endings besides those of engine/board/rules.py: stopped at `most_plies`, resigned by the side to
move, stopped at `draw_halfmoves`."""

ENDINGS = {
    **rules.ENDINGS,
    PLY_LIMIT: "too long",
    RESIGNED: "resignation",
    HALFMOVE_LIMIT: "halfmove clock",
}
"""Names of all endings."""

SAMPLED_TEMPERATURE = 0.7
"""Temperature of moves that are sampled without search. The policy temperature of the search is
applied first."""
MIN_TEMPERATURE = 0.1
"""Temperature below which the best move is played."""
MIN_RESIGN_PLIES = 20
"""Neither side resigns before this half-move."""
RESIGN_MOVES = 2
"""Number of a side's consecutive moves below the resignation threshold at which it resigns."""
RESIGN_DISABLED_SHARE = 0.1
"""Share of games without resignation, to measure how often resigning would have been wrong."""


class SelfPlayError(UserError):
    """Settings of self-play out of range."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SelfPlayConfig:
    """Settings of self-play games; SearchConfig has those of the search."""

    width: int = 64
    """Number of games or positions that each process searches in parallel: 64 suits a CPU core,
    1024 a GPU."""
    sampled_plies: int = 0
    """Maximum number of half-moves at the start of a game that are sampled from the policy without
    search; each game has a random number of them."""
    opening_plies: int = 16
    """Half-moves of the opening, in which moves are sampled in proportion to their visits (gumbel:
    their improved policy)."""
    cooling_plies: float = 8.0
    """Half-life of the sampling temperature after the opening, in half-moves; 0 always plays the
    best move after the opening."""
    most_plies: int = 512
    """Half-moves after which a game is stopped and counts as a draw."""
    draw_halfmoves: int = 0
    """Half-moves without a capture or pawn move after which a game is stopped and counts as a draw;
    0 leaves this to the rules (100)."""
    resign: float = 0.0
    """Resign when a side's value is below minus this, between 0 and 1, at two of its moves in a
    row; 0 never resigns."""

    def __post_init__(self) -> None:
        for name in ("sampled_plies", "opening_plies", "cooling_plies", "draw_halfmoves"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise SelfPlayError(f"{name} must be 0 or more, not {getattr(self, name)}")
        if self.width < 1 or self.most_plies < 1:
            raise SelfPlayError(
                f"width and most_plies must be at least 1, got {self.width} and {self.most_plies}"
            )
        if not 0.0 <= self.resign < 1.0:
            raise SelfPlayError(f"resign must be 0 or more and below 1, not {self.resign}")

    def temperature_at(self, ply: int) -> float:
        """Return the temperature of the move after `ply` half-moves: 1, falling to 0 later."""
        plies_after = ply - self.opening_plies
        if plies_after < 0:
            return 1.0
        if self.cooling_plies == 0.0:
            return 0.0
        temperature = 0.5 ** ((plies_after + 1) / self.cooling_plies)
        return temperature if temperature >= MIN_TEMPERATURE else 0.0


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Result of a search: the moves with a share of the improved policy, highest prior first."""

    labels: NDArray[np.uint16]  # [M]
    promotions: NDArray[np.uint8]  # [M] python-chess piece type, 0 for none
    shares: NDArray[np.float32]  # [M] improved policy (puct: visits), all above 0; sums to 1
    value: float
    """The root's value for the mover, in [-1, 1]: the mean of all simulations, or a proven one."""
    best_value: float
    """The value of the move with the largest share, which is more accurate than `value`."""
    simulations: int
    """Simulations in the tree, including those kept from the previous move."""


@dataclass(slots=True)
class Game:
    """A self-play game, in progress or finished."""

    number: int
    rng: np.random.Generator
    sampled: int
    """Number of half-moves at the start that are sampled from the policy without search."""
    resign_disabled: bool
    """Whether no side resigns in this game."""
    labels: list[int] = field(default_factory=list)
    """Labels of the moves so far, each from the mover's view."""
    promotions: list[int] = field(default_factory=list)
    searches: list[SearchResult | None] = field(default_factory=list)
    """The search result of each move; None for a move sampled without search."""
    lost_in_a_row: list[int] = field(default_factory=lambda: [0, 0])
    """Consecutive moves of White and of Black below the resignation threshold."""
    resign_ply: int | None = None
    """Half-moves after which the side to move would have resigned, if `resign_disabled`."""
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
        """Whether a side would have resigned but did not lose."""
        return self.resign_ply is not None and self.result != self._loss_after(self.resign_ply)

    def finish(self, ending: int) -> "Game":
        """Set the ending and result; after mate or resignation, the side to move has lost."""
        self.ending = ending
        self.result = self._loss_after(self.plies) if ending in (MATE, RESIGNED) else 0
        return self

    def _loss_after(self, plies: int) -> int:
        """Return the result if the side to move after `plies` half-moves loses."""
        return -1 if plies % 2 == 0 else 1


def play_games(
    evaluator: Evaluator,
    search_config: SearchConfig,
    config: SelfPlayConfig,
    *,
    games: int | Iterable[int],
    seed: int = 0,
    stop: Stop = never,
) -> Iterator[Game]:
    """Play games 0 to `games` - 1, or the given game numbers; yield each game when it ends.

    The width changes only the order in which games end. `stop` is polled before every move; when it
    returns True, unfinished games are discarded.
    """
    numbers = list(range(games) if isinstance(games, int) else games)
    search = Search(
        evaluator, search_config, games=min(config.width, max(len(numbers), 1)), seed=seed
    )
    slots = _Slots(search, config, seed)
    remaining = iter(numbers)
    for slot in range(search.games):
        slots.begin(slot, remaining)
    while slots.games and not stop():
        for slot, game in slots.play_moves():
            yield game
            slots.begin(slot, remaining)


class _Slots:
    def __init__(self, search: Search, config: SelfPlayConfig, seed: int) -> None:
        self.search, self.config, self.seed = search, config, seed
        self.games: dict[int, Game] = {}

    def begin(self, slot: int, numbers: Iterator[int]) -> None:
        """Begin the next game in a slot, if any."""
        number = next(numbers, None)
        if number is None:
            return
        rng = np.random.Generator(np.random.PCG64((self.seed % 2**64, number)))
        sampled = int(rng.integers(self.config.sampled_plies + 1))
        resign_disabled = bool(rng.random() < RESIGN_DISABLED_SHARE)
        self.games[slot] = Game(number, rng, sampled, resign_disabled)
        self.search.start(slot, from_fen(chess.STARTING_FEN), game=number)

    def play_moves(self) -> Iterator[tuple[int, Game]]:
        """Search and play a move in every game; yield (slot, game) of those that end."""
        slots = np.array(sorted(self.games), dtype=np.int64)
        games = [self.games[slot] for slot in slots.tolist()]
        is_sampled = np.array([game.plies < game.sampled for game in games], dtype=np.bool_)
        temperatures = np.array([self.config.temperature_at(game.plies) for game in games])
        simulations = np.where(is_sampled, 1, self.search.config.simulations)
        self.search.run(slots, simulations=simulations, noise=~is_sampled)
        labels, promotions = self.search.choose(slots, temperature=temperatures)
        for index, game in enumerate(games):
            slot, label, promotion = int(slots[index]), int(labels[index]), int(promotions[index])
            root, drawn, result = self.search.root(slot), game.rng.random(), None
            if is_sampled[index]:
                if root.mate <= 0:
                    label, promotion = sample_move(root, drawn)
            elif self._resigns(game, root.value):
                yield slot, self.games.pop(slot).finish(RESIGNED)
                continue
            else:
                result = read_search_result(root, label, promotion)
            game.labels.append(label)
            game.promotions.append(promotion)
            game.searches.append(result)
            self.search.play(slot, label, promotion)
            ending = self._find_ending(slot)
            if ending is not None:
                yield slot, self.games.pop(slot).finish(ending)

    def _resigns(self, game: Game, value: float) -> bool:
        """Return whether the mover resigns; if resigning is off, record when it would have."""
        if not self.config.resign > 0.0 or game.plies < MIN_RESIGN_PLIES:
            return False
        side = game.plies % 2
        game.lost_in_a_row[side] = (
            game.lost_in_a_row[side] + 1 if -value > self.config.resign else 0
        )
        if game.lost_in_a_row[side] < RESIGN_MOVES:
            return False
        if game.resign_disabled and game.resign_ply is None:
            game.resign_ply = game.plies
        return not game.resign_disabled

    def _find_ending(self, slot: int) -> int | None:
        ending = self.search.outcome(slot)
        if ending is not None:
            return ending
        if self.games[slot].plies >= self.config.most_plies:
            return PLY_LIMIT
        if self.config.draw_halfmoves:
            halfmoves = int(self.search.position(slot)[COUNTERS] & HALFMOVE_MASK)
            if halfmoves >= self.config.draw_halfmoves:
                return HALFMOVE_LIMIT
        return None


def read_search_result(root: Root, label: int, promotion: int) -> SearchResult:
    """Convert the result at a root to a SearchResult; (label, promotion) is the chosen move.

    Moves proven lost get no share unless all are lost. At a won root, or if no move has a share,
    the chosen move gets all.
    """
    lost_M, shares_M = root.proven == -1, root.improved
    if not lost_M.all():
        shares_M = np.where(lost_M, np.float32(0.0), shares_M)
    if root.mate > 0 or not shares_M.sum() > 0.0:
        chosen_M = (root.labels == label) & (root.promotions == promotion)
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
    """Sample a move (label, promotion) from a root's priors at SAMPLED_TEMPERATURE.

    `drawn` is a random number in [0, 1). Moves proven lost are excluded unless all are lost.
    """
    is_open_M = root.proven != -1
    weights_M = root.priors.astype(np.float64) ** (1.0 / SAMPLED_TEMPERATURE)
    cumulative_M = np.cumsum(weights_M * (is_open_M | ~is_open_M.any()))
    index = int(np.searchsorted(cumulative_M, drawn * cumulative_M[-1], side="right"))
    index = min(index, len(cumulative_M) - 1)
    return int(root.labels[index]), int(root.promotions[index])
