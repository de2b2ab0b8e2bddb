"""Inspect processes, and find the worker processes of a `LocalEngine`."""

from contextlib import suppress

import psutil

UNUSED_PID = 2**31 - 1
"""A process ID that no process has, because the system's are smaller."""


def read_command_line(process: psutil.Process) -> str:
    """Return a process's command line; "" if it has ended."""
    with suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())
    return ""


def is_alive(pid: int) -> bool:
    """Return whether a process runs; one that has exited, but is not reaped, does not."""
    with suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


def list_workers(pid: int | None = None) -> list[psutil.Process]:
    """Return the living workers of a process, by default of this one; none if it has ended."""
    with suppress(psutil.NoSuchProcess):
        children = [child for child in psutil.Process(pid).children() if is_alive(child.pid)]
        return [it for it in children if "pipeline.executors.local" in read_command_line(it)]
    return []
