"""Callbacks of long-running work: report progress, and check whether to stop."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Tick:
    """A progress report."""

    done: int
    """Units finished so far."""
    total: int | None
    """Total units; None if not yet known."""
    unit: str
    """Unit of `done` and `total`: positions, bytes, steps."""
    values: Mapping[str, float] = field(default_factory=dict)
    """Figures to show next to the progress bar, by name, such as the loss."""
    stage: str = ""
    """Name of the current stage, such as `generation 1: self-play`; empty if there is only one."""


Progress = Callable[[Tick], None]
"""Receives a report from time to time while the work runs."""

Stop = Callable[[], bool]
"""Returns True to stop the work early; polled often. Stopped work can be resumed or repeated."""


def silent(tick: Tick) -> None:
    """Ignore a progress report."""


def never() -> bool:
    """Return False, so that the work is never stopped."""
    return False
