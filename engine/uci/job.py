"""One `go`: its limits and position, how the reading thread stops it or ends its pondering, and when its search ends."""

import threading
from collections.abc import Callable

import chess

from engine.search import Search
from engine.search.clock import MoveTimer
from engine.uci.commands import Go
from engine.uci.options import Options

FIRST_REPORT, LONGEST_WAIT = 0.25, 2.0
"""Seconds before the first report, and the longest between reports; each wait is twice the one before."""
PROBE_SECONDS = 0.01
"""Seconds between looks at the root where a depth or a mate is the limit."""


class Job:
    """The thinking thread's task. The reading thread calls `stop` and `ponderhit`; nothing else changes it."""

    def __init__(self, go: Go, options: Options, board: chess.Board, start: str, begun: float) -> None:
        """Take a `go` that came at time `begun`; `board` is the job's own copy, with the game's moves from the FEN `start`."""
        self.go, self.options, self.board, self.start = go, options, board, start
        self.begun = begun
        self.pondering = go.ponder
        self.stopped = self.answered = False
        self.over = threading.Event()
        """Set when `bestmove` has been written, which is after `answered` is: a GUI may send the next `go` at once."""
        self._wake = threading.Event()

    @property
    def is_held(self) -> bool:
        """Whether the answer must wait for `stop` or `ponderhit`, however long ago it was found."""
        return not self.stopped and (self.pondering or self.go.infinite)

    @property
    def is_bounded(self) -> bool:
        """Whether the search ends without `stop`."""
        go = self.go
        limits = (go.nodes, go.depth, go.mate, go.movetime, go.wtime, go.btime)
        quick = self.options.style != "search" or self.options.limit_strength
        bound = any(limit is not None for limit in limits) or self.options.simulations > 0 or quick
        return bound and not self.is_held

    def stop(self) -> None:
        """Ask for the answer now."""
        self.stopped = True
        self._wake.set()

    def ponderhit(self, now: float) -> None:
        """Start the mover's clock: the opponent played the expected move."""
        self.begun = now
        self.pondering = False
        self._wake.set()

    def wait(self) -> None:
        """Sleep while the answer is held back."""
        while self.is_held:
            self._wake.wait()
            self._wake.clear()


class StopCondition:
    """Called after every round of a job's search: True when it must end. Reports the search's state now and then."""

    def __init__(self, job: Job, search: Search, timer: MoveTimer, report: Callable[[], object], now: float) -> None:
        self._job, self._search, self._timer, self._report = job, search, timer, report
        self._wait = FIRST_REPORT
        self._next_report = now + self._wait
        self._next_probe = 0.0

    def __call__(self) -> bool:
        """End a round; return whether it was the last."""
        self._timer.begun = self._job.begun  # `ponderhit` moves it
        now = self._timer.end_round()
        if self._job.stopped or (not self._job.is_held and (self._timer.is_due(now) or self._is_found(now))):
            return True
        if now >= self._next_report:
            self._report()
            self._wait = min(2 * self._wait, LONGEST_WAIT)
            self._next_report = now + self._wait
        return False

    def _is_found(self, now: float) -> bool:
        """Return whether the depth or the mate that `go` asks for is reached, or out of reach in this memory."""
        go = self._job.go
        if (go.depth is None and go.mate is None) or now < self._next_probe:
            return False
        self._next_probe = now + PROBE_SECONDS
        root = self._search.root(0)
        if go.depth is not None and len(self._search.line(0)) >= go.depth:
            return True
        if go.mate is not None and (go.mate < 1 or 0 < root.mate <= 2 * go.mate - 1):
            return True
        return root.full >= 1.0
