"""Warn when Numba starts to compile kernels, which takes a minute or two on a new machine."""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache

from numba.core import event

from engine.jit_cache import has_compiled_kernels

LOG = logging.getLogger(__name__)
COMPILING_MESSAGE = "compiling kernels: this takes a minute or two, and happens only once"


@cache
def log_compiling_once() -> None:
    """Log COMPILING_MESSAGE once per process."""
    LOG.warning(COMPILING_MESSAGE)


def announce_worker_compiling(module: str) -> None:
    """Log COMPILING_MESSAGE if no kernel of `module` is cached, so that workers must compile it."""
    if not has_compiled_kernels(module):
        log_compiling_once()


class _StartListener(event.Listener):
    def __init__(self, on_event: Callable[[], None]) -> None:
        self.on_event = on_event

    def on_start(self, event: event.Event) -> None:
        self.on_event()

    def on_end(self, event: event.Event) -> None:
        pass


def watch_compilations(on_compile: Callable[[], None]) -> AbstractContextManager[None]:
    """Call `on_compile` for each kernel compiled in the `with` block, but not for cached ones."""
    return event.install_listener("numba:compile", _StartListener(on_compile))


def announce_compiling() -> AbstractContextManager[None]:
    """Log COMPILING_MESSAGE, once per process, if a kernel is compiled in the `with` block."""
    return watch_compilations(log_compiling_once)
