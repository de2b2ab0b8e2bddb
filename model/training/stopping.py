"""Cooperative cancellation, polled inside a step, a validation, a compilation or a wait for rows.

A step may take minutes on a slow machine, and a run that is asked to stop has seconds. Work that is
left half-done changes nothing: weights, averages and statistics change only at the end of a step.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

from torch import Tensor, nn

from engine.progress import Stop

T = TypeVar("T")

POLL_SECONDS = 0.5
"""Between two polls inside a step; before each step it is polled anyway."""
WAIT_SECONDS = 0.1
"""Longest wait for another thread between two looks at the time."""


class WorkInterrupted(BaseException):
    """Work was left because the run is to stop; a BaseException, so that `except Exception` cannot
    swallow it.
    """


class StopCheck:
    """Polls whether to stop, on the thread that made it; other threads see the last answer."""

    def __init__(self, stop: Stop, *, inside: bool = True) -> None:
        """Poll `stop`; without `inside`, between steps only, since processes that share a step must
        leave it together.
        """
        self.stop, self.inside, self.stopped = stop, inside, False
        self.thread, self.polled = threading.get_ident(), time.monotonic()

    def __call__(self) -> bool:
        """Poll, and return whether to stop; after a yes it is not polled again."""
        self.stopped = self.stopped or self.stop()
        self.polled = time.monotonic()
        return self.stopped

    def check(self) -> None:
        """Raise WorkInterrupted when the run is to stop."""
        if not self.inside:
            return
        if threading.get_ident() == self.thread and time.monotonic() - self.polled >= POLL_SECONDS:
            self()
        if self.stopped:
            raise WorkInterrupted

    def result(self, future: Future[T]) -> T:
        """Return the result of another thread or raise its error; WorkInterrupted instead of
        waiting on.
        """
        while not wait([future], WAIT_SECONDS).done:
            self.check()
        return future.result()


NEVER_STOP = StopCheck(lambda: False, inside=False)
"""Stops nothing."""


def check_in_layers(network: nn.Module, check: Callable[[], None]) -> None:
    """Make every layer of a network call `check` before it runs, forward and backward, so that a
    pass can be left.
    """
    for layer in network.modules():
        if not any(True for _ in layer.children()):
            layer.register_forward_pre_hook(lambda *_: check())
            layer.register_forward_hook(
                lambda _layer, _inputs, output: _check_in_backward(output, check)
            )


def _check_in_backward(output: object, check: Callable[[], None]) -> None:
    if isinstance(output, Tensor) and output.requires_grad:
        output.register_hook(lambda _gradient: check())  # type: ignore[no-untyped-call]
