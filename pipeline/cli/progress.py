"""Progress bars and log lines of commands, on standard error.

On a terminal each stage has a bar, which stays on screen when the stage ends. Elsewhere a line is
printed every LINE_SECONDS.
"""

import inspect
import io
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from engine.progress import Progress, Tick

if TYPE_CHECKING:
    from tqdm import tqdm

T = TypeVar("T")
PACKAGES = ("engine", "model", "pipeline")
"""Packages whose log lines are shown."""
LINE_SECONDS = 45.0
"""Seconds between lines without a terminal."""
LINE_WIDTH = 120
DRAW_SECONDS = 0.1
"""Seconds between redraws on a terminal."""
FORMAT = "{desc} {percentage:3.0f} %|{bar:10}| {n_fmt}{unit}  {elapsed}<{remaining}{postfix}"
UNBOUNDED_FORMAT = "{desc} {n_fmt}{unit}  {elapsed}{postfix}"
"""Format of the line of a stage whose total is unknown."""


class _LogHandler(logging.Handler):
    """Writes log lines to standard error, above the progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        from tqdm import tqdm

        tqdm.write(f"fianchetto: {record.getMessage()}", file=sys.stderr)


def show_logs() -> None:
    """Show the project's log lines: warnings always, the rest on a terminal."""
    lines = _LogHandler()
    for package in PACKAGES:
        logger = logging.getLogger(package)
        logger.setLevel(logging.INFO if sys.stderr.isatty() else logging.WARNING)
        logger.handlers, logger.propagate = [lines], False


def call_with(work: Callable[..., T], **offered: Any) -> T:
    """Call `work` with those of the `offered` arguments that it has parameters for."""
    parameters = inspect.signature(work).parameters
    return work(**{name: value for name, value in offered.items() if name in parameters})


@contextmanager
def bar(command: str) -> Iterator[Progress]:
    """Yield a callback that shows the progress of a command."""
    bars = _Bars(command)
    try:
        yield bars.show
    finally:
        bars.close()


class _Bars:
    """The progress bars of a command, one per stage."""

    def __init__(self, command: str) -> None:
        self.command, self.terminal = command, sys.stderr.isatty()
        self.bar: tqdm[None] | None = None
        self.shown = time.monotonic()

    def show(self, tick: Tick) -> None:
        """Show a tick on the current bar, or on a new one if a new stage begins."""
        title = f"{self.command} {tick.stage}".rstrip()
        begins = self.bar is None or not self._continues(tick, title)
        if begins:
            self.close()
            self._open(tick, title)
        assert self.bar is not None
        figures = {name: _short(value) for name, value in tick.values.items()}
        figures.pop("generation", None)
        validating = figures.pop("validating", None) is not None
        self.bar.set_description_str(f"{title} validating" if validating else title, refresh=False)
        self.bar.set_postfix(figures, refresh=False)
        self.bar.n, self.bar.total = tick.done, tick.total
        self.bar.bar_format = UNBOUNDED_FORMAT if tick.total is None else FORMAT
        self.updated, self.title = time.time(), title
        waited = time.monotonic() - self.shown
        if self.terminal and (begins or validating or waited >= DRAW_SECONDS):
            self.bar.refresh()
        elif not self.terminal and waited >= LINE_SECONDS:
            print(f"fianchetto: {self.bar}", file=sys.stderr, flush=True)  # noqa: T201
        else:
            return
        self.shown = time.monotonic()

    def close(self) -> None:
        """Close the bar; its elapsed time ends at the last tick."""
        if self.bar is not None:
            idle = time.time() - self.updated
            self.bar.start_t, self.bar.last_print_t = self.bar.start_t + idle, time.time()
            self.bar.close()
        self.bar = None

    def _open(self, tick: Tick, title: str) -> None:
        from tqdm import tqdm

        tqdm.monitor_interval = 0  # its thread would redraw the bar
        self.bar = tqdm(
            total=tick.total,
            initial=tick.done,
            desc=title,
            unit=tick.unit if tick.unit == "B" else f" {tick.unit}",
            unit_scale=True,
            file=sys.stderr if self.terminal else io.StringIO(),
            ncols=None if self.terminal else LINE_WIDTH,
            dynamic_ncols=self.terminal,
        )

    def _continues(self, tick: Tick, title: str) -> bool:
        """Return whether a tick belongs to the current bar's stage."""
        assert self.bar is not None
        same = (self.title, self.bar.unit.strip()) == (title, tick.unit)
        return same and self.bar.total in (None, tick.total) and tick.done >= self.bar.n


def _short(value: float) -> str:
    """Write a figure with three digits: 2.31, 2.60k, 1.20M."""
    from tqdm import tqdm

    return tqdm.format_sizeof(value) if value >= 1000 else f"{value:.3g}"
