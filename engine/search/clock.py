"""The time policy of our players, over UCI and in matches: seconds for a move, and when its search stops.

    Limits -> divide_clock -> Budget -> Pace.substitute   no time for a search: an evaluator whose likeliest move is played
                                     -> Pace.leaves       positions that are evaluated together
                                     -> MoveTimer         called after every round: is the move due?

Time is read by the function that a `Pace` is given, so tests can set it.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import chess
import numpy as np

from engine.encoding.planes import planes_of
from engine.evaluation import handwritten
from engine.evaluation.evaluator import Evaluator
from engine.evaluation.policy_move import choose_by_policy
from engine.search.chess_rules import position_and_history
from engine.search.config import SearchConfig
from engine.search.results import Root
from engine.search.search import Search

MOVES_TO_GO = 40
"""Moves that the rest of a game is assumed to last; longer time controls are planned as if they had this many moves."""
STRETCH = 4.0
"""A move may take this many times its share of the clock while the most visited move is not the best by value."""
LARGEST_SHARE = 0.5
"""Largest share of the clock for one move..."""
LAST_SHARE = 0.8
"""...and for the last move before a time control."""
RESERVED_MOVES = 100
"""Moves whose overhead is kept in reserve, as far as increments do not pay for it."""
DECAY = 0.9
"""Decay of the longest round with each later round."""
ROUNDS_WANTED = 16
"""Rounds that a move's time must have room for; `leaves` is lowered until it has."""
PROBES = 20
"""Looks at the root within the soft bound."""
LEAST_SHARE = 0.2
"""Share of the soft bound before which no move is decided."""
MOST_SIMULATIONS = 1_000_000_000
"""Maximum number of simulations of one tree, whose visits are 32 bits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Time limits of a move, in seconds; a clock may be negative, as match runners send it."""

    movetime: float | None = None
    """Think exactly this long."""
    left: float | None = None
    """On the mover's clock."""
    increment: float = 0.0
    """Added after every move."""
    moves_to_go: int | None = None
    """Moves until the next time control, this one included; None where there is none."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Time of a move, in seconds since the request: 0 <= soft <= hard; None is no bound."""

    soft: float | None
    """Stop here when the most visited move is also the best by value."""
    hard: float | None
    """The answer must be sent by then."""
    is_exact: bool = False
    """Whether to use all of it, however clear the move is."""


def divide_clock(limits: Limits, overhead: float) -> Budget:
    """Return the time of a move; `overhead` seconds of every move are lost outside the search.

    The clock above a reserve is divided evenly among the moves to come (as in Stockfish), so the shares shrink with the clock
    and never add up to more than it. `movetime` keeps at least half of itself after the overhead.
    """
    bounds = []
    if limits.movetime is not None:
        given = max(limits.movetime, 0.0)
        bounds.append((given - min(overhead, given / 2),) * 2)
    if limits.left is not None:
        bounds.append(_share(limits, limits.left, overhead))
    if not bounds:
        return Budget(None, None)
    soft, hard = (min(values) for values in zip(*bounds, strict=True))
    return Budget(min(soft, hard), hard, limits.movetime is not None)


def _share(limits: Limits, left: float, overhead: float) -> tuple[float, float]:
    """Return the soft and hard bound of a move with `left` seconds on the clock."""
    moves = min(max(limits.moves_to_go or MOVES_TO_GO, 1), MOVES_TO_GO)
    increment = max(limits.increment, 0.0)
    most = max(min(left - overhead, (LARGEST_SHARE if moves > 1 else LAST_SHARE) * left), 0.0)
    reserved = RESERVED_MOVES if limits.moves_to_go is None else moves
    reserve = 2 * overhead + reserved * max(overhead - increment, 0.0)
    scarce = reserve > left / 2
    shared = left - min(reserve, left / 2) + (increment - min(overhead, increment)) * (moves - 1)
    soft = min(max(shared / moves, 0.0), most)
    return soft, soft if scarce else min(STRETCH * soft, most)


class Pace:
    """How long a player's evaluations and rounds take, seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.evaluation = 0.0
        """One position."""
        self.longest_round = 0.0
        """The longest round so far, decaying."""

    def measure(self, evaluator: Evaluator) -> None:
        """Time an evaluator on one position, the faster of two attempts."""
        planes_BP = planes_of([chess.Board()])
        seconds = []
        for _ in range(2):
            begun = self.clock()
            evaluator(planes_BP)
            seconds.append(self.clock() - begun)
        self.evaluation = self.longest_round = min(seconds)

    def substitute(self, evaluator: Evaluator, seconds: float) -> Evaluator | None:
        """Return an evaluator to play from without search when `seconds` are too few for one; None when they suffice."""
        if seconds >= 2 * self.evaluation:
            return None
        return evaluator if seconds > self.evaluation else handwritten.evaluate

    def leaves(self, budget: Budget, most: int) -> int:
        """Return how many leaves to evaluate together, at most `most`: the time must have room for several rounds."""
        rounds = (budget.soft or 0.0) / max(self.evaluation, 1e-6)  # most moves end at the soft bound
        return min(max(int(rounds / ROUNDS_WANTED), 1), most)


class MoveTimer:
    """Decides when the search of one move ends: called after every round, True when the move is due."""

    def __init__(
        self, pace: Pace, search: Search, slot: int, budget: Budget, *, begun: float, choices: int, leaves: int
    ) -> None:
        """Time a search for a request made at time `begun`, among `choices` moves (a new root may not be expanded yet)."""
        self.begun = begun
        self._pace, self._search, self._slot, self._budget = pace, search, slot, budget
        self._choices, self._before = choices, search.root(slot).simulations
        self._started = self._last = pace.clock()
        self._next_probe = 0.0
        # one slow round must not shorten the moves to come
        pace.longest_round = min(pace.longest_round, pace.evaluation * (1 + leaves))

    def __call__(self) -> bool:
        """End a round; return whether it was the last."""
        return self.is_due(self.end_round())

    def end_round(self) -> float:
        """Note that a round has ended, and return the time."""
        now = self._pace.clock()
        self._pace.longest_round = max(now - self._last, DECAY * self._pace.longest_round)
        self._last = now
        return now

    def is_due(self, now: float) -> bool:
        """Return whether another round could end too late, or the move is decided."""
        if self._budget.hard is None or self._budget.soft is None:
            return False
        if now - self.begun + self._pace.longest_round > self._budget.hard:
            return True
        if self._budget.is_exact or now < self._next_probe:
            return False
        self._next_probe = now + self._budget.soft / PROBES
        return self._choices < 2 or self._is_decided(self._search.root(self._slot), self._budget.soft, now)

    def _is_decided(self, root: Root, soft: float, now: float) -> bool:
        """Return whether the most visited move cannot be overtaken by the soft bound or, past it, is also best by value."""
        spent = now - self.begun
        if spent < LEAST_SHARE * soft or root.simulations <= self._before:
            return False  # nothing is known before the first simulation of this search
        second, first = np.partition(root.visits, -2)[-2:]
        if spent >= soft:
            return int(np.nan_to_num(root.values, nan=-2.0).argmax()) == int(root.visits.argmax())
        speed = (root.simulations - self._before) / max(now - self._started, 1e-3)  # pondering included
        return bool(first - second > speed * (soft - spent))


def run_until(
    search: Search,
    slot: int,
    stop: Callable[[], bool],
    *,
    simulations: int,
    leaves: int,
    allowed: list[tuple[int, int]] | None = None,
) -> None:
    """Search a slot until `stop()` returns True; if it does so at once, a tree without simulations still gets one."""
    before = search.root(slot).simulations
    wanted = max(min(simulations, MOST_SIMULATIONS - before), 1)
    if stop():
        wanted = int(before == 0)
    if wanted:
        slots_N = np.array([slot], dtype=np.int64)
        search.run(slots_N, simulations=wanted, leaves=leaves, allowed=allowed, stop=stop)


def warm_up(evaluator: Evaluator) -> None:
    """Load every kernel that a move may need; compile those that this machine has never run."""
    board = chess.Board()
    search = Search(evaluator, SearchConfig(nodes=1024))
    search.start(0, *position_and_history(board))
    search.run(simulations=4)
    search.root(0), search.line(0)
    labels, promotions = search.choose(temperature=0.0)
    search.play(0, int(labels[0]), int(promotions[0]))
    choose_by_policy(handwritten.evaluate, [board])
