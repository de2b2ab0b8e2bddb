"""Matches between evaluators, searches and UCI engines, and statistics of their results."""

from dataclasses import dataclass

from engine.errors import UserError


class PlayerError(UserError):
    """A player that cannot be started, or whose description cannot be read."""


class MatchError(UserError):
    """Settings of a match out of range, or that do not fit each other."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """Limit of a player's moves.

    Without a time limit, our search takes its simulations and an engine its nodes.
    """

    nodes: int | None = None
    """Nodes of an engine's move."""
    movetime: float | None = None
    """Seconds of every move."""
    base: float | None = None
    """Seconds on the clock when the game begins."""
    increment: float = 0.0
    """Seconds added to the clock after every move."""
    moves: int | None = None
    """Moves per time control, after each of which the clock gains `base`; None for one time control
    for the whole game."""

    @property
    def clock(self) -> str | None:
        """The clock as PGN's TimeControl: 10+0.1, 40/60 or 40/60+0.5; None where there is none."""
        if self.base is None:
            return None
        if self.moves is None:
            return f"{self.base:g}+{self.increment:g}"
        return f"{self.moves}/{self.base:g}" + (f"+{self.increment:g}" if self.increment else "")

    @property
    def timed(self) -> bool:
        """Whether time bounds the moves."""
        return self.movetime is not None or self.base is not None
