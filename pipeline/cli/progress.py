"""Progress of commands on standard error, and the project's log lines.

On a terminal each stage has one line that is redrawn and stays when the stage ends. Elsewhere a line is printed now and then.
"""

import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from engine.progress import Progress, Tick

ROOMS = ("engine", "model", "pipeline")
"""The packages: parents of all loggers of the project."""
LINE_SECONDS = 45.0
"""Interval of lines without a terminal."""
LINE_WIDTH = 120
DRAW_SECONDS = 0.1
"""Interval of redraws on a terminal."""


class _Lines(logging.Handler):
    """Writes log lines to standard error, above the progress line."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
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
def bar(command: str) -> Iterator[Progress]:
    """Yield a progress callback that shows what a command does."""
    display = _Display(command)
    try:
        yield display.show
    finally:
        display.end()


class _Display:
    """The line of the current stage."""

    def __init__(self, command: str) -> None:
        self.command, self.terminal = command, sys.stderr.isatty()
        self.tick: Tick | None = None
        self.line: Any = None
        self.last_shown = time.monotonic()

    def show(self, tick: Tick) -> None:
        """Show a tick: on the line of its stage, or on a new line if it begins another stage."""
        if self.tick is None or not self._continues(tick):
            self.end()
            self.began, self.first = time.time(), tick.done
        self.tick, self.updated = tick, time.time()
        waited = time.monotonic() - self.last_shown
        if self.terminal and (self.line is None or waited >= DRAW_SECONDS or "validating" in tick.values):
            self._draw(self._text(tick, _terminal_width()))
        elif not self.terminal and waited >= LINE_SECONDS:
            print(f"fianchetto: {self._text(tick, LINE_WIDTH)}", file=sys.stderr, flush=True)  # noqa: T201
        else:
            return
        self.last_shown = time.monotonic()

    def end(self) -> None:
        """Leave the line of the stage with the time that it took."""
        if self.tick is not None and self.terminal:
            self._draw(self._text(self.tick, _terminal_width(), ended=True))
            self.line.close()
        self.tick = self.line = None

    def _continues(self, tick: Tick) -> bool:
        """Return whether a tick belongs to the current stage."""
        assert self.tick is not None
        same = (self.tick.unit, self.tick.stage) == (tick.unit, tick.stage)
        return same and self.tick.total in (None, tick.total) and tick.done >= self.tick.done

    def _draw(self, text: str) -> None:
        if self.line is None:
            from tqdm import tqdm

            tqdm.monitor_interval = 0  # its thread would redraw the line too
            self.line = tqdm(bar_format="{desc}")
        self.line.set_description_str(text)

    def _text(self, tick: Tick, width: int, *, ended: bool = False) -> str:
        """Write `train  step 1,200  41 %  loss 2.31  2.6k positions/s  1:10 left`, with the figures that fit the width."""
        values = dict(tick.values)
        _, step, validating = (values.pop(name, None) for name in ("generation", "step", "validating"))
        step = tick.done if tick.unit == "steps" else step
        head = [f"{self.command} {tick.stage}".rstrip()]
        if step is not None:
            head.append(f"step {step:,.0f}")
        elif tick.unit == "B":
            head.append(f"{_short(tick.done)}B")
        elif tick.unit != "s":
            head.append(f"{tick.done:,} {tick.unit.removesuffix('s') if tick.done == 1 else tick.unit}")
        if tick.total:
            head.append(f"{100 * tick.done // tick.total:.0f} %")
        figures, tail = [_figure(name, value) for name, value in values.items()], []
        elapsed, gained = self.updated - self.began, tick.done - self.first
        if ended:
            tail = [f"took {_clock(elapsed)}"]
        elif validating:
            figures, tail = [], ["validating ..."]
        elif tick.total and gained > 0:
            left = (tick.total - tick.done) * (1 if tick.unit == "s" else elapsed / gained)
            tail = [f"{_clock(left)} left"]
        while figures and len("  ".join([*head, *figures, *tail])) >= width:
            figures.pop(1 if len(figures) > 2 else -1)  # keeps the loss and the rate longest
        return "  ".join([*head, *figures, *tail])[: width - 1]


def _terminal_width() -> int:
    """Return the columns of the terminal on standard error, 80 if it does not say."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def _clock(seconds: float) -> str:
    """Write seconds as 1:10 or 2:01:10."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"


def _short(value: float) -> str:
    """Write a number with three digits: 2.31, 2.6k, 1.2M, 3.4G."""
    for power, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= power:
            return f"{value / power:.1f}{letter}"
    return f"{value:.3g}"


def _figure(name: str, value: float) -> str:
    """Write one figure: counts and rates before their names, others behind them."""
    name = name.replace("_per_", "/").replace("/second", "/s").replace("_", " ")
    return f"{_short(value)} {name}" if "/" in name or isinstance(value, int) or value >= 100 else f"{name} {value:.3g}"
