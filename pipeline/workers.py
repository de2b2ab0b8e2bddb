"""The seam that work is spread through: `Engine.map`, and the engine for one machine.

The standard library's pool loses everything when one worker is killed; this one redoes the item that was in hand. The
promise: each item is tried at most `attempts` times, each result is given once, losses are named, closing the iterator
stops the workers. Functions are top-level and know no engine; items may be lazy, and only a few are taken ahead.
"""

import contextlib
import multiprocessing
import os
import signal
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Literal, Protocol

from engine.errors import UserError

ASKED_SECONDS = 1.0
"""How often a `map` that waits asks whether it is cancelled."""

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


def never() -> bool:
    """Cancel nothing."""
    return False


class Engine(Protocol):
    """Something that runs a function over items."""

    def map(
        self, function: Callable[[Any], Any], items: Iterable[Any], cancelled: Callable[[], bool] = never
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


def _serve(pipe: Connection) -> None:
    """Be a worker: take (function, item) from the pipe until it closes, as it does when the driver is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver hears Ctrl-C and decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    while True:
        try:
            function, item = pipe.recv()
        except EOFError:
            return
        outcome = run_item(function, item)
        del function, item  # a chunk is megabytes
        try:
            pipe.send(outcome)
        except BrokenPipeError:
            return


class _Worker:
    """A process, its pipe, and the item it has in hand."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")  # forking under pyarrow's threads can deadlock
        self.pipe, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=_serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        self.index = -1

    def stop(self) -> None:
        """Kill the process and wait for it."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


class LocalEngine:
    """Processes on this machine; one worker means this very process, with nothing to survive."""

    def __init__(self, workers: int = 0, attempts: int = 3) -> None:
        """Take `workers` processes (0: one a core); an item whose worker dies is tried `attempts` times in all."""
        self.workers = workers if workers > 0 else available_cores()
        self.attempts = attempts

    def map(
        self, function: Callable[[Any], Any], items: Iterable[Any], cancelled: Callable[[], bool] = never
    ) -> Generator[Result, None, None]:
        """Give a result an item, in the order of completion; closing the iterator stops all workers."""
        if self.workers == 1:
            for index, item in enumerate(items):
                if cancelled():
                    return
                status, value = run_item(function, item)
                yield index, status, value
            return
        workers = [_Worker() for _ in range(self.workers)]
        try:
            yield from self._spread(workers, function, iter(items), cancelled)
        finally:
            for worker in workers:
                worker.stop()

    def connected(self) -> AbstractContextManager[None]:
        """Do nothing: this machine is here."""
        return contextlib.nullcontext()

    def slots(self) -> int:
        """Give the number of workers."""
        return self.workers

    def _spread(
        self,
        workers: list[_Worker],
        function: Callable[[Any], Any],
        items: Iterator[Any],
        cancelled: Callable[[], bool],
    ) -> Iterator[Result]:
        """Keep every worker busy until the items end and all are answered; one item is taken ahead while they work."""
        waiting: deque[int] = deque()
        held: dict[int, Any] = {}
        tries: dict[int, int] = {}
        coming = enumerate(items)

        def take_one() -> None:
            if not waiting and (following := next(coming, None)) is not None:
                held[following[0]] = following[1]
                waiting.append(following[0])

        while True:
            for worker in workers:
                if worker.index < 0:
                    take_one()
                    if waiting:
                        self._hand(worker, waiting.popleft(), function, held, tries)
            take_one()  # so that the next idle worker need not wait for the reading
            busy = [worker for worker in workers if worker.index >= 0]
            if not busy:
                return
            ready: list[Any] = []
            while not ready:
                ready = wait([worker.pipe for worker in busy], timeout=ASKED_SECONDS)
                if cancelled():
                    return
            for place, worker in enumerate(workers):
                if worker.index < 0 or worker.pipe not in ready:
                    continue
                index = worker.index
                try:
                    status, value = worker.pipe.recv()
                except (EOFError, ConnectionResetError):
                    worker.stop()
                    workers[place] = _Worker()
                    if tries[index] < self.attempts:
                        waiting.appendleft(index)
                        continue
                    status, value = "lost", None
                worker.index = -1
                del held[index], tries[index]
                yield index, status, value

    @staticmethod
    def _hand(
        worker: _Worker, index: int, function: Callable[[Any], Any], held: dict[int, Any], tries: dict[int, int]
    ) -> None:
        """Give a worker an item; one that died while idle is found by its pipe's end."""
        tries[index] = tries.get(index, 0) + 1
        worker.index = index
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            worker.pipe.send((function, held[index]))
