"""One `go`: what was asked and of which position, and how the reading thread ends or releases it."""

import threading

import chess

from engine.uci.commands import Go
from engine.uci.options import Options
from engine.uci.position import Story


class Job:
    """What the thinking thread works on. The reading thread calls `stop` and `hit`; nobody else changes it."""

    def __init__(self, go: Go, options: Options, board: chess.Board, story: Story, begun: float) -> None:
        """Take a `go` that came at time `begun`; `board` is the job's own, with the game's moves on it."""
        self.go = go
        self.options = options
        self.board = board
        self.story = story
        self.begun = begun
        self.pondering = go.ponder
        self.stopped = False
        self.answered = False
        self.over = threading.Event()
        """Set when its answer has been said, which is after `answered` is: who hears it may ask on at once."""
        self._wake = threading.Event()

    @property
    def held(self) -> bool:
        """Tell whether the answer must wait for `stop` or `ponderhit`, however long ago it was found."""
        return not self.stopped and (self.pondering or self.go.infinite)

    @property
    def bounded(self) -> bool:
        """Tell whether it ends by itself."""
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
