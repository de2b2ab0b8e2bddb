"""How long work reports on itself: a callback that takes ticks and knows no screen."""

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
    """What is counted: positions, bytes, steps."""
    values: Mapping[str, float] = field(default_factory=dict)
    """Figures worth showing beside the bar, such as loss or positions/s."""


Progress = Callable[[Tick], None]


def silent(tick: Tick) -> None:
    """Show nothing."""
