"""Announce that kernels are compiled: Numba does so at a kernel's first call on a machine, a minute or two in all.

The message is a warning of this module's logger, which is shown without any setting; the command line and the Dagster child
decide where. `engine.jit_cache` decides where kernels are kept.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

from numba.core import event

from engine.jit_cache import are_compiled

LOG = logging.getLogger(__name__)
MESSAGE = "compiling kernels (once): this takes a minute or two, and is kept for the next time"


@cache
def say_once() -> None:
    """Log the message, once a process."""
    LOG.warning(MESSAGE)


def say_for_workers(module: str) -> None:
    """Log the message where worker processes will compile, since none of a module's kernels is kept."""
    if not are_compiled(module):
        say_once()


class _Starts(event.Listener):
    """Calls a function at the beginning of each event."""

    def __init__(self, call: Callable[[], None]) -> None:
        self.call = call

    def on_start(self, event: event.Event) -> None:
        """Call it."""
        self.call()

    def on_end(self, event: event.Event) -> None:
        """Do nothing."""


@contextmanager
def announced() -> Iterator[None]:
    """Log the message when this process compiles a kernel meanwhile; loading one does not count."""
    with event.install_listener("numba:compile", _Starts(say_once)):
        yield


@contextmanager
def interruptible(check: Callable[[], None]) -> Iterator[None]:
    """Call `check` at each pass of the compiler meanwhile; what it raises ends the compilation.

    It must raise a BaseException that is no Exception: Numba treats those as errors of the kernel.
    """
    with event.install_listener("numba:run_pass", _Starts(check)):
        yield
