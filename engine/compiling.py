"""Compiling kernels, said aloud: Numba does it at a kernel's first call on a machine, which takes a minute or two in all.

It is said through `logging`, as a warning of this module's logger, so that it is heard without any setting; the command line
and the Dagster child decide where. `engine.jit_cache` says where kernels are kept.
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
    """Say it, once a process."""
    LOG.warning(MESSAGE)


def say_for_workers(module: str) -> None:
    """Say it where other processes will compile, since none of a module's kernels is kept."""
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
    """Say it when this process begins to compile a kernel meanwhile; one that is loaded is none."""
    with event.install_listener("numba:compile", _Starts(say_once)):
        yield


@contextmanager
def interruptible(check: Callable[[], None]) -> Iterator[None]:
    """Call `check` at each pass of the compiler meanwhile; what it raises ends the compilation.

    It should raise no Exception: Numba takes those for a kernel's mistakes.
    """
    with event.install_listener("numba:run_pass", _Starts(check)):
        yield
