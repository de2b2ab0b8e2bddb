"""The interface that work is spread through, `Engine.map`, and its implementation by processes of this machine.

The standard library's pool loses everything when one worker is killed; this one repeats the item that was in hand. Each item
is tried at most `attempts` times, each result is given once, losses are named, closing the iterator stops the workers.
Functions are top-level and know no engine; items may be lazy, and only a few are taken ahead.

Workers are spawned and not forked: this process has threads (pyarrow's, torch's), whose locks would stay held in a copy.
"""

import multiprocessing
import os
import signal
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, Literal, Protocol

from engine.errors import UserError
from engine.progress import Stop, never
from pipeline.executors import shared_memory

ASKED_SECONDS = 1.0
"""Interval at which a `map` that waits asks whether it is cancelled."""
ONE_THREAD = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"),
    "JE_ARROW_MALLOC_CONF": "background_thread:false",  # of an allocator that pyarrow loads and does not use
}
"""Environment of workers: libraries use one thread, since there is a process a core."""

Status = Literal["ok", "error", "lost"]


@dataclass(frozen=True, slots=True)
class Failure:
    """What an item's function raised, as text, so that it can go between processes."""

    kind: str
    message: str
    traceback: str
    system: bool
    """Whether it was an OSError: a full disk, a lost file."""
    mistake: bool
    """Whether it was a UserError, whose message says what a person can do."""


Result = tuple[int, Status, Any]
"""(index of the item, status, value or Failure; None when lost)."""


class Engine(Protocol):
    """Runs a function over items."""

    def map(
        self, function: Callable[[Any], Any], items: Iterable[Any], cancelled: Stop = never
    ) -> Generator[Result, None, None]:
        """Yield a result for each item, in the order of completion; closing the generator stops the work, as `cancelled` does.

        `cancelled` is asked about once a second while a result is waited for.
        """
        ...

    def connected(self) -> AbstractContextManager[None]:
        """Connect to the engine, for every `map` and `slots` meanwhile."""
        ...

    def slots(self) -> int:
        """Return how many items can be worked on at a time now; call it while connected."""
        ...


def available_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_item(function: Callable[[Any], Any], item: Any) -> tuple[Status, Any]:
    """Return what the function gives, or its Failure: one bad item must not end the others."""
    try:
        return "ok", function(item)
    except Exception as error:  # noqa: BLE001 - carried to the caller, who decides
        system, mistake = isinstance(error, OSError), isinstance(error, UserError)
        return "error", Failure(type(error).__name__, str(error), traceback.format_exc(), system, mistake)


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Let processes that are started meanwhile have one thread each: there is one a core."""
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(ONE_THREAD)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _serve(pipe: Connection) -> None:
    """Be a worker: take (function, item) from the pipe until it closes, as it does when the driver is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver hears Ctrl-C and decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
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
    """A process, its pipe, and the index of the item that it has in hand, -1 for none."""

    def __init__(self) -> None:
        self.pipe, theirs = multiprocessing.Pipe()
        self.process = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs,), daemon=True)
        resource_tracker.ensure_running()  # else `start` begins it, and lets SIGINT through again
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited: Ctrl-C is for this process
        try:
            with one_thread_each():
                self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        self.index = -1

    def stop(self) -> None:
        """Kill the process and wait for it."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


class LocalEngine:
    """Processes on this machine; with one worker the items are worked on in this process."""

    def __init__(self, workers: int = 0, attempts: int = 3) -> None:
        """Take `workers` processes (0: one a core); an item whose worker dies is tried `attempts` times in all."""
        self.workers = workers if workers > 0 else available_cores()
        self.attempts = attempts

    def map(
        self, function: Callable[[Any], Any], items: Iterable[Any], cancelled: Stop = never
    ) -> Generator[Result, None, None]:
        """Yield a result for each item, in the order of completion; closing the generator stops all workers."""
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
                workers.append(_Worker())
            yield from self._spread(workers, function, iter(items), cancelled)
        finally:
            for worker in workers:
                worker.stop()

    def connected(self) -> AbstractContextManager[None]:
        """Do nothing: this machine is here."""
        return nullcontext()

    def slots(self) -> int:
        """Return the number of workers."""
        return self.workers

    def _spread(
        self,
        workers: list[_Worker],
        function: Callable[[Any], Any],
        items: Iterator[Any],
        cancelled: Stop,
    ) -> Iterator[Result]:
        """Keep every worker busy until the items end and all have results; one item is taken ahead while they work."""
        waiting: deque[int] = deque()
        held: dict[int, shared_memory.Message] = {}
        tries: dict[int, int] = {}
        coming = enumerate(items)

        def take_one() -> None:
            if not waiting and (following := next(coming, None)) is not None:
                held[following[0]] = shared_memory.Message((function, following[1]))
                waiting.append(following[0])

        try:
            while True:
                for worker in workers:
                    if worker.index < 0:
                        take_one()
                        if waiting:
                            self._send(worker, waiting.popleft(), held, tries)
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
                        workers[place] = worker = _Worker()
                        if tries[index] < self.attempts:
                            waiting.appendleft(index)
                            continue
                        status, value = "lost", None
                    worker.index = -1
                    held.pop(index).close()
                    del tries[index]
                    done.append((index, status, value))
                    if waiting:  # before anybody hears of the result: it may be long until more is asked for
                        self._send(worker, waiting.popleft(), held, tries)
                yield from done
        finally:
            for message in held.values():
                message.close()

    @staticmethod
    def _send(worker: _Worker, index: int, held: Mapping[int, shared_memory.Message], tries: dict[int, int]) -> None:
        """Send an item to a worker; that it died while idle is noticed when its result is waited for."""
        tries[index] = tries.get(index, 0) + 1
        worker.index = index
        with suppress(BrokenPipeError, ConnectionResetError):
            held[index].send(worker.pipe)
