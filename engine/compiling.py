"""Announce Numba's compilation, which takes a minute or two on first use."""

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
    """Log the message once per process."""
    LOG.warning(MESSAGE)


def announce_to_workers(module: str) -> None:
    """Log the message if worker processes will compile: no kernel of a module is cached."""
    if not are_compiled(module):
        log_once()


class _Starts(event.Listener):
    """Calls a function at the start of each event."""

    def __init__(self, call: Callable[[], None]) -> None:
        self.call = call

    def on_start(self, event: event.Event) -> None:
        self.call()

    def on_end(self, event: event.Event) -> None:
        pass


def compilations(call: Callable[[], None]) -> AbstractContextManager[None]:
    """Call `call` when a kernel is compiled inside the block, not when it is loaded."""
    return event.install_listener("numba:compile", _Starts(call))


def announce_compiling() -> AbstractContextManager[None]:
    """Log the message when a kernel is compiled inside the block."""
    return compilations(log_once)
