"""Heavy work in a child process that stops when asked and never outlives its run.

`run_child(work)` starts `python -m pipeline.defs.child MODULE:FUNCTION`. The arguments travel as JSON on standard input; the
types of the function's parameters convert them back. The child answers with JSON lines: `{"tick": ...}` and `{"log": ...}`
while it works, then one of `{"result": ...}`, `{"error": ...}` and `{"crash": ...}`.

Stopping. Terminate raises in the run's process: `run_child` sends SIGTERM to the child, waits for a grace period, and kills
its process group, pool workers included. In the child, SIGTERM makes `stop()` return True, so that work saves and returns;
work without a parameter `stop` is interrupted. If the run's process is killed, the parent-death signal (on Linux) and a watch
of the parent's pid (everywhere) start the same sequence from within the child.

Dagster's Pipes client cannot do this: its child survives a killed run, and its pool workers survive the child.
"""

import contextlib
import ctypes
import inspect
import json
import logging
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import IO, Any, get_type_hints

from filelock import FileLock
from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

from engine.errors import UserError
from engine.progress import Progress, Tick, silent
from pipeline.cli.progress import ROOMS
from pipeline.storage.stores import locked

GRACE = 20.0
"""Seconds that a stopped child has to save; less than `cancel_timeout_seconds` in dagster.yaml."""
STOPPED = 75
"""Exit status of work that was stopped early (EX_TEMPFAIL: the same work can be resumed)."""
RUN_LOG = logging.getLogger("dagster.builtin")
"""The logger whose lines Dagster shows in a run's log, as `dagster.get_dagster_logger` returns it."""
RUN_LOG.setLevel(logging.INFO)

Send = Callable[[Mapping[str, Any]], None]


class ChildError(RuntimeError):
    """A child that ended without a result; the message has its exit status and its traceback, if it sent one."""


# ---------------------------------------------------------------- the run's process


def run_child(
    work: Callable[..., Mapping[str, Any]],
    *,
    progress: Progress = silent,
    lock: Path | None = None,
    grace: float = GRACE,
) -> dict[str, Any]:
    """Call `work`, a module's function or a `functools.partial` of one, in a child process and return its result.

    Arguments may be whatever JSON and the types of the parameters can represent: paths, numbers, strings, dataclasses. `work`
    also gets `progress` and `stop`, if it has parameters of these names. `lock` is an output that one child at a time writes.
    Raises UserError with the child's message for mistakes that a user can correct, ChildError for the rest. When it raises,
    the child and all its workers are gone.
    """
    name, arguments = _describe(work)
    request = {"arguments": arguments, "lock": lock and str(lock), "parent": os.getpid(), "grace": grace}
    process = subprocess.Popen(
        [sys.executable, "-m", "pipeline.defs.child", name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    final: dict[str, Any] = {}
    try:
        with process.stdin as stdin:
            stdin.write(json.dumps(request).encode())
        for message in _read_messages(process, process.stdout):
            if "tick" in message:
                progress(Tick(**message["tick"]))
            elif "log" in message:
                RUN_LOG.info(message["log"])
            else:
                final = message
                break
    finally:
        code = _end(process, grace, interrupt=not final)
    if code == 0 and "result" in final:
        result: dict[str, Any] = final["result"]
        return result
    if "error" in final:
        raise UserError(**final["error"])
    reason = final.get("crash", "its error output is in the run's log")
    raise ChildError(f"the {name.partition(':')[2]} process ended with status {code}: {reason}")


def _describe(work: Callable[..., Any]) -> tuple[str, dict[str, Any]]:
    """Return the name of a function, MODULE:FUNCTION, and its bound arguments as JSON values."""
    bound: dict[str, Any] = {}
    if isinstance(work, partial):
        bound = inspect.signature(work.func).bind_partial(*work.args, **work.keywords).arguments
        work = work.func
    return f"{work.__module__}:{work.__qualname__}", to_jsonable_python(bound)


def _read_messages(process: "subprocess.Popen[bytes]", stream: IO[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the child's messages until it exits, even if an orphaned worker keeps the pipe open."""
    buffer = b""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while True:
            exited = process.poll() is not None
            if selector.select(timeout=0 if exited else 0.5):
                data = os.read(stream.fileno(), 65536)
                if not data:
                    return
                *lines, buffer = (buffer + data).split(b"\n")
                yield from map(json.loads, lines)
            elif exited:
                return


def _end(process: "subprocess.Popen[bytes]", grace: float, *, interrupt: bool) -> int:
    """Wait for the child to exit, kill its group in any case, and return the exit status."""
    assert process.stdout is not None
    process.stdout.close()  # or a child that still writes would block on a full pipe
    try:
        if interrupt and process.poll() is None:
            process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace)
    finally:
        kill_group(process.pid)
        code = process.wait()
    return code


def kill_group(group: int) -> None:
    """Kill every process of a group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: EPERM for a group of zombies
        os.killpg(group, signal.SIGKILL)


# ---------------------------------------------------------------- the child


def main() -> None:
    """Call the function that the command line names with the arguments from standard input, and send its result."""
    from engine.compiling import announce_compiling  # the run's process does not need the compiler

    request = json.load(sys.stdin)
    parent, grace = request["parent"], request["grace"]
    module, _, name = sys.argv[1].partition(":")
    work = getattr(import_module(module), name)
    hints = get_type_hints(work)
    keywords = {name: TypeAdapter(hints[name]).validate_python(value) for name, value in request["arguments"].items()}
    stopping = Stopping()
    send = _open_answers(stopping)
    for room in ROOMS:
        logging.getLogger(room).setLevel(logging.INFO)
        logging.getLogger(room).addHandler(_Sender(send))
    known = {"progress": _throttle(send), "stop": stopping}
    keywords |= {name: value for name, value in known.items() if name in hints}
    _handle_signals(stopping, interrupt="stop" not in keywords)
    _die_with(parent, grace)
    held = contextlib.ExitStack()  # not closed before exit: the lock is held until the workers are gone
    try:
        if request["lock"]:
            _lock(held, Path(request["lock"]), grace)
        with announce_compiling():
            result = work(**keywords)
        if stopping():
            raise KeyboardInterrupt
    except UserError as error:
        send({"error": {"problem": error.problem, "remedy": error.remedy, "code": error.code}})
        sys.exit(STOPPED if stopping() else 2)
    except KeyboardInterrupt:
        send({"error": {"problem": "stopped early; what was finished is kept", "code": "stopped"}})
        sys.exit(STOPPED)
    finally:
        if _is_orphan(parent, 0.5 if stopping() else 0.0):  # the parent cannot kill the workers anymore
            kill_own_group()
    send({"result": result})


class Stopping:
    """Whether the work should stop. A signal handler sets it at any time, so it has no lock."""

    def __init__(self) -> None:
        self.requested = False

    def __call__(self) -> bool:
        """Return whether to stop."""
        return self.requested


class _Sender(logging.Handler):
    """Sends log lines to the run's process."""

    def __init__(self, send: Send) -> None:
        super().__init__(logging.INFO)
        self.send = send

    def emit(self, record: logging.LogRecord) -> None:
        """Send one line."""
        self.send({"log": record.getMessage()})


def _open_answers(stopping: Stopping) -> Send:
    """Return a function that writes messages to standard output; everything else goes to standard error from now on."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    lock = threading.Lock()

    def send(message: Mapping[str, Any]) -> None:
        try:
            with lock:
                answers.write(json.dumps(message) + "\n")
        except BrokenPipeError:
            stopping.requested = True

    def send_crash(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        send({"crash": "".join(traceback.format_exception(kind, error, trace))[-4000:]})
        sys.__excepthook__(kind, error, trace)

    sys.excepthook = send_crash
    return send


def _handle_signals(stopping: Stopping, *, interrupt: bool) -> None:
    """Let SIGTERM request a stop, and ignore Ctrl-C, which the run's process handles."""
    this = os.getpid()

    def request_stop(*_: object) -> None:
        if os.getpid() != this:
            os._exit(128 + signal.SIGTERM)  # a forked worker has inherited this handler
        stopping.requested = True
        if interrupt:
            raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, request_stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _throttle(send: Send, seconds: float = 0.25) -> Progress:
    """Return a progress callback that sends at most a few ticks per second, and always the last one."""
    last = 0.0

    def progress(tick: Tick) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= seconds or tick.done == tick.total:
            last = now
            values = {name: float(value) for name, value in tick.values.items()}  # NumPy's numbers are not JSON
            fields = {"done": int(tick.done), "total": tick.total, "unit": tick.unit, "stage": tick.stage}
            send({"tick": fields | {"values": values}})

    return progress


def _die_with(parent: int, grace: float) -> None:
    """Request a stop when the process `parent` dies, and kill the own group `grace` seconds later."""
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM, 0, 0, 0)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(grace)
        kill_own_group()
        os._exit(137)

    threading.Thread(target=watch, daemon=True).start()


def _is_orphan(parent: int, patience: float) -> bool:
    """Return whether the process `parent` is dead, or dies within `patience` seconds.

    The parent-death signal is sent when the thread that started this process ends; its other threads may end later.
    """
    end = time.monotonic() + patience
    while os.getppid() == parent:
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def kill_own_group() -> None:
    """Kill this process and its workers, if it leads a group, as a child of `run_child` does."""
    if os.getpgrp() == os.getpid():
        kill_group(os.getpid())


def _lock(stack: contextlib.ExitStack, path: Path, grace: float) -> None:
    """Lock an output, after waiting for the child of a dead run, which may still be saving."""
    path.parent.mkdir(parents=True, exist_ok=True)
    busy = UserError(f"another process is writing {path}: wait for it, or stop it")
    stack.enter_context(locked(FileLock(path.with_name(f".{path.name}.lock")), busy, grace + 5.0))


if __name__ == "__main__":
    main()
