"""How long work talks to its caller: a callback that takes ticks, and one that says whether to stop."""

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


Stop = Callable[[], bool]
"""Asked again and again while work goes on: True means that it should stop."""


def silent(tick: Tick) -> None:
    """Show nothing."""


def never() -> bool:
    """Return False: do not stop."""
    return False
