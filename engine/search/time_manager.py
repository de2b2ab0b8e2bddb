"""Time management: from the chess clock to seconds for a move, and when its search must stop.

Nothing here reads a clock: callers pass the time, so that tests can.
"""

from dataclasses import dataclass

MOVES_TO_GO = 40
"""Moves that the rest of a game is assumed to last, and the most that a time control may name."""
STRETCH = 4.0
"""A move may take this many times its share of the clock while the most visited move is not the best by value."""
LARGEST_SHARE = 0.5
"""Largest share of the clock that a move takes..."""
LAST_SHARE = 0.8
"""...and that the last move before a time control takes."""
RESERVED_MOVES = 100
"""Moves whose overhead the clock keeps in reserve, as far as increments do not pay for it."""
FORGETTING = 0.9
"""Decay of the longest round with every round after it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Limits of a move, in seconds; a clock may be negative, as match runners send it."""

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

    @property
    def timed(self) -> bool:
        """Return whether there is a bound at all."""
        return self.hard is not None


def budget(limits: Limits, overhead: float) -> Budget:
    """Return the time of a move; `overhead` seconds of every move are lost between engine and GUI.

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
    return Budget(min(soft, hard), hard)


def _share(limits: Limits, left: float, overhead: float) -> tuple[float, float]:
    moves = min(max(limits.moves_to_go or MOVES_TO_GO, 1), MOVES_TO_GO)
    increment = max(limits.increment, 0.0)
    most = max(min(left - overhead, (LARGEST_SHARE if moves > 1 else LAST_SHARE) * left), 0.0)
    reserved = RESERVED_MOVES if limits.moves_to_go is None else moves
    reserve = 2 * overhead + reserved * max(overhead - increment, 0.0)
    scarce = reserve > left / 2
    shared = left - min(reserve, left / 2) + (increment - min(overhead, increment)) * (moves - 1)
    soft = min(max(shared / moves, 0.0), most)
    return soft, soft if scarce else min(STRETCH * soft, most)


class RoundTimer:
    """Measures the rounds of one move's search and predicts whether the next one would end too late."""

    def __init__(self, begun: float, longest_round: float) -> None:
        """Begin a move asked for at time `begun`, the rounds so far having taken up to `longest_round` seconds."""
        self.begun = self._last = begun
        self.longest_round = longest_round

    def start(self, now: float) -> None:
        """Begin the first round now, which may be later than `begun`."""
        self._last = now

    def round(self, now: float) -> None:
        """End a round now, and begin the next."""
        self.longest_round = max(now - self._last, FORGETTING * self.longest_round)
        self._last = now

    def too_late(self, bound: float | None, now: float) -> bool:
        """Return whether another round, should it last as long as the longest, would end behind `bound` seconds."""
        return bound is not None and now - self.begun + self.longest_round > bound
