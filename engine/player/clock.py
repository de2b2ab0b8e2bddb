"""Time management of a player: seconds for a move, and when to stop its search.

    Limits -> divide_clock -> Budget -> Pace.leaves   positions per batch
                                     -> MoveTimer     checks after every round whether to move

`Pace` measures how long evaluations take, since the machine can become busy at any time.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.evaluation.evaluator import Evaluator
from engine.search import Root, Search

MOVES_TO_GO = 40
"""Assumed number of remaining moves of the game or time control, at most."""
STRETCH = 4.0
"""Hard bound divided by soft bound: used if the most visited move is not the best by value."""
MAX_SHARE = 0.5
"""Maximum share of the clock for one move."""
LAST_SHARE = 0.8
"""Maximum share of the clock for the last move before a time control."""
RESERVED_MOVES = 100
"""Moves whose overhead is kept in reserve, minus their increments."""
DECAY = 0.9
"""Decay factor of the longest round, per round."""
ROUNDS_WANTED = 16
"""Minimum number of rounds per move; `leaves` is lowered to reach it."""
PROBES = 20
"""Checks of the root within the soft bound."""
MIN_SHARE = 0.2
"""Minimum share of the soft bound that a move takes, however clear it is."""
MAX_SIMULATIONS = 1_000_000_000
"""Maximum number of simulations of one tree, whose visits are 32 bits."""
MAX_LAG = 1.0
"""Maximum lag in seconds; beyond it the clock was probably set by hand."""
SLOWEST_DECAY = 0.99
"""Decay factor of the slowest evaluation, per evaluation."""
NEWEST_SHARE = 0.3
"""Weight of the newest evaluation in the estimated time of an evaluation."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Time limits of a move, in seconds; `left` may be negative, as some match runners send it."""

    movetime: float | None = None
    """Seconds to think, neither more nor less."""
    left: float | None = None
    """Time left on the mover's clock."""
    increment: float = 0.0
    """Added after every move."""
    moves_to_go: int | None = None
    """Moves until the next time control, including this one; None if there is none."""

    @property
    def is_timed(self) -> bool:
        """Whether the move has a time limit."""
        return self.movetime is not None or self.left is not None


@dataclass(frozen=True, slots=True)
class Budget:
    """Time for a move, in seconds since the request: 0 <= soft <= hard; None is no limit."""

    soft: float | None
    """Time to stop if the most visited move is also the best by value."""
    hard: float | None
    """Latest time to send the answer."""
    is_exact: bool = False
    """Whether to use all of the time, however clear the move is."""


def divide_clock(limits: Limits, overhead: float) -> Budget:
    """Return the time for a move, minus the `overhead` seconds that each move loses.

    After a reserve, the clock is divided evenly among the remaining moves, as in Stockfish. At
    least half of `movetime` is used.
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
    """Return the soft and hard bounds of a move with `left` seconds on the clock."""
    moves = min(max(limits.moves_to_go or MOVES_TO_GO, 1), MOVES_TO_GO)
    increment = max(limits.increment, 0.0)
    most = max(min(left - overhead, (MAX_SHARE if moves > 1 else LAST_SHARE) * left), 0.0)
    reserved = RESERVED_MOVES if limits.moves_to_go is None else moves
    reserve = 2 * overhead + reserved * max(overhead - increment, 0.0)
    scarce = reserve > left / 2
    shared = left - min(reserve, left / 2) + (increment - min(overhead, increment)) * (moves - 1)
    soft = min(max(shared / moves, 0.0), most)
    return soft, soft if scarce else min(STRETCH * soft, most)


class MoveControl:
    """Lets the caller control a move in progress, also from another thread."""

    def __init__(self, begun: float) -> None:
        self.begun = begun
        """Time of the request, by the player's clock."""
        self.stopped = False
        """Whether to answer now."""

    @property
    def is_clock_paused(self) -> bool:
        """Whether time limits are suspended, as while pondering."""
        return False

    def end_round(self, look: Callable[[], Any]) -> bool:
        """Called after each round; return whether the current result, `look()`, is sufficient."""
        return False


class Pace:
    """Durations of a player's evaluations and rounds, in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.evaluation = 0.0
        """Estimate for one position, updated during the game."""
        self.fastest = 0.0
        """One position, as measured before the game."""
        self.slowest = 0.0
        """Slowest recent batch: the next one may take as long."""
        self.lag = 0.0
        """Time lost per move outside the player, measured by the game's clock; decays."""
        self.longest_round = 0.0
        """Longest round so far; decays."""
        self._expected: dict[int, tuple[int, float]] = {}
        """Ply of the next move and seconds on its clock, for White (0) and Black (1)."""

    def measure(self, evaluator: Evaluator, planes_BP: NDArray[np.uint64]) -> None:
        """Measure an evaluator on one position; keep the faster of two attempts."""
        seconds = []
        for _ in range(2):
            begun = self.clock()
            evaluator(planes_BP)
            seconds.append(self.clock() - begun)
        self.evaluation = self.fastest = self.longest_round = min(seconds)

    def observe(self, rows: int, seconds: float) -> None:
        """Update the estimates by the duration of a batch of `rows` rows."""
        newest = min(max(self.evaluation, seconds / max(rows, 1)), seconds)
        self.evaluation += NEWEST_SHARE * (newest - self.evaluation)
        self.slowest = max(seconds, SLOWEST_DECAY * self.slowest)

    def forget_slowly(self) -> None:
        """Lower the estimates after a move without evaluations: the machine may be idle again."""
        self.evaluation = max(DECAY * self.evaluation, self.fastest)
        self.slowest = max(DECAY * self.slowest, self.fastest)

    def end_move(self, limits: Limits, ply: int, control: MoveControl) -> None:
        """Record the clock expected at `ply`, to measure the lag."""
        if limits.left is not None:
            spent = self.clock() - control.begun
            self._expected[ply % 2] = ply, limits.left - spent + limits.increment

    def budget(self, limits: Limits, ply: int, overhead: float) -> Budget:
        """Return the time for a move at `ply`, minus the recent lag and the slowest batch."""
        expected_ply, expected = self._expected.get(ply % 2, (-1, 0.0))
        if limits.left is not None and expected_ply == ply:
            self.lag = max(min(expected - limits.left, MAX_LAG), DECAY * self.lag)
        overhead = max(overhead, self.lag)
        budget = divide_clock(limits, overhead)
        if limits.left is None or budget.soft is None or budget.hard is None:
            return budget
        hard = min(budget.hard, max(limits.left - overhead - self.slowest, 0.0))
        return Budget(min(budget.soft, hard), hard, budget.is_exact)

    def left(self, bound: float | None, control: MoveControl) -> float:
        """Return the seconds left until a bound of the budget; infinity without a bound."""
        if bound is None or control.is_clock_paused:
            return inf
        return control.begun + bound - self.clock()

    def leaves(self, budget: Budget, most: int) -> int:
        """Return the leaves per batch, at most `most`, that leave time for several rounds."""
        rounds = (budget.soft or 0.0) / max(self.evaluation, 1e-6)  # most end at the soft bound
        return min(max(int(rounds / ROUNDS_WANTED), 1), most)


class MoveTimer:
    """Decides after every round whether to end the search."""

    def __init__(
        self,
        pace: Pace,
        search: Search,
        slot: int,
        budget: Budget,
        control: MoveControl,
        *,
        choices: int,
        leaves: int,
    ) -> None:
        """Create a timer of a search with `choices` root moves."""
        self._pace, self._search, self._slot = pace, search, slot
        self._budget, self._control = budget, control
        self._choices, self._before = choices, search.root(slot).simulations
        self._started = self._last = pace.clock()
        self._next_probe = 0.0
        self.is_over = False
        """Whether time or the caller ended the search."""
        # one slow round must not shorten the moves to come
        pace.longest_round = min(pace.longest_round, pace.evaluation * (1 + leaves))

    def __call__(self) -> bool:
        """Record the end of a round; return whether to stop the search."""
        now = self._pace.clock()
        self._pace.longest_round = max(now - self._last, DECAY * self._pace.longest_round)
        self._last = now
        due = not self._control.is_clock_paused and self._is_due(now)
        self.is_over = self._control.stopped or due
        return self.is_over

    def _is_due(self, now: float) -> bool:
        """Return whether another round may exceed the time, or the move is decided."""
        if self._budget.hard is None or self._budget.soft is None:
            return False
        if now - self._control.begun + self._pace.longest_round > self._budget.hard:
            return True
        if self._budget.is_exact or now < self._next_probe:
            return False
        self._next_probe = now + self._budget.soft / PROBES
        return self._choices < 2 or self._is_decided(
            self._search.root(self._slot), self._budget.soft, now
        )

    def _is_decided(self, root: Root, soft: float, now: float) -> bool:
        """Return whether more search is unlikely to change the move.

        Before `soft`: the most visited move cannot be overtaken. After it: it is the best by value.
        """
        spent = now - self._control.begun
        if spent < MIN_SHARE * soft or root.simulations <= self._before:
            return False  # no simulations yet from which to estimate the speed
        second, first = np.partition(root.visits, -2)[-2:]
        if spent >= soft:
            return int(np.nan_to_num(root.values, nan=-2.0).argmax()) == int(root.visits.argmax())
        # includes the time of pondering
        speed = (root.simulations - self._before) / max(now - self._started, 1e-3)
        return bool(first - second > speed * (soft - spent))
