"""Run heavy work in a child process that can be stopped and never outlives its run.

`run_child(work)` starts `python -m pipeline.defs.child` and sends it the work. The child replies
with (kind, value) pairs: ("tick", Tick) while it works, then ("result", RESULT), or ("error",
ARGUMENTS) with the arguments of a UserError. Dagster captures the child's output and log messages.

When a user terminates a run, Dagster raises an exception in the run's process. `run_child` then
sends SIGTERM to the child, waits for a grace period, and kills the child's process group, pool
workers included. In the child, SIGTERM makes `stop()` return True, so that the work can save and
return. SIGTERM interrupts work without a parameter `stop`. If the run's process is killed, the
child detects that its parent has changed, and stops itself in the same way.

Dagster's Pipes client does not do this: its child survives a killed run, and pool workers survive
the child.
"""

import contextlib
import inspect
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from filelock import FileLock

from engine.errors import UserError
from engine.progress import Progress, silent
from pipeline.cli.progress import LOGGED_PACKAGES, call_with_supported
from pipeline.storage.stores import hold_lock

GRACE_SECONDS = 20.0
"""Seconds for a stopped child to save its work; below `cancel_timeout_seconds` in dagster.yaml."""
STOPPED_EXIT_STATUS = 75
"""Exit status of a child that was stopped early and can be resumed (EX_TEMPFAIL)."""


class ChildError(RuntimeError):
    """The child ended without a result; the message contains its exit status."""


def run_child(
    work: Callable[..., Mapping[str, Any]],
    *,
    progress: Progress = silent,
    lock: Path | None = None,
    grace: float = GRACE_SECONDS,
) -> Mapping[str, Any]:
    """Call `work` (a function or a `functools.partial`) in a child process and return its result.

    `progress` and `stop` are passed to `work` if it has parameters with these names. `lock` is an
    output path that only one child may write at a time. Raises the child's UserError, or ChildError
    for any other failure. By then the child and all its workers have ended.
    """
    replies, child_end = Pipe()
    command = [sys.executable, "-m", "pipeline.defs.child", str(child_end.fileno())]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, pass_fds=[child_end.fileno()], start_new_session=True
    )
    child_end.close()
    kind, value = "tick", None  # type: tuple[str, Any]
    try:
        replies.send((work, lock, os.getpid(), grace))
        while (message := replies.recv())[0] == "tick":
            progress(message[1])
        kind, value = message
    except (EOFError, ConnectionError):
        kind = "end"
    finally:
        replies.close()  # a child that still sends would block on a full pipe
        if kind == "tick":
            process.terminate()
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(grace)
        finally:
            kill_group(process.pid)
            code = process.wait()
    if kind == "result" and code == 0:
        result: Mapping[str, Any] = value
        return result
    if kind == "error":
        raise UserError(**value)
    raise ChildError(f"the child process exited with status {code}: see `stderr` of the run's step")


def kill_group(group: int) -> None:
    """Kill every process in a group."""
    # macOS returns EPERM if all processes of the group are zombies
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def main() -> None:
    """Receive work from the run's process, do it, and send the result back."""
    from engine.compiling import announce_compiling  # loads Numba, which `run_child` does not need

    replies = Connection(int(sys.argv[1]))
    os.set_inheritable(replies.fileno(), False)
    # a forked worker would keep the pipe open after this process ends
    os.register_at_fork(after_in_child=replies.close)
    work, lock, parent, grace = replies.recv()
    logging.basicConfig(format="%(message)s")
    for package in LOGGED_PACKAGES:
        logging.getLogger(package).setLevel(logging.INFO)
    stops: list[bool] = []  # not an Event: a signal handler could deadlock on its lock
    send_lock = threading.Lock()

    def send(kind: str, value: Any) -> None:
        try:
            with send_lock:
                replies.send((kind, value))
        except ConnectionError:  # the parent process has ended
            stops.append(True)

    _handle_signals(stops, interrupt="stop" not in inspect.signature(work).parameters)
    threading.Thread(target=_watch_parent, args=(parent, grace), daemon=True).start()
    try:
        with _lock_output(lock, grace), announce_compiling():
            result = call_with_supported(
                work, progress=partial(send, "tick"), stop=lambda: bool(stops)
            )
        if stops:
            raise KeyboardInterrupt
    except UserError as error:
        send("error", {"problem": error.problem, "remedy": error.remedy, "code": error.code})
        sys.exit(STOPPED_EXIT_STATUS if stops else 2)
    except KeyboardInterrupt:
        send("error", {"problem": "stopped early; finished work is kept", "code": "stopped"})
        sys.exit(STOPPED_EXIT_STATUS)
    finally:
        if stops:
            time.sleep(0.1)  # os.getppid() may not yet show that the parent died
        if os.getppid() != parent:  # a parent that died cannot kill the workers
            kill_group(os.getpid())
    send("result", result)


def _handle_signals(stops: list[bool], *, interrupt: bool) -> None:
    """Let SIGTERM request a stop. Ignore Ctrl-C, which the run's process handles."""
    child = os.getpid()

    def request_stop(*_: object) -> None:
        if os.getpid() != child:
            os._exit(128 + signal.SIGTERM)  # a forked worker inherits this handler
        stops.append(True)
        if interrupt:
            raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, request_stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _watch_parent(parent: int, grace: float) -> None:
    """Request a stop when the parent process dies, then kill this group after `grace` seconds."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(grace)
    kill_group(os.getpid())


def _lock_output(path: Path | None, grace: float) -> contextlib.AbstractContextManager[None]:
    """Lock an output. Wait for the lock, because the child of a dead run may still be saving."""
    if path is None:
        return contextlib.nullcontext()
    refusal = UserError(f"another process is writing {path}: wait until it ends, or stop it")
    return hold_lock(FileLock(path.with_name(f".{path.name}.lock")), refusal, grace + 5.0)


if __name__ == "__main__":
    main()
