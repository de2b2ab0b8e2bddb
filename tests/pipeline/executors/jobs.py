"""Functions that workers run."""

import os
import signal
import time
from pathlib import Path


def square(number: int) -> int:
    return number * number


def invert(number: int) -> float:
    return 1 / number


def die_once(item: tuple[int, str]) -> int:
    """Create the item's marker and kill this process, unless the marker exists."""
    number, marker = item
    if marker and not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def die_at_item_5(item: tuple[int, str]) -> int:
    """Record each attempt in a file; item 5 kills its worker."""
    number, folder = item
    (Path(folder) / f"{number}-{time.monotonic_ns()}").touch()
    if number == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def exit_with(status: int) -> None:
    os._exit(status)


def sleep(number: int) -> int:
    """Return this process's id, for item 0 after an hour."""
    time.sleep(0.05 if number else 3600)
    return os.getpid()


def get_pid(_: int) -> int:
    return os.getpid()


def get_parent_pid(_: int) -> int:
    """Return the id of this worker's parent, which is the agent of its node if Ray runs it."""
    time.sleep(0.2)
    return os.getppid()


def get_variables(names: list[str]) -> tuple[str | None, ...]:
    """Return a worker's environment variables."""
    return tuple(map(os.environ.get, names))
