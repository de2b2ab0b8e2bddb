"""Callbacks of long work: report progress, and poll whether to stop."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Tick:
    """One report of progress."""

    done: int
    """Units finished so far."""
    total: int | None
    """Units in all, None while unknown."""
    unit: str
    """Unit of `done` and `total`: positions, bytes, steps."""
    values: Mapping[str, float] = field(default_factory=dict)
    """Figures worth showing beside the bar, such as loss or positions/s."""
    stage: str = ""
    """Part of the work by name, where it has parts: `generation 1: self-play`."""


Progress = Callable[[Tick], None]


Stop = Callable[[], bool]
"""Returns True when the work should end early; polled often. Stopped work leaves no partial
files."""


def silent(tick: Tick) -> None:
    """Show nothing."""


def never() -> bool:
    """Return False: do not stop."""
    return False
