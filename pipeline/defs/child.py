"""Heavy work in a process of its own, that stops when it is told to and never outlives its run.

`run_child(work)` starts `python -m pipeline.defs.child MODULE:FUNCTION`, the name of `work`, a function of `tasks.py`. Its
arguments (`functools.partial`) go as JSON on standard input, and the types of the function's parameters build them again. The
child answers in JSON lines: `{"tick": ...}` and `{"log": ...}` while it works, then `{"result": ...}` or `{"error": ...}`.

Why not Dagster's Pipes: its subprocess client leaves the child alive when the run worker is killed, its pool workers whenever
it is stopped, and a child that ignores the signal for ever (docs/decisions.md).

Stopping. Terminate raises in the run worker; `run_child` closes its end, sends SIGTERM, waits a grace and then kills
the whole process group, pool workers included. The child answers SIGTERM by `stop() == True`, so that the trainer saves
and returns (work that takes no `stop` is interrupted), and exits non-zero. A run worker that is SIGKILLed cannot do any
of that: the kernel's parent-death signal (on Linux) and a watch on the parent's pid (everywhere) start the same
sequence from within the child.
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
from contextlib import AbstractContextManager
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
from pipeline.defs.launchpad.remedies import in_ui
from pipeline.storage.stores import locked

GRACE = 20.0
"""Seconds that a stopped child has for saving; less than `cancel_timeout_seconds` in dagster.yaml."""

STOPPED = 75
"""Exit status of work that was stopped before it was done (EX_TEMPFAIL: run it again and it continues)."""

RUN_LOG = logging.getLogger("dagster.builtin")
RUN_LOG.setLevel(logging.INFO)
"""The logger whose lines Dagster shows in a run's log, as `dagster.get_dagster_logger` gives it."""

Send = Callable[[Mapping[str, Any]], None]


class ChildError(RuntimeError):
    """A child that ended without a result; the message has its status and its traceback, if it sent one."""


# ---------------------------------------------------------------- the run worker's side


def run_child(
    work: Callable[..., Mapping[str, Any]],
    *,
    progress: Progress = silent,
    lock: Path | None = None,
    grace: float = GRACE,
) -> dict[str, Any]:
    """Call `work`, a module's function or a `functools.partial` of one, in a child process and return its result.

    Its arguments are what JSON and the types of the parameters can hold: paths, numbers, text, dataclasses. `work` is called
    with those of the keywords `progress` and `stop` that it takes. `lock` names an output that no other child may be writing.
    Raises UserError with the child's own words where a person can mend it, ChildError for the rest. Whatever
    raises here, the child and all its workers are gone after it.
    """
    name, arguments = _described(work)
    where = None if lock is None else str(lock)
    request = json.dumps({"arguments": arguments, "lock": where, "parent": os.getpid(), "grace": grace})
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
            stdin.write(request.encode())
        for message in _messages(process, process.stdout):
            if "tick" in message:
                progress(Tick(**message["tick"]))
            elif "log" in message:
                RUN_LOG.info(in_ui(message["log"]))
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
    raise ChildError(f"the {name.partition(':')[2]} process ended with status {code}: {last_words}")


def _described(work: Callable[..., Any]) -> tuple[str, dict[str, Any]]:
    """Return the name of a function, MODULE:FUNCTION, and its arguments as JSON values."""
    bound: dict[str, Any] = {}
    if isinstance(work, partial):
        bound = inspect.signature(work.func).bind_partial(*work.args, **work.keywords).arguments
        work = work.func
    return f"{work.__module__}:{work.__qualname__}", to_jsonable_python(bound)


def _messages(process: "subprocess.Popen[bytes]", stream: IO[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the child's messages until it is gone, even where an orphaned worker holds the pipe open."""
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
    """Wait for the child, asking it to stop if `ask`; kill its whole group whatever happens meanwhile. Return its status."""
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


def main() -> None:
    """Call the function that is named, with the arguments from standard input; answer on what was standard output."""
    from engine.compiling import announce_compiling  # of the child alone: who starts one need not load a compiler

    request = json.load(sys.stdin)
    parent, grace, lock = request["parent"], request["grace"], request["lock"]
    module, _, name = sys.argv[1].partition(":")
    work = getattr(import_module(module), name)
    hints = get_type_hints(work)
    keywords = {name: TypeAdapter(hints[name]).validate_python(value) for name, value in request["arguments"].items()}
    stopping = Stopping()
    send = _answerer(stopping)
    _send_logs(send)
    known = {"progress": _throttled(send), "stop": stopping}
    keywords |= {name: value for name, value in known.items() if name in hints}
    _listen(stopping, interrupt="stop" not in keywords)
    _die_with(parent, grace)
    held = contextlib.ExitStack()  # never closed: a lock is held until the workers are gone too
    try:
        held.enter_context(_held(None if lock is None else Path(lock), grace))
        with announce_compiling():
            result = work(**keywords)
        if stopping():
            raise KeyboardInterrupt
    except UserError as error:
        send({"error": str(error)})
        sys.exit(STOPPED if stopping() else 2)
    except KeyboardInterrupt:
        send({"error": "stopped before it was done; run it again and it continues from what is complete"})
        sys.exit(STOPPED)
    finally:
        if _is_orphan(parent, 0.5 if stopping() else 0.0):  # nobody is left who would kill the workers
            kill_own_group()
    send({"result": result})


class Stopping:
    """The request to stop. A signal handler sets it anywhere, so it has no lock that its own thread might hold."""

    def __init__(self) -> None:
        self.asked = False

    def __call__(self) -> bool:
        """Return whether to stop."""
        return self.asked


class _Sender(logging.Handler):
    """Sends log lines to the run worker."""

    def __init__(self, send: Send) -> None:
        super().__init__(logging.INFO)
        self.send = send

    def emit(self, record: logging.LogRecord) -> None:
        """Send one."""
        self.send({"log": record.getMessage()})


def _send_logs(send: Send) -> None:
    """Send what this project logs."""
    for room in ROOMS:
        logging.getLogger(room).setLevel(logging.INFO)
        logging.getLogger(room).addHandler(_Sender(send))


def _answerer(stopping: Stopping) -> Send:
    """Keep standard output for messages, send everything else to the log, and make a crash a message."""
    answer = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # a stray print goes to the log, not between the messages
    lock = threading.Lock()

    def send(message: Mapping[str, Any]) -> None:
        try:
            with lock:
                answer.write(json.dumps(message) + "\n")
        except BrokenPipeError:
            stopping.asked = True

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
        stopping.asked = True
        if interrupt:
            raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, asked)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _throttled(send: Send, seconds: float = 0.25) -> Progress:
    """Send at most a few ticks a second; the last one of a known total always."""
    last = 0.0

    def progress(tick: Tick) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= seconds or tick.done == tick.total:
            last = now
            values = {name: float(value) for name, value in tick.values.items()}
            told = {"done": int(tick.done), "total": tick.total, "unit": tick.unit, "values": values}
            send({"tick": told | {"stage": tick.stage}})

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


def _is_orphan(parent: int, patience: float) -> bool:
    """Return whether the process `parent` is gone, or goes while one waits, seconds.

    The signal of its death comes when the thread that started this child ends; other threads of it may still be ending.
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


def _held(path: Path | None, patience: float) -> AbstractContextManager[None]:
    """Lock an output, after waiting for the child of a dead run, which may still be saving.

    The library's own locks, of `ingest` and `train`, are for everybody else, and refuse at once.
    """
    if path is None:
        return contextlib.nullcontext()
    path.parent.mkdir(parents=True, exist_ok=True)
    busy = UserError(f"{path} is being written by another process; wait for it or stop it, then run this again")
    return locked(FileLock(path.with_name(f".{path.name}.lock")), busy, patience + 5.0)


if __name__ == "__main__":
    main()
