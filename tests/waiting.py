"""Waiting for what another process or thread does, and what a slow machine says meanwhile."""

import re
import time
from collections.abc import Callable

LONG = 500.0
"""Seconds after which a test takes something for hung, however busy the machine is."""


def until(condition: Callable[[], object]) -> None:
    """Return when something is true."""
    end = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.01)


SLOW = re.compile(r"fianchetto: (.* \d+ %\||compiling kernels|a step of )")


def drop_slow_lines(stderr: str) -> str:
    """Return what a command wrote but for lines that slow machines cause.

    They are progress every 45 s, the compilation of kernels, and a training step of more than five
    seconds.
    """
    return "".join(line for line in stderr.splitlines(keepends=True) if not SLOW.match(line))
