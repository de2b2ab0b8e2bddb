"""Manage a player's time: seconds for a move, and when to stop its search.

    Limits -> divide_clock -> Budget -> Timings.choose_leaves  positions per batch
                                     -> MoveTimer              whether to stop, after every round

`Timings` measures how long evaluations take, since the machine can become busy at any time.
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

ASSUMED_MOVES_TO_GO = 40
"""Maximum, and default, of the number of remaining moves among which a clock is divided."""
HARD_SOFT_RATIO = 4.0
"""Maximum ratio of the hard to the soft bound. A search goes on after the soft bound if the most
visited move is not the best by value."""
MAX_CLOCK_SHARE = 0.5
"""Maximum share of the remaining time for one move."""
MAX_LAST_MOVE_SHARE = 0.8
"""Maximum share of the remaining time for the last move before a time control."""
RESERVED_MOVES = 100
"""Number of moves whose overhead, minus their increments, is reserved without a time control."""
ESTIMATE_DECAY = 0.9
"""Factor by which the longest round decays at each round, the lag at each move on a clock, and the
evaluation times at each move without an evaluation."""
MIN_ROUNDS = 16
"""Rounds for which a move should have time; fewer leaves per batch make rounds shorter."""
PROBES_PER_MOVE = 20
"""Number of checks, before the soft bound, whether the move is decided."""
MIN_SOFT_SHARE = 0.2
"""Minimum share of the soft bound that a move takes, unless only one move is allowed."""
MAX_SIMULATIONS = 1_000_000_000
"""Maximum number of simulations of one tree, whose visits are 32 bits."""
MAX_LAG_SECONDS = 1.0
"""Maximum lag of a move. If the clock lost more, it was probably set by hand."""
SLOWEST_BATCH_DECAY = 0.99
"""Factor by which the duration of the slowest batch decays at each batch."""
NEWEST_WEIGHT = 0.3
"""Weight of the newest batch in the estimated duration of an evaluation."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Time limits of a move, in seconds."""

    movetime: float | None = None
    """Time for the move, neither more nor less."""
    left: float | None = None
    """Time left on the mover's clock; some match runners send negative ones."""
    increment: float = 0.0
    """Time added to the clock after every move."""
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
    """When to stop if the most visited move is also the best by value."""
    hard: float | None
    """When the answer must be sent."""
    is_exact: bool = False
    """Whether to use all of the time, however clear the move is."""


def divide_clock(limits: Limits, overhead: float) -> Budget:
    """Return the time for a move, without the `overhead` seconds that each move loses.

    A reserve is kept, and the rest of the clock is divided evenly among the remaining moves, as in
    Stockfish. Of `movetime`, at least half is used.
    """
    bounds = []
    if limits.movetime is not None:
        movetime = max(limits.movetime, 0.0)
        bounds.append((movetime - min(overhead, movetime / 2),) * 2)
    if limits.left is not None:
        bounds.append(_divide_time_left(limits, limits.left, overhead))
    if not bounds:
        return Budget(None, None)
    soft, hard = (min(values) for values in zip(*bounds, strict=True))
    return Budget(min(soft, hard), hard, limits.movetime is not None)


def _divide_time_left(limits: Limits, left: float, overhead: float) -> tuple[float, float]:
    """Return the soft and hard bounds of a move with `left` seconds on the clock."""
    moves = min(max(limits.moves_to_go or ASSUMED_MOVES_TO_GO, 1), ASSUMED_MOVES_TO_GO)
    increment = max(limits.increment, 0.0)
    max_share = MAX_CLOCK_SHARE if moves > 1 else MAX_LAST_MOVE_SHARE
    maximum = max(min(left - overhead, max_share * left), 0.0)
    reserved = RESERVED_MOVES if limits.moves_to_go is None else moves
    reserve = 2 * overhead + reserved * max(overhead - increment, 0.0)
    is_scarce = reserve > left / 2
    shared = left - min(reserve, left / 2) + (increment - min(overhead, increment)) * (moves - 1)
    soft = min(max(shared / moves, 0.0), maximum)
    return soft, soft if is_scarce else min(HARD_SOFT_RATIO * soft, maximum)


class MoveControl:
    """Control of a move in progress by the caller, also from another thread."""

    def __init__(self, start_time: float) -> None:
        self.start_time = start_time
        """Time of the request, by the player's clock."""
        self.stopped = False
        """Whether the player must answer now."""

    @property
    def is_clock_paused(self) -> bool:
        """Whether time limits are suspended, as while pondering."""
        return False

    def end_round(self, read_result: Callable[[], Any]) -> bool:
        """Return whether to stop after this round, because the result so far is sufficient."""
        return False


class Timings:
    """Durations of a player's evaluations and rounds, in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.evaluation_seconds = 0.0
        """Estimated duration of the evaluation of one position."""
        self.fastest_evaluation = 0.0
        """Duration of an evaluation before the game, when the machine was idle."""
        self.slowest_batch = 0.0
        """Duration of the slowest recent batch; the next batch may take as long."""
        self.lag = 0.0
        """Time lost per move outside the player, by the game's clock; decays with each move."""
        self.longest_round = 0.0
        """Duration of the longest recent round."""
        self._expected: dict[int, tuple[int, float]] = {}
        """Ply of the next move and seconds on its clock, for White (0) and Black (1)."""

    def measure(self, evaluator: Evaluator, planes_BP: NDArray[np.uint64]) -> None:
        """Initialize the estimates from the faster of two evaluations of one position."""
        seconds = []
        for _ in range(2):
            start_time = self.clock()
            evaluator(planes_BP)
            seconds.append(self.clock() - start_time)
        self.evaluation_seconds = self.fastest_evaluation = self.longest_round = min(seconds)

    def observe(self, rows: int, seconds: float) -> None:
        """Update the estimates from a batch of `rows` positions that took `seconds`."""
        newest = min(max(self.evaluation_seconds, seconds / max(rows, 1)), seconds)
        self.evaluation_seconds += NEWEST_WEIGHT * (newest - self.evaluation_seconds)
        self.slowest_batch = max(seconds, SLOWEST_BATCH_DECAY * self.slowest_batch)

    def decay_estimates(self) -> None:
        """Lower the estimates after a move without evaluation, as the machine may be idle again."""
        self.evaluation_seconds = max(
            ESTIMATE_DECAY * self.evaluation_seconds, self.fastest_evaluation
        )
        self.slowest_batch = max(ESTIMATE_DECAY * self.slowest_batch, self.fastest_evaluation)

    def record_move(self, limits: Limits, ply: int, control: MoveControl) -> None:
        """Record the time that the clock should show at `ply`, to measure the lag."""
        if limits.left is not None:
            spent = self.clock() - control.start_time
            self._expected[ply % 2] = ply, limits.left - spent + limits.increment

    def make_budget(self, limits: Limits, ply: int, overhead: float) -> Budget:
        """Return the time for a move at `ply`, less `overhead` or the lag, whichever is larger.

        On a clock, the hard bound also leaves time for one more batch, as slow as the slowest.
        """
        expected_ply, expected = self._expected.get(ply % 2, (-1, 0.0))
        if limits.left is not None and expected_ply == ply:
            self.lag = max(min(expected - limits.left, MAX_LAG_SECONDS), ESTIMATE_DECAY * self.lag)
        overhead = max(overhead, self.lag)
        budget = divide_clock(limits, overhead)
        if limits.left is None or budget.soft is None or budget.hard is None:
            return budget
        hard = min(budget.hard, max(limits.left - overhead - self.slowest_batch, 0.0))
        return Budget(min(budget.soft, hard), hard, budget.is_exact)

    def seconds_until(self, bound: float | None, control: MoveControl) -> float:
        """Return the seconds left until a bound; infinity for None or while the clock is paused."""
        if bound is None or control.is_clock_paused:
            return inf
        return control.start_time + bound - self.clock()

    def choose_leaves(self, budget: Budget, maximum: int) -> int:
        """Return the leaves per batch, 1 to `maximum`, so that MIN_ROUNDS fit in the soft bound."""
        # most searches end at the soft bound
        evaluations = (budget.soft or 0.0) / max(self.evaluation_seconds, 1e-6)
        return min(max(int(evaluations / MIN_ROUNDS), 1), maximum)


class MoveTimer:
    """Decides after every round whether to end the search."""

    def __init__(
        self,
        timings: Timings,
        search: Search,
        slot: int,
        budget: Budget,
        control: MoveControl,
        *,
        choices: int,
        leaves: int,
    ) -> None:
        """Create the timer of a search with `choices` root moves and `leaves` per batch."""
        self._timings, self._search, self._slot = timings, search, slot
        self._budget, self._control = budget, control
        self._choices, self._before = choices, search.root(slot).simulations
        self._started = self._last = timings.clock()
        self._next_probe = 0.0
        self.is_over = False
        """Whether time or the caller ended the search."""
        # a slow round must not shorten all later moves
        timings.longest_round = min(
            timings.longest_round, timings.evaluation_seconds * (1 + leaves)
        )

    def __call__(self) -> bool:
        """Record the end of a round; return whether to stop the search."""
        now = self._timings.clock()
        self._timings.longest_round = max(
            now - self._last, ESTIMATE_DECAY * self._timings.longest_round
        )
        self._last = now
        is_due = not self._control.is_clock_paused and self._is_due(now)
        self.is_over = self._control.stopped or is_due
        return self.is_over

    def _is_due(self, now: float) -> bool:
        """Return whether another round could end too late, or the move is decided."""
        if self._budget.hard is None or self._budget.soft is None:
            return False
        if now - self._control.start_time + self._timings.longest_round > self._budget.hard:
            return True
        if self._budget.is_exact or now < self._next_probe:
            return False
        self._next_probe = now + self._budget.soft / PROBES_PER_MOVE
        return self._choices < 2 or self._is_decided(
            self._search.root(self._slot), self._budget.soft, now
        )

    def _is_decided(self, root: Root, soft: float, now: float) -> bool:
        """Return whether more search is unlikely to change the move.

        Until the soft bound, this means that the most visited move cannot be overtaken; afterwards,
        that it is also the best by value.
        """
        spent = now - self._control.start_time
        if spent < MIN_SOFT_SHARE * soft or root.simulations <= self._before:
            return False  # without simulations, the speed is unknown
        second, first = np.partition(root.visits, -2)[-2:]
        if spent >= soft:
            return int(np.nan_to_num(root.values, nan=-2.0).argmax()) == int(root.visits.argmax())
        # simulations and seconds both include pondering
        speed = (root.simulations - self._before) / max(now - self._started, 1e-3)
        return bool(first - second > speed * (soft - spent))
