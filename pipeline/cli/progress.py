"""Progress bars and log lines of commands, on standard error.

On a terminal, each stage has a bar, which stays on screen when the stage ends. Without a terminal,
a line is printed every PRINT_INTERVAL_SECONDS.
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
LOGGED_PACKAGES = ("engine", "model", "pipeline")
"""Packages whose log lines are shown."""
PRINT_INTERVAL_SECONDS = 45.0
"""Seconds between progress lines without a terminal."""
LINE_WIDTH = 120
"""Width in characters of progress lines without a terminal."""
REDRAW_INTERVAL_SECONDS = 0.1
"""Minimum seconds between redraws on a terminal."""
BAR_FORMAT = "{desc} {percentage:3.0f} %|{bar:10}| {n_fmt}{unit}  {elapsed}<{remaining}{postfix}"
UNBOUNDED_BAR_FORMAT = "{desc} {n_fmt}{unit}  {elapsed}{postfix}"
"""tqdm format for a stage whose total is unknown."""


class _LogHandler(logging.Handler):
    """Print log messages above the progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        from tqdm import tqdm

        tqdm.write(f"fianchetto: {record.getMessage()}", file=sys.stderr)


def show_logs() -> None:
    """Print this project's log messages: warnings always, information only on a terminal."""
    handler = _LogHandler()
    for package in LOGGED_PACKAGES:
        logger = logging.getLogger(package)
        logger.setLevel(logging.INFO if sys.stderr.isatty() else logging.WARNING)
        logger.handlers, logger.propagate = [handler], False


def call_with_supported(work: Callable[..., T], **offered: Any) -> T:
    """Call `work` with those of the `offered` arguments for which it has parameters."""
    parameters = inspect.signature(work).parameters
    return work(**{name: value for name, value in offered.items() if name in parameters})


@contextmanager
def show_progress(command: str) -> Iterator[Progress]:
    """Yield a callback that shows the progress of a command."""
    bars = _StageBars(command)
    try:
        yield bars.show
    finally:
        bars.close()


class _StageBars:
    """The progress bars of a command, one per stage."""

    def __init__(self, command: str) -> None:
        self.command, self.is_terminal = command, sys.stderr.isatty()
        self.bar: tqdm[None] | None = None
        self.last_shown = time.monotonic()

    def show(self, tick: Tick) -> None:
        """Show a tick on the current bar, or on a new one if a new stage begins."""
        title = f"{self.command} {tick.stage}".rstrip()
        is_new_stage = self.bar is None or not self._is_same_stage(tick, title)
        if is_new_stage:
            self.close()
            self._open(tick, title)
        assert self.bar is not None
        figures = {name: _format_figure(value) for name, value in tick.values.items()}
        figures.pop("generation", None)
        validating = figures.pop("validating", None) is not None
        self.bar.set_description_str(f"{title} validating" if validating else title, refresh=False)
        self.bar.set_postfix(figures, refresh=False)
        self.bar.n, self.bar.total = tick.done, tick.total
        self.bar.bar_format = UNBOUNDED_BAR_FORMAT if tick.total is None else BAR_FORMAT
        self.last_tick, self.title = time.time(), title
        elapsed = time.monotonic() - self.last_shown
        if self.is_terminal and (is_new_stage or validating or elapsed >= REDRAW_INTERVAL_SECONDS):
            self.bar.refresh()
        elif not self.is_terminal and elapsed >= PRINT_INTERVAL_SECONDS:
            print(f"fianchetto: {self.bar}", file=sys.stderr, flush=True)  # noqa: T201
        else:
            return
        self.last_shown = time.monotonic()

    def close(self) -> None:
        """Close the bar, whose elapsed time then ends at the last tick."""
        if self.bar is not None:
            idle = time.time() - self.last_tick
            self.bar.start_t, self.bar.last_print_t = self.bar.start_t + idle, time.time()
            self.bar.close()
        self.bar = None

    def _open(self, tick: Tick, title: str) -> None:
        from tqdm import tqdm

        tqdm.monitor_interval = 0  # disable tqdm's thread, which would redraw the bar
        self.bar = tqdm(
            total=tick.total,
            initial=tick.done,
            desc=title,
            unit=tick.unit if tick.unit == "B" else f" {tick.unit}",
            unit_scale=True,
            file=sys.stderr if self.is_terminal else io.StringIO(),
            ncols=None if self.is_terminal else LINE_WIDTH,
            dynamic_ncols=self.is_terminal,
        )

    def _is_same_stage(self, tick: Tick, title: str) -> bool:
        assert self.bar is not None
        same_name = (self.title, self.bar.unit.strip()) == (title, tick.unit)
        return same_name and self.bar.total in (None, tick.total) and tick.done >= self.bar.n


def _format_figure(value: float) -> str:
    """Format a number with three significant digits: 2.31, 2.60k, 1.20M."""
    from tqdm import tqdm

    return tqdm.format_sizeof(value) if value >= 1000 else f"{value:.3g}"
