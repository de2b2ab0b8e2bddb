"""Find the worker processes of a `LocalEngine`."""

from contextlib import suppress

import psutil

NOBODY = 2**31 - 1
"""A process id that no process has: the system's are smaller."""


def command(process: psutil.Process) -> str:
    """Return a process's command line; "" if it has ended."""
    with suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())
    return ""


def workers_of(process: int | None = None) -> list[psutil.Process]:
    """Return the living workers of a process, by default of this one; none if it has ended."""
    with suppress(psutil.NoSuchProcess):
        below = psutil.Process(process).children()
        found = [child for child in below if "pipeline.executors.local" in command(child)]
        return [child for child in found if _living(child)]
    return []


def _living(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False
