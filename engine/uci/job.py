"""One `go`: its limits and position, and how the reading thread stops it or ends its pondering."""

import threading

import chess

from engine.uci.commands import Go
from engine.uci.options import Options
from engine.uci.position import GameHistory


class Job:
    """The thinking thread's task. The reading thread calls `stop` and `hit`; nothing else changes it."""

    def __init__(self, go: Go, options: Options, board: chess.Board, history: GameHistory, begun: float) -> None:
        """Take a `go` that came at time `begun`; `board` is the job's own, with the game's moves on it."""
        self.go = go
        self.options = options
        self.board = board
        self.history = history
        self.begun = begun
        self.pondering = go.ponder
        self.stopped = False
        self.answered = False
        self.over = threading.Event()
        """Set when `bestmove` has been written, which is after `answered` is: a GUI may send the next `go` at once."""
        self._wake = threading.Event()

    @property
    def held(self) -> bool:
        """Return whether the answer must wait for `stop` or `ponderhit`, however long ago it was found."""
        return not self.stopped and (self.pondering or self.go.infinite)

    @property
    def bounded(self) -> bool:
        """Return whether it ends by itself."""
        go = self.go
        limits = (go.nodes, go.depth, go.mate, go.movetime, go.white_time, go.black_time, go.perft)
        bound = any(limit is not None for limit in limits) or self.options.simulations > 0 or self.options.policy
        return bound and not self.held

    def stop(self) -> None:
        """Ask for the answer now."""
        self.stopped = True
        self._wake.set()

    def hit(self, now: float) -> None:
        """Say that the opponent played the move pondered on: the mover's clock runs from now."""
        self.begun = now
        self.pondering = False
        self._wake.set()

    def wait(self) -> None:
        """Sleep while the answer is held back."""
        while self.held:
            self._wake.wait()
            self._wake.clear()
