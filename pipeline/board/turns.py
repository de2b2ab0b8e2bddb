"""A lock that lets one request compute at a time, short requests first."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition


class Turns:
    """A lock with two lanes: a short request waits for at most one step of a review."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._is_taken = False
        self._short = 0

    @contextmanager
    def take(self, *, is_short: bool) -> Iterator[None]:
        """Hold the lock inside the block; long steps wait until no short request is waiting."""
        with self._changed:
            self._short += is_short
            self._changed.wait_for(lambda: not self._is_taken and (is_short or not self._short))
            self._short -= is_short
            self._is_taken = True
        try:
            yield
        finally:
            with self._changed:
                self._is_taken = False
                self._changed.notify_all()
