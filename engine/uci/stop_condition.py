"""When the search of one `go` ends: asked after every round; it also reports the search's state now and then."""

from collections.abc import Callable

import numpy as np

from engine.search import Root, Search
from engine.search.time_manager import Budget, RoundTimer
from engine.uci.job import Job

FIRST_REPORT, LONGEST_WAIT = 0.25, 2.0
"""Seconds between reports: the first, and at most; each wait is twice the one before."""
PROBES = 20
"""The root is looked at so often within the time that a move should take..."""
PROBE_SECONDS = 0.01
"""...and so often where a depth or a mate is the limit."""
LEAST_SHARE = 0.2
"""No move is decided before this share of its time."""


class StopCondition:
    """Called after every round of a search; True when it must end."""

    def __init__(
        self,
        job: Job,
        search: Search,
        budget: Budget,
        timer: RoundTimer,
        choices: int,
        before: int,
        report: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        """Follow a job's search among `choices` moves, in whose tree `before` simulations are already.

        `report` writes `info` lines, `clock` returns the time. The number of moves is not in the tree, whose
        root may not be expanded yet.
        """
        self.over = False
        self._job, self._search, self._budget, self._timer = job, search, budget, timer
        self._report, self._clock = report, clock
        self._clocked = budget.soft is not None and job.go.movetime is None
        self._choices, self._before, self._started = choices, before, clock()
        self._wait = FIRST_REPORT
        self._next_report = clock() + self._wait
        self._next_probe = 0.0

    def __call__(self) -> bool:
        """Note that a round has ended and return whether it was the last."""
        now = self._clock()
        self._timer.round(now)
        self._timer.begun = self._job.begun
        self.over = self._job.stopped or (not self._job.held and self._enough(now))
        if not self.over and now >= self._next_report:
            self._report()
            self._wait = min(2 * self._wait, LONGEST_WAIT)
            self._next_report = now + self._wait
        return self.over

    def _enough(self, now: float) -> bool:
        if self._timer.too_late(self._budget.hard, now):
            return True
        go = self._job.go
        if now < self._next_probe or not (self._clocked or go.depth is not None or go.mate is not None):
            return False
        soft = self._budget.soft or 0.0
        self._next_probe = now + (soft / PROBES if self._clocked else PROBE_SECONDS)
        root = self._search.root(0)
        if go.depth is not None and len(self._search.line(0)) >= go.depth:
            return True
        if go.mate is not None and (go.mate < 1 or 0 < root.mate <= 2 * go.mate - 1):
            return True
        if not self._clocked and root.full >= 1.0:
            return True  # a depth or a mate that this memory does not reach
        return self._clocked and self._decided(root, soft, now)

    def _decided(self, root: Root, soft: float, now: float) -> bool:
        """Return whether to stop: one move, the first cannot be overtaken, or, at the soft bound, is best by value too."""
        if self._choices < 2:
            return True
        spent = now - self._job.begun
        if spent < LEAST_SHARE * soft or root.simulations <= self._before:
            return False  # nothing is known before the first simulation of this search
        second, first = np.partition(root.visits, -2)[-2:]
        if spent >= soft:
            return int(np.nan_to_num(root.values, nan=-2.0).argmax()) == int(root.visits.argmax())
        speed = (root.simulations - self._before) / max(now - self._started, 1e-3)  # pondering included
        return bool(first - second > speed * (soft - spent))
