"""Functions for workers to run: top-level, so that another process can import them."""

import os
import signal
import time
from pathlib import Path


def square(number: int) -> int:
    return number * number


def inverse(number: int) -> float:
    return 1 / number


def die_once(item: tuple[int, str]) -> int:
    """Kill this process at the first try of an item whose marker is not there yet."""
    number, marker = item
    if marker and not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def poison(item: tuple[int, str]) -> int:
    """Note each try; the fifth item kills every worker that takes it."""
    number, folder = item
    (Path(folder) / f"{number}-{time.monotonic_ns()}").touch()
    if number == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def leave(status: int) -> None:
    """End the process, as one that cannot be started does."""
    os._exit(status)


def slow(number: int) -> int:
    """Return this process's number, soon or, for 0, long after a test that waits for it has run out
    of time."""
    time.sleep(0.05 if number else 3600)
    return os.getpid()


def pid(_: int) -> int:
    return os.getpid()


def parent(_: int) -> int:
    """Return the process that started this worker: with Ray the agent of its node."""
    time.sleep(0.2)
    return os.getppid()


def variables(names: list[str]) -> tuple[str | None, ...]:
    """Return what variables of the environment say in a worker."""
    return tuple(map(os.environ.get, names))
