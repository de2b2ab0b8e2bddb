"""Waiting for what another process or thread does."""

import time
from collections.abc import Callable

LONG = 240.0
"""Seconds after which a test takes something for hung, however busy the machine is."""


def until(condition: Callable[[], object]) -> None:
    """Return when something is true."""
    end = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.01)
