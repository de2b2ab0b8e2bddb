"""The seam that work is spread through: `Engine.map`, and the engine for one machine.

The standard library's pool loses everything when one worker is killed; this one redoes the item that was in hand. The
promise: each item is tried at most `attempts` times, each result is given once, losses are named, closing the iterator
stops the workers. Functions are top-level and know no engine; items may be lazy, and only a few are taken ahead.

On Linux workers are forked from a process that does nothing else (multiprocessing's forkserver) and has loaded what they need
(a module that whoever makes the engine names): loading costs more than a second of processor time, and is paid once instead of
by every worker.
Nothing is forked from this process, whose threads (pyarrow's, torch's) would leave their locks held in the copy.
"""

import contextlib
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal, Protocol

from engine.errors import UserError
from engine.progress import Stop, never
from pipeline.executors import shared_memory

ASKED_SECONDS = 1.0
"""How often a `map` that waits asks whether it is cancelled."""
FORKED = sys.platform == "linux" and sys.version_info >= (3, 11, 1)
"""Whether workers are forked. macOS's own libraries do not bear it, and Python 3.11.0's server listens to every user of a
machine (CVE-2022-42919): there each worker is started afresh."""
STARTS = 4
"""Times that a worker is begun; the last time it is not forked, so that nothing in a server can keep it from its work."""
START_SECONDS = 0.2
"""Between two of them."""
ONE_THREAD = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"),
    "JE_ARROW_MALLOC_CONF": "background_thread:false",  # of an allocator that pyarrow begins and does not use
}
"""What libraries are told where there is a process a core."""

PARENT = "FIANCHETTO_PREPARED_FOR"
"""Names the process that workers are prepared for, to the one that they are forked from."""

Status = Literal["ok", "error", "lost"]


@dataclass(frozen=True, slots=True)
class Failure:
    """What an item's function raised, carried between processes as text."""

    kind: str
    message: str
    traceback: str
    system: bool
    """Whether it was the system's doing, an OSError: a full disk, a lost file."""
    mistake: bool
    """Whether it is one that a person can mend, a UserError: the message says how."""


Result = tuple[int, Status, Any]
"""(index of the item, status, value or Failure; None when lost)."""


class Engine(Protocol):
    """Something that runs a function over items."""

    def map(
        self, function: Callable[[Any], Any], items: Iterable[Any], cancelled: Stop = never
    ) -> Generator[Result, None, None]:
        """Give a result an item, in the order of completion; closing the generator stops the work, as `cancelled` does.

        `cancelled` is asked about once a second, wherever the generator is waited for.
        """
        ...

    def connected(self) -> AbstractContextManager[None]:
        """Reach the engine, and keep it for every `map` and `slots` meanwhile."""
        ...

    def slots(self) -> int:
        """Count the items that can be worked on at a time now; asked while connected."""
        ...


def available_cores() -> int:
    """Count the cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_item(function: Callable[[Any], Any], item: Any) -> tuple[Status, Any]:
    """Call the function; what it raises is a result, since one bad item must not end the others."""
    try:
        return "ok", function(item)
    except Exception as error:  # noqa: BLE001 - carried to the caller, who decides
        system, mistake = isinstance(error, OSError), isinstance(error, UserError)
        return "error", Failure(type(error).__name__, str(error), traceback.format_exc(), system, mistake)


@contextmanager
def _environment(more: Mapping[str, str]) -> Iterator[None]:
    """Let processes that are started meanwhile have these variables."""
    before = {name: os.environ.get(name) for name in more}
    os.environ.update(more)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def one_thread_each() -> AbstractContextManager[None]:
    """Let processes that are started meanwhile have one thread each: there is one a core."""
    return _environment(ONE_THREAD)


def prepare(preload: str = "") -> str:
    """Start the process that workers are forked from, where there is none; it imports `preload` while this one goes on.

    Gives multiprocessing's word for how workers start: forkserver, or spawn where none are forked, or where its socket cannot
    be made (a TMPDIR of too long a name). Only the first worker waits for the process, which ends with this one.
    """
    if not FORKED:
        return "spawn"
    from multiprocessing import forkserver, resource_tracker

    # Python 3.11's server looks for modules where `python -c` does, which is the current folder first.
    places = {
        PARENT: str(os.getpid()),
        "PYTHONSAFEPATH": "1",
        "PYTHONPATH": os.pathsep.join(place or str(Path.cwd()) for place in sys.path),
    }
    if preload:  # who names no module keeps what was named before
        forkserver.set_forkserver_preload([preload])
    before: Any = None
    try:
        resource_tracker.ensure_running()  # else the server begins it, and it lets SIGINT through again
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited: Ctrl-C is for this process
        with _environment(ONE_THREAD | places):
            forkserver.ensure_running()
    except OSError:
        return "spawn"
    finally:
        if before is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return "forkserver"


def _serve(pipe: Connection, environment: Mapping[str, str]) -> None:
    """Be a worker: take (function, item) from the pipe until it closes, as it does when the driver is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver hears Ctrl-C and decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ.clear()  # it may be that of a process that was started long before
    os.environ.update(environment)
    while True:
        try:
            function, item = shared_memory.receive(pipe)
        except (EOFError, ConnectionResetError):
            return
        outcome = run_item(function, item)
        del function, item  # a chunk is megabytes
        try:
            pipe.send(outcome)
        except BrokenPipeError:
            return


class _Worker:
    """A process, its pipe, and the item it has in hand."""

    def __init__(self, preload: str) -> None:
        self.pipe, theirs = multiprocessing.Pipe()
        self.process = self._started(theirs, preload)
        theirs.close()
        self.handle: int | None = None
        with contextlib.suppress(OSError, AttributeError):  # of Linux alone, and not of every container
            self.handle = os.pidfd_open(self.process.pid or 0)
        self.index = -1

    @staticmethod
    def _started(theirs: Connection, preload: str) -> BaseProcess:
        """Start the process; where the one that it is forked from dies, as when it is killed, another, and at last none."""
        with one_thread_each():
            environment = dict(os.environ)
        for left in reversed(range(STARTS)):
            context: Any = multiprocessing.get_context(prepare(preload) if left else "spawn")
            process: BaseProcess = context.Process(target=_serve, args=(theirs, environment), daemon=True)
            try:
                with one_thread_each():
                    process.start()
                return process
            except (EOFError, ConnectionError):
                if not left:
                    raise
                time.sleep(START_SECONDS)
        raise AssertionError("the last start returns or raises")

    def stop(self) -> None:
        """Kill the process and wait for it, also where the server that forked it is gone and tells nothing of it."""
        self.process.kill()
        if self.handle is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.handle, signal.SIGKILL)
            wait([self.handle])
            os.close(self.handle)
            self.handle = None
        self.process.join()
        self.pipe.close()


class LocalEngine:
    """Processes on this machine; one worker means this very process, with nothing to survive."""

    def __init__(self, workers: int = 0, attempts: int = 3, preload: str = "") -> None:
        """Take `workers` processes (0: one a core); an item whose worker dies is tried `attempts` times in all.

        `preload` names the module that is imported before workers are forked, "" for none.
        """
        self.workers = workers if workers > 0 else available_cores()
        self.attempts = attempts
        self.preload = preload

    def map(
        self, function: Callable[[Any], Any], items: Iterable[Any], cancelled: Stop = never
    ) -> Generator[Result, None, None]:
        """Give a result an item, in the order of completion; closing the iterator stops all workers."""
        if self.workers == 1:
            for index, item in enumerate(items):
                if cancelled():
                    return
                status, value = run_item(function, item)
                yield index, status, value
            return
        workers: list[_Worker] = []
        try:
            for _ in range(self.workers):
                if cancelled():
                    return
                workers.append(_Worker(self.preload))
            yield from self._spread(workers, function, iter(items), cancelled)
        finally:
            for worker in workers:
                worker.stop()

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Let workers be prepared for; this machine is here."""
        if self.workers > 1:
            prepare(self.preload)
        yield

    def slots(self) -> int:
        """Give the number of workers."""
        return self.workers

    def _spread(
        self,
        workers: list[_Worker],
        function: Callable[[Any], Any],
        items: Iterator[Any],
        cancelled: Stop,
    ) -> Iterator[Result]:
        """Keep every worker busy until the items end and all are answered; one item is taken ahead while they work."""
        waiting: deque[int] = deque()
        held: dict[int, shared_memory.Parcel] = {}
        tries: dict[int, int] = {}
        coming = enumerate(items)

        def take_one() -> None:
            if not waiting and (following := next(coming, None)) is not None:
                held[following[0]] = shared_memory.Parcel((function, following[1]))
                waiting.append(following[0])

        try:
            while True:
                for worker in workers:
                    if worker.index < 0:
                        take_one()
                        if waiting:
                            self._hand(worker, waiting.popleft(), held, tries)
                take_one()  # so that the next idle worker need not wait for the reading
                busy = [worker for worker in workers if worker.index >= 0]
                if not busy:
                    return
                ready: list[Any] = []
                while not ready:
                    ready = wait([worker.pipe for worker in busy], timeout=ASKED_SECONDS)
                    if cancelled():
                        return
                done: list[Result] = []
                for place, worker in enumerate(workers):
                    if worker.index < 0 or worker.pipe not in ready:
                        continue
                    index = worker.index
                    try:
                        status, value = worker.pipe.recv()
                    except (EOFError, ConnectionResetError):
                        worker.stop()
                        workers[place] = worker = _Worker(self.preload)
                        if tries[index] < self.attempts:
                            waiting.appendleft(index)
                            continue
                        status, value = "lost", None
                    worker.index = -1
                    held.pop(index).close()
                    del tries[index]
                    done.append((index, status, value))
                    if waiting:  # before anybody hears of the result: it may be long until more is asked for
                        self._hand(worker, waiting.popleft(), held, tries)
                yield from done
        finally:
            for parcel in held.values():
                parcel.close()

    @staticmethod
    def _hand(worker: _Worker, index: int, held: Mapping[int, shared_memory.Parcel], tries: dict[int, int]) -> None:
        """Give a worker an item; one that died while idle is found by its pipe's end."""
        tries[index] = tries.get(index, 0) + 1
        worker.index = index
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            held[index].post(worker.pipe)
