"""Progress of commands: one line that changes on a terminal, a line now and then elsewhere; and the project's log lines."""

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
"""Interval of lines where there is no terminal."""
LINE_WIDTH = 120
DRAW_SECONDS = 0.1
"""Interval of drawings on a terminal."""


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
    """Give a progress callback that keeps a line on standard error up to date, or without a terminal prints one now and then.

    Work of another kind, or the same kind begun anew, has a line of its own; the one before stays, with the time it took.
    """
    shown = _Shown(what)
    try:
        yield shown.show
    finally:
        shown.end()


class _Shown:
    """What is shown of a command's progress."""

    def __init__(self, what: str) -> None:
        self.what, self.terminal = what, sys.stderr.isatty()
        self.stage: _Stage | None = None
        self.line: Any = None
        self.said = time.monotonic()

    def show(self, tick: Tick) -> None:
        """Show a tick: on the line of its stage, or on a new line where it begins another."""
        now = time.monotonic()
        if self.stage is None or not self.stage.take(tick):
            self.end()
            self.stage = _Stage(self.what, tick)
        if not self.terminal and now - self.said >= LINE_SECONDS:
            print(f"fianchetto: {self.stage.text(LINE_WIDTH)}", file=sys.stderr, flush=True)  # noqa: T201
            self.said = now
        if self.terminal and (self.line is None or now - self.said >= DRAW_SECONDS or "validating" in tick.values):
            self._draw(self.stage.text(_width()))
            self.said = now

    def end(self) -> None:
        """Leave the line of the stage with the time that it took."""
        if self.stage is not None and self.terminal:
            self._draw(self.stage.text(_width(), over=True))
            self.line.close()
        self.line = self.stage = None

    def _draw(self, text: str) -> None:
        if self.line is None:
            from tqdm import tqdm

            tqdm.monitor_interval = 0  # its thread would draw the line again meanwhile
            self.line = tqdm(bar_format="{desc}")
        self.line.set_description_str(text)


class _Stage:
    """Work of one kind: its latest tick, and when it began."""

    def __init__(self, what: str, tick: Tick) -> None:
        self.what, self.tick, self.first = what, tick, tick.done
        self.began = self.seen = time.time()

    def take(self, tick: Tick) -> bool:
        """Take a tick of this stage; return whether it is one."""
        alike = (self.tick.unit, self.tick.stage) == (tick.unit, tick.stage)
        alike = alike and (self.tick.total is None or self.tick.total == tick.total)
        if alike and tick.done >= self.tick.done:
            self.tick, self.seen = tick, time.time()
            return True
        return False

    def text(self, width: int, *, over: bool = False) -> str:
        """Write `train  step 1,200  41 %  loss 2.31  2.6k positions/s  1:10 left`, with what figures fit the width."""
        tick, values = self.tick, dict(self.tick.values)
        _, step, validating = (values.pop(name, None) for name in ("generation", "step", "validating"))
        step = tick.done if tick.unit == "steps" else step
        head = [f"{self.what} {tick.stage}".rstrip()]
        if step is not None:
            head.append(f"step {step:,.0f}")
        elif tick.unit == "B":
            head.append(f"{_short(tick.done)}B")
        elif tick.unit != "s":
            head.append(f"{tick.done:,} {tick.unit.removesuffix('s') if tick.done == 1 else tick.unit}")
        if tick.total:
            head.append(f"{100 * tick.done // tick.total:.0f} %")
        figures = [_figure(name, value) for name, value in values.items()]
        elapsed, gained = self.seen - self.began, tick.done - self.first
        tail = []
        if over:
            tail = [f"took {_clock(elapsed)}"]
        elif validating:
            figures, tail = [], ["validating ..."]
        elif tick.total and gained > 0:
            left = (tick.total - tick.done) * elapsed / gained if tick.unit != "s" else tick.total - tick.done
            tail = [f"{_clock(left)} left"]
        while figures and len("  ".join([*head, *figures, *tail])) >= width:
            figures.pop(1 if len(figures) > 2 else -1)  # what stands between the loss and the rate goes first
        return "  ".join([*head, *figures, *tail])[: width - 1]


def _width() -> int:
    """Return the columns of the terminal on standard error, 80 where it says none."""
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
    """Write one figure: counts and rates before their name, others behind it."""
    name = name.replace("_per_", "/").replace("/second", "/s").replace("_", " ")
    return f"{_short(value)} {name}" if "/" in name or isinstance(value, int) or value >= 100 else f"{name} {value:.3g}"
