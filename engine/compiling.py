"""Warn when Numba starts to compile kernels, which takes a minute or two on a new machine."""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache

from numba.core import event

from engine.jit_cache import are_compiled

LOG = logging.getLogger(__name__)
MESSAGE = "compiling kernels: this takes a minute or two, and happens only once"


@cache
def log_once() -> None:
    """Log MESSAGE, at most once per process."""
    LOG.warning(MESSAGE)


def announce_to_workers(module: str) -> None:
    """Log MESSAGE if no kernel of `module` is cached, so that worker processes will compile."""
    if not are_compiled(module):
        log_once()


class _Starts(event.Listener):
    """Listener that calls a function at the start of each event."""

    def __init__(self, call: Callable[[], None]) -> None:
        self.call = call

    def on_start(self, event: event.Event) -> None:
        self.call()

    def on_end(self, event: event.Event) -> None:
        pass


def compilations(call: Callable[[], None]) -> AbstractContextManager[None]:
    """Call `call` for each kernel compiled in the `with` block; cached kernels do not count."""
    return event.install_listener("numba:compile", _Starts(call))


def announce_compiling() -> AbstractContextManager[None]:
    """Log MESSAGE if a kernel is compiled in the `with` block."""
    return compilations(log_once)
