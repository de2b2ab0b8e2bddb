"""The interface for distributed work, `Engine.map`, and its implementation by processes on this
machine.

The standard library's pool loses everything when one worker is killed; this one repeats the item
that the worker had. Each item is tried at most ATTEMPTS times, each result is returned once, lost
items are reported, and closing the iterator stops the workers. Functions are top-level and do not
know the engine; items may be lazy, and only a few are taken ahead.

Workers are fresh processes and not forked: the locks of this process's threads (pyarrow's, torch's)
would stay held in a copy. multiprocessing's own fresh processes run the user's script again, unless
it has a `__main__` guard; these do not.
"""

import os
import signal
import subprocess
import sys
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, Literal, Protocol

from engine.cores import cores
from engine.errors import UserError
from engine.progress import Stop, never

ATTEMPTS = 3
"""Times that an item whose worker dies is tried in all."""
POLL_SECONDS = 0.5
"""Interval at which a `map` that waits for a result polls `cancelled`."""
ONE_THREAD = {
    **dict.fromkeys(
        ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"),
        "1",
    ),
    "JE_ARROW_MALLOC_CONF": "background_thread:false",  # an allocator that pyarrow does not use
}
"""Environment of workers: there is one process per core, so libraries use one thread."""

Status = Literal["ok", "error", "lost"]


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception as text, which can be sent between processes."""

    kind: str
    message: str
    traceback: str
    system: bool
    """Whether it was an OSError: a full disk, a missing file."""
    mistake: bool
    """Whether it was a UserError, whose message says what to do."""


Result = tuple[int, Status, Any]
"""(index of the item, status, value or Failure; None if lost)."""


class WorkerError(UserError):
    """A worker that exited by itself: it cannot be started here, and another try would end
    alike.
    """


class Engine(Protocol):
    """Runs a function over items."""

    def map(
        self, function: Callable[[Any], Any], items: Iterable[Any], cancelled: Stop = never
    ) -> Generator[Result, None, None]:
        """Yield a result for each item, in the order of completion.

        The work stops when the generator is closed or `cancelled`, polled twice a second, returns
        true.
        """
        ...

    def connected(self) -> AbstractContextManager[None]:
        """Connect to the engine, for every `map` and `slots` inside the block."""
        ...

    def slots(self) -> int:
        """Return how many items can be worked on at a time now; call it while connected."""
        ...


def run_item(function: Callable[[Any], Any], item: Any) -> tuple[Status, Any]:
    """Return the function's value or its Failure: one bad item must not end the others."""
    try:
        return "ok", function(item)
    except Exception as error:  # noqa: BLE001 - reported to the caller, who decides
        system, mistake = isinstance(error, OSError), isinstance(error, UserError)
        return "error", Failure(
            type(error).__name__, str(error), traceback.format_exc(), system, mistake
        )


START = (
    "import sys; sys.path[:] = sys.argv[2:]; from pipeline.executors.local import serve; "
    "serve(int(sys.argv[1]))"
)


def serve(descriptor: int) -> None:
    """Run (function, item) pairs from a pipe until it closes, as it does when the driver dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver handles Ctrl-C
    with Connection(descriptor) as pipe, suppress(EOFError, ConnectionError):
        while True:
            pipe.send(run_item(*pipe.recv()))


class _Worker:
    """A process, its pipe, and the number of the item that it has, None if idle."""

    def __init__(self) -> None:
        self.pipe, theirs = Pipe()
        command = [sys.executable, "-P", "-c", START, str(theirs.fileno()), *map(str, sys.path)]
        # the mask is inherited, so that no Ctrl-C arrives before `serve` ignores it
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self.process = subprocess.Popen(
                command,
                env=os.environ | ONE_THREAD,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            theirs.close()
        self.index: int | None = None

    def send(self, index: int, work: object) -> None:
        """Send an item; a worker's death is noticed when its result is received."""
        self.index = index
        with suppress(BrokenPipeError, ConnectionResetError):
            self.pipe.send(work)

    def stop(self) -> int:
        """Kill the process if it still runs, and return its exit status."""
        self.process.kill()
        self.pipe.close()
        return self.process.wait()


class LocalEngine:
    """Processes on this machine; a single worker is this process."""

    def __init__(self, workers: int = 0) -> None:
        """Use `workers` processes; 0 for one per core."""
        self.workers = workers if workers > 0 else cores()

    def map(
        self, function: Callable[[Any], Any], items: Iterable[Any], cancelled: Stop = never
    ) -> Generator[Result, None, None]:
        """Yield a result for each item, in the order of completion; closing the generator stops all
        workers.
        """
        if self.workers == 1:
            for index, item in enumerate(items):
                if cancelled():
                    return
                yield (index, *run_item(function, item))
            return
        workers: list[_Worker] = []
        try:
            for _ in range(self.workers):
                if cancelled():
                    return
                workers.append(_Worker())
            yield from self._distribute(workers, function, enumerate(items), cancelled)
        finally:
            for worker in workers:
                worker.stop()

    def connected(self) -> AbstractContextManager[None]:
        """Do nothing."""
        return nullcontext()

    def slots(self) -> int:
        """Return the number of workers."""
        return self.workers

    def _distribute(
        self,
        workers: list[_Worker],
        function: Callable[[Any], Any],
        items: Iterator[tuple[int, Any]],
        cancelled: Stop,
    ) -> Iterator[Result]:
        """Keep every worker busy until all items have results; one item is taken ahead while they
        work.
        """
        waiting: deque[tuple[int, Any]] = deque()
        given: dict[int, Any] = {}
        tries: dict[int, int] = {}

        def take_one() -> None:
            if not waiting and (following := next(items, None)) is not None:
                waiting.append(following)

        def assign(worker: _Worker) -> None:
            if waiting:
                index, item = waiting.popleft()
                given[index], tries[index] = item, tries.get(index, 0) + 1
                worker.send(index, (function, item))

        while True:
            for worker in workers:
                if worker.index is None:
                    take_one()
                    assign(worker)
            take_one()  # so that the next idle worker does not wait for the reader
            busy = [worker.pipe for worker in workers if worker.index is not None]
            if not busy:
                return
            ready: list[Any] = []
            while not ready:
                ready = wait(busy, timeout=POLL_SECONDS)
                if cancelled():
                    return
            done: list[Result] = []
            for place, worker in enumerate(workers):
                if worker.index is None or worker.pipe not in ready:
                    continue
                index, worker.index = worker.index, None
                try:
                    status, value = worker.pipe.recv()
                except (EOFError, ConnectionResetError):
                    if (code := worker.stop()) > 0:  # not killed by a signal
                        raise WorkerError(
                            f"a worker process ended by itself (exit status {code}): its own lines "
                            f"are above"
                        ) from None
                    workers[place] = worker = _Worker()
                    if tries[index] < ATTEMPTS:
                        waiting.appendleft((index, given[index]))
                        continue
                    status, value = "lost", None
                del given[index], tries[index]
                done.append((index, status, value))
                # before the results are yielded: it may be long until the next one is requested
                assign(worker)
            yield from done
