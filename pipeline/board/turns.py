"""Whose turn it is to compute: one request at a time, and short ones before the next step of a
review.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition


class Turns:
    """A lock with two lanes: a move waits for one step of a review at most, however many reviews
    there are.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._is_taken = False
        self._short = 0

    @contextmanager
    def take(self, *, is_short: bool) -> Iterator[None]:
        """Compute inside the block, alone; a step that is not short waits until no short request is
        left.
        """
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
