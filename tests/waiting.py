"""Wait for other processes and threads, and drop messages that only slow machines print."""

import re
import time
from collections.abc import Callable

HANG_TIMEOUT_SECONDS = 500.0
"""Timeout of tests in seconds, long enough for a busy machine."""


def until(condition: Callable[[], object]) -> None:
    """Wait until a condition is true."""
    end = time.monotonic() + HANG_TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < end, "timeout"
        time.sleep(0.01)


SLOW_LINE = re.compile(r"fianchetto: (.* \d+ %\||compiling kernels|a step of )")


def drop_slow_lines(stderr: str) -> str:
    """Remove lines that only slow machines print.

    They report progress (every 45 s), compiling of kernels, and training steps of more than 5 s.
    """
    return "".join(line for line in stderr.splitlines(keepends=True) if not SLOW_LINE.match(line))
