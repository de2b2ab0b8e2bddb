"""Matches between evaluators and UCI engines, and statistics of their results."""

from dataclasses import dataclass

from engine.errors import UserError


class PlayerError(UserError):
    """A player cannot be started, or its description is invalid."""


class MatchError(UserError):
    """The settings of a match are invalid, or do not fit the games that its folder holds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """Time or node limit of a player's moves.

    Without a time limit, this project's search runs its configured number of simulations, and an
    engine searches `nodes`.
    """

    nodes: int | None = None
    """Nodes that a UCI engine searches per move; ignored on a clock."""
    movetime: float | None = None
    """Seconds per move."""
    base: float | None = None
    """Seconds on the clock at the start of the game."""
    increment: float = 0.0
    """Seconds added to the clock after every move."""
    moves: int | None = None
    """Number of moves after which the clock gains `base`; None if there is one time control for the
    whole game."""

    @property
    def clock(self) -> str | None:
        """The clock as a TimeControl of PGN, such as 10+0.1 or 40/60+0.5; None without a clock."""
        if self.base is None:
            return None
        if self.moves is None:
            return f"{self.base:g}+{self.increment:g}"
        return f"{self.moves}/{self.base:g}" + (f"+{self.increment:g}" if self.increment else "")

    @property
    def is_timed(self) -> bool:
        """Whether the moves have a time limit."""
        return self.movetime is not None or self.base is not None
