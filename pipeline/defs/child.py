"""Heavy work in a process of its own, that stops when it is told to and never outlives its run.

`run_child(task, arguments)` starts `python -m pipeline.defs.tasks`, which does one task of a fixed table and answers
in JSON lines: `{"tick": ...}` and `{"log": ...}` while it works, then `{"result": ...}` or `{"error": ...}`.

Why not Dagster's Pipes: its subprocess client leaves the child alive when the run worker is killed, and its messages go
through a polled file into Dagster events. Here the child knows no Dagster, one pipe carries everything, and the end of
that pipe is one more way to notice that the other side is gone.

Stopping. Terminate raises in the run worker; `run_child` closes its end, sends SIGTERM, waits a grace and then kills
the whole process group, pool workers included. The child answers SIGTERM by `stop() == True`, so that the trainer saves
and returns (tasks that save nothing are interrupted), and exits non-zero. A run worker that is SIGKILLed cannot do any
of that: the kernel's parent-death signal (on Linux) and a watch on the parent's pid (everywhere) start the same
sequence from within the child.
"""

import contextlib
import ctypes
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
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from filelock import FileLock

from engine.errors import UserError
from engine.progress import Progress, Tick, silent
from pipeline.cli.progress import ROOMS
from pipeline.storage.stores import locked

GRACE = 20.0
"""Seconds that a stopped child has for saving; less than `cancel_timeout_seconds` in dagster.yaml."""

STOPPED = 75
"""Exit status of work that was stopped before it was done (EX_TEMPFAIL: run it again and it continues)."""

RUN_LOG = logging.getLogger("dagster.builtin")
RUN_LOG.setLevel(logging.INFO)
"""The logger whose lines Dagster shows in a run's log, as `dagster.get_dagster_logger` gives it."""

Task = Callable[[Mapping[str, Any], Progress, Callable[[], bool]], Mapping[str, Any]]


class ChildError(RuntimeError):
    """Say that the child ended without a result, and where its last words are."""


# ---------------------------------------------------------------- the run worker's side


def run_child(
    task: str,
    arguments: Mapping[str, Any],
    *,
    progress: Progress = silent,
    lock: Path | None = None,
    grace: float = GRACE,
    module: str = "pipeline.defs.tasks",
) -> dict[str, Any]:
    """Do `task` in a child process and return its result.

    `lock` names an output that no other child may be writing. Raises UserError with the child's own words where a
    person can mend it, ChildError for the rest. Whatever raises here, the child and all its workers are gone after it.
    """
    request = {"task": task, "arguments": dict(arguments), "parent": os.getpid(), "grace": grace}
    request["lock"] = str(lock) if lock is not None else None
    process = subprocess.Popen(
        [sys.executable, "-m", module], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    final: dict[str, Any] = {}
    try:
        with process.stdin as stdin:
            stdin.write(json.dumps(request).encode())
        for message in _messages(process, process.stdout):
            if "tick" in message:
                progress(Tick(**message["tick"]))
            elif "log" in message:
                RUN_LOG.info(message["log"])
            else:
                final = message
                break
    finally:
        code = _end(process, grace, ask=not final)
    if code == 0 and "result" in final:
        result: dict[str, Any] = final["result"]
        return result
    if "error" in final:
        raise UserError(final["error"])
    last_words = final.get("crash", "its error output is in the run's log")
    raise ChildError(f"the {task} process ended with status {code}: {last_words}")


def _messages(process: "subprocess.Popen[bytes]", stream: IO[bytes]) -> Iterator[dict[str, Any]]:
    """Yield what the child says until it is gone, even where an orphaned worker holds the pipe open."""
    buffer = b""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while True:
            gone = process.poll() is not None
            if not selector.select(timeout=0 if gone else 0.5):
                if gone:
                    return
                continue
            data = os.read(stream.fileno(), 65536)
            if not data:
                return
            *lines, buffer = (buffer + data).split(b"\n")
            yield from map(json.loads, lines)


def _end(process: "subprocess.Popen[bytes]", grace: float, *, ask: bool) -> int:
    """Wait for the child, asking it to stop if `ask`; kill its whole group whatever happens meanwhile."""
    assert process.stdout is not None
    process.stdout.close()  # a child that still talks is not left blocked on a full pipe
    try:
        if ask and process.poll() is None:
            process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace)
    finally:
        kill_group(process.pid)
        code = process.wait()
    return code


def kill_group(group: int) -> None:
    """Kill every process of a group, if any is left."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS says EPERM for a group of zombies
        os.killpg(group, signal.SIGKILL)


# ---------------------------------------------------------------- the child's side


def main(tasks: Mapping[str, Task], asking: Collection[str]) -> None:
    """Read one request from standard input, do it, and answer on what was standard output.

    Tasks named in `asking` ask `stop` themselves and may save before they return; the others are interrupted.
    """
    from engine.compiling import announced  # of the child alone: who starts one need not load a compiler

    request = json.load(sys.stdin)
    stopping = Stopping()
    send = _answerer(stopping)
    _tell_logs(send)
    _listen(stopping, interrupt=request["task"] not in asking)
    _die_with(request["parent"], request["grace"])
    held = contextlib.ExitStack()  # never closed: a lock is held until the workers are gone too
    try:
        held.enter_context(_held(request["lock"], request["grace"]))
        with announced():
            result = tasks[request["task"]](request["arguments"], _throttled(send), stopping)
        if stopping():
            raise KeyboardInterrupt
    except UserError as error:
        send({"error": str(error)})
        sys.exit(STOPPED if stopping() else 2)
    except KeyboardInterrupt:
        send({"error": "stopped before it was done; run it again and it continues from what is complete"})
        sys.exit(STOPPED)
    finally:
        if os.getppid() != request["parent"]:  # nobody is left who would take the workers down
            kill_own_group()
    send({"result": result})


class Stopping:
    """The wish to stop, which a signal's handler may set anywhere: an Event's lock may be in its own thread's hands."""

    def __init__(self) -> None:
        self.asked = False

    def set(self) -> None:
        """Wish it."""
        self.asked = True

    def __call__(self) -> bool:
        """Tell whether it is wished."""
        return self.asked


class _Told(logging.Handler):
    """Sends log lines."""

    def __init__(self, send: Callable[[Mapping[str, Any]], None]) -> None:
        super().__init__(logging.INFO)
        self.send = send

    def emit(self, record: logging.LogRecord) -> None:
        """Send one."""
        self.send({"log": record.getMessage()})


def _tell_logs(send: Callable[[Mapping[str, Any]], None]) -> None:
    """Send what this project logs."""
    handler = _Told(send)
    for room in ROOMS:
        logging.getLogger(room).setLevel(logging.INFO)
        logging.getLogger(room).addHandler(handler)


def _answerer(stopping: Stopping) -> Callable[[Mapping[str, Any]], None]:
    """Keep standard output for messages, give everything else the log, and see to it that a crash is a message."""
    answer = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # a stray print goes to the log, not between the messages

    lock = threading.Lock()

    def send(message: Mapping[str, Any]) -> None:
        try:
            with lock:
                answer.write(json.dumps(message) + "\n")
        except BrokenPipeError:
            stopping.set()

    def crashed(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        send({"crash": "".join(traceback.format_exception(kind, error, trace))[-4000:]})
        sys.__excepthook__(kind, error, trace)

    sys.excepthook = crashed
    return send


def _listen(stopping: Stopping, *, interrupt: bool) -> None:
    """Take SIGTERM as the request to stop."""
    own = os.getpid()

    def asked(*_: object) -> None:
        if os.getpid() != own:
            os._exit(128 + signal.SIGTERM)  # a forked worker has inherited this handler
        stopping.set()
        if interrupt:
            raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, asked)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _throttled(send: Callable[[Mapping[str, Any]], None], seconds: float = 0.25) -> Progress:
    """Pass at most a few ticks a second; the last one of a known total always."""
    last = 0.0

    def progress(tick: Tick) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= seconds or tick.done == tick.total:
            last = now
            values = {name: float(value) for name, value in tick.values.items()}
            send({"tick": {"done": int(tick.done), "total": tick.total, "unit": tick.unit, "values": values}})

    return progress


def _die_with(parent: int, grace: float) -> None:
    """Stop when the process `parent` is gone, and kill the own group if that takes longer than `grace` seconds."""
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


def kill_own_group() -> None:
    """Kill this process and its workers, if it leads a group, as a child of `run_child` does."""
    if os.getpgrp() == os.getpid():
        kill_group(os.getpid())


def _held(name: str | None, patience: float) -> AbstractContextManager[None]:
    """Lock an output meanwhile, after waiting for the child of a dead run, which may be saving still.

    The library's own locks, of `ingest` and `train`, are for everybody else, and refuse at once.
    """
    if name is None:
        return contextlib.nullcontext()
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    busy = UserError(f"{path} is being written by another process; wait for it or stop it, then run this again")
    return locked(FileLock(path.with_name(f".{path.name}.lock")), busy, patience + 5.0)
