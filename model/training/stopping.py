"""The wish to stop, heard in the middle of a step, a measurement, a compilation or a wait for rows.

A step may take minutes on a slow machine, and whoever asks a run to stop gives it seconds. So long work asks now and then and
is left where it is: nothing of it counts, since weights, averages and statistics change at a step's end alone.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

from torch import Tensor, nn

from engine.progress import Stop

T = TypeVar("T")

ASK_SECONDS = 0.5
"""Between two questions inside a step; before each step it is asked anyway."""
WAIT_SECONDS = 0.1
"""Longest wait for another thread without a look at the time."""


class WorkInterrupted(BaseException):
    """Work is left undone because the run is to stop; no Exception, since nobody on its way may take it for a failure."""


class StopCheck:
    """Asks whether to stop, on the thread that made it; other threads see what was answered."""

    def __init__(self, stop: Stop, *, inside: bool = True) -> None:
        """Ask `stop`; without `inside`, between steps only: processes that share a step leave it together."""
        self.stop, self.inside, self.stopped = stop, inside, False
        self.thread, self.asked = threading.get_ident(), time.monotonic()

    def __call__(self) -> bool:
        """Ask, and tell whether to stop; who has said yes is not asked again."""
        self.stopped = self.stopped or self.stop()
        self.asked = time.monotonic()
        return self.stopped

    def check(self) -> None:
        """Raise WorkInterrupted when the work in hand is to be left."""
        if not self.inside:
            return
        if threading.get_ident() == self.thread and time.monotonic() - self.asked >= ASK_SECONDS:
            self()
        if self.stopped:
            raise WorkInterrupted

    def result(self, future: Future[T]) -> T:
        """Return what another thread works out, or raise what it raised; WorkInterrupted does not wait for it."""
        while not wait([future], WAIT_SECONDS).done:
            self.check()
        return future.result()


NEVER_STOP = StopCheck(lambda: False, inside=False)
"""Stops nothing."""


def check_in_layers(network: nn.Module, check: Callable[[], None]) -> None:
    """Have every layer of a network call `check` before it runs, forward and backward, so that a pass can be left."""
    for layer in network.modules():
        if not any(True for _ in layer.children()):
            layer.register_forward_pre_hook(lambda *_: check())
            layer.register_forward_hook(lambda _layer, _given, found: _check_in_backward(found, check))


def _check_in_backward(found: object, check: Callable[[], None]) -> None:
    if isinstance(found, Tensor) and found.requires_grad:
        found.register_hook(lambda _gradient: check())  # type: ignore[no-untyped-call]
