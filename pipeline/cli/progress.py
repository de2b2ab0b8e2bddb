"""Progress bars on a terminal, nothing elsewhere; and the project's log lines."""

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from engine.progress import Progress, Tick, silent

ROOMS = ("engine", "model", "pipeline")
"""The packages: parents of all loggers of the project."""


def _figure(name: str, value: float) -> str:
    """Write one figure beside the bar, short."""
    if value >= 10_000:
        return f"{value / 1e6:.2f} M {name}" if value >= 1e6 else f"{value / 1e3:.0f} k {name}"
    return f"{name} {value:.3f}" if value < 100 else f"{value:,.0f} {name}"


class _Lines(logging.Handler):
    """Writes log lines to standard error, above the bars there."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one."""
        line = f"fianchetto: {record.getMessage()}"
        if "tqdm" in sys.modules:
            from tqdm import tqdm

            tqdm.write(line, file=sys.stderr)
        else:
            print(line, file=sys.stderr, flush=True)  # noqa: T201


def show_logs() -> None:
    """Show the project's log lines: warnings always, the rest on a terminal."""
    lines = _Lines()
    for room in ROOMS:
        logger = logging.getLogger(room)
        logger.setLevel(logging.INFO if sys.stderr.isatty() else logging.WARNING)
        logger.handlers, logger.propagate = [lines], False


@contextmanager
def bar(what: str) -> Iterator[Progress]:
    """Return a progress callback that draws a bar on standard error when that is a terminal, and nothing otherwise.

    Work of another kind, or the same kind begun anew, has a bar of its own; the one before is left as it ended, with the time
    that it took.
    """
    if not sys.stderr.isatty():
        yield silent
        return
    from tqdm import tqdm

    shown: Any = None
    seen = 0.0

    def end() -> None:
        if shown is not None:
            idle = time.time() - seen  # it draws itself once more, and must not count what came after it
            shown.start_t += idle
            shown.last_print_t += idle
            shown.close()

    def show(tick: Tick) -> None:
        nonlocal shown, seen
        if shown is None or (shown.unit, shown.total or tick.total) != (tick.unit, tick.total) or tick.done < shown.n:
            end()
            shown = tqdm(total=tick.total, desc=what, unit=tick.unit, unit_scale=True, dynamic_ncols=True)
        seen = time.time()
        shown.total = tick.total
        shown.set_postfix_str(", ".join(_figure(name, value) for name, value in tick.values.items()), refresh=False)
        shown.update(tick.done - shown.n)

    tqdm.monitor_interval = 0  # its thread would draw a bar again, and its time go on, while something else is done
    try:
        yield show
    finally:
        end()
