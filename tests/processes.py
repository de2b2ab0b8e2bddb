"""Find the worker processes of a `LocalEngine`."""

from contextlib import suppress

import psutil

UNUSED_PID = 2**31 - 1
"""A process ID that no process has, because the system's are smaller."""


def read_command_line(process: psutil.Process) -> str:
    """Return a process's command line; "" if it has ended."""
    with suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())
    return ""


def list_workers(pid: int | None = None) -> list[psutil.Process]:
    """Return the living workers of a process, by default of this one; none if it has ended."""
    with suppress(psutil.NoSuchProcess):
        children = psutil.Process(pid).children()
        return [
            child
            for child in children
            if "pipeline.executors.local" in read_command_line(child) and _is_alive(child)
        ]
    return []


def _is_alive(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False
