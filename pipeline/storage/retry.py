"""Requests to servers and stores, made again after waits that double: the only back-off loop."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from engine.progress import Stop, never
from pipeline.errors import ConfigError, Stopped

T = TypeVar("T")

Refusal = Callable[[Exception, bool], Exception | None]
"""(what a request raised, whether it was the last attempt) to what is raised in its place; None to try again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Patience:
    """How long to wait for what does not come."""

    attempts: int = 6
    """Requests in a row that may bring nothing before the file is given up."""
    connect_seconds: float = 15.0
    """Seconds within which a connection must stand."""
    stall_seconds: float = 60.0
    """Seconds without a byte after which a connection is given up."""
    first_wait: float = 1.0
    """Seconds before the second request; each later wait is twice as long."""
    longest_wait: float = 300.0
    """Seconds of the longest wait; a server that asks for a longer one is not asked again."""

    def __post_init__(self) -> None:
        """Check what the types do not say."""
        if not 1 <= self.attempts <= 1000:
            raise ConfigError(f"attempts is from 1 to 1000, not {self.attempts}")
        if self.connect_seconds <= 0 or self.stall_seconds <= 0:
            raise ConfigError("connect_seconds and stall_seconds are above 0")
        if not 0 <= self.first_wait <= self.longest_wait:
            raise ConfigError("first_wait is from 0 to longest_wait")

    def wait(self, failures: int) -> float:
        """Return the seconds to wait after so many failures in a row."""
        return min(self.first_wait * 2.0 ** min(failures - 1, 30), self.longest_wait)


class Retry:
    """Makes requests again, and counts their failures."""

    def __init__(self, patience: Patience, stop: Stop = never) -> None:
        self.patience, self.stop = patience, stop
        self.failures = 0
        """Failures in a row: who makes progress between two requests sets it to 0."""

    def run(
        self, request: Callable[[], T], transient: Callable[[], tuple[type[Exception], ...]], refusal: Refusal
    ) -> T:
        """Return what `request` returns, asked again after each error of the `transient()` kinds.

        A server may name the seconds to wait: an error's attribute `wait`. Raises what `refusal` gives, and Stopped.
        """
        while True:
            if self.stop():
                raise Stopped("stopped; run the same command to continue")
            try:
                return request()
            except Exception as error:
                # `transient` is asked now: kinds of errors come with the drivers that are loaded
                if not isinstance(error, transient()):
                    raise
                self.failures += 1
                refused = refusal(error, self.failures >= self.patience.attempts)
                if refused is not None:
                    raise refused from error
                asked = getattr(error, "wait", None)
            rest(self.patience.wait(self.failures) if asked is None else asked, self.stop)


def rest(seconds: float, stop: Stop) -> None:
    """Wait, and raise Stopped as soon as `stop` asks for it."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if stop():
            raise Stopped("stopped while waiting for the server; run the same command to continue")
        time.sleep(min(left, 0.2))
