"""`Engine.map`, the interface for distributed work, and an implementation with local processes.

The standard library's process pool fails as a whole when one worker is killed. Here each thread of
a ThreadPoolExecutor drives one process, and retries the item if that process dies. Workers are not
forked, because a fork copies locks that other threads hold. Unlike multiprocessing's workers, they
do not run the user's script again.
"""

import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from threading import Lock
from typing import Any, Literal, Protocol

from engine.cores import count_cores
from engine.errors import UserError
from engine.progress import Stop, never

LOCAL = "local"
ATTEMPTS = 3
"""Maximum number of attempts at an item whose workers are killed."""
POLL_SECONDS = 0.5
"""Interval at which `map` polls `cancelled` while it waits for results."""
ONE_THREAD = {
    **dict.fromkeys(
        ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"),
        "1",
    ),
    # pyarrow does not use jemalloc here, but jemalloc would still start a thread
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
"""Environment of workers: libraries use one thread, since there is one process per core."""

Status = Literal["ok", "error", "lost"]


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception as text, which can be sent between processes."""

    kind: str
    message: str
    traceback: str = ""
    system: bool = False
    """Whether it was an OSError: a full disk, a missing file."""
    mistake: bool = True
    """Whether it was a UserError, whose message says what to do."""


Result = tuple[int, Status, Any]
"""(index of the item, status, value or Failure; None if lost)."""


class WorkerError(UserError):
    """A worker exited with an error, which a retry would repeat."""


class Engine(Protocol):
    """Applies a function to items, in parallel."""

    def map(
        self, function: Callable[[Any], Any], items: Iterable[Any], cancelled: Stop = never
    ) -> Generator[Result, None, None]:
        """Yield a result for each item, in the order of completion.

        The work stops when the generator is closed or `cancelled()` returns True (polled twice a
        second).
        """
        ...

    def connected(self) -> AbstractContextManager[None]:
        """Connect to the engine, for every `map` and `slots` inside the block."""
        ...

    def slots(self) -> int:
        """Return how many items can currently run in parallel; call it while connected."""
        ...


def run_item(function: Callable[[Any], Any], item: Any) -> tuple[Status, Any]:
    """Apply the function; return ("ok", value), or ("error", Failure) if it raises."""
    try:
        return "ok", function(item)
    except Exception as error:  # noqa: BLE001 - reported to the caller, who decides
        system, mistake = isinstance(error, OSError), isinstance(error, UserError)
        return "error", Failure(
            type(error).__name__, str(error), traceback.format_exc(), system, mistake
        )


WORKER_COMMAND = (
    "import sys; sys.path[:] = sys.argv[2:]; from pipeline.executors.local import serve; "
    "serve(int(sys.argv[1]))"
)


def serve(descriptor: int) -> None:
    """Run (function, item) pairs from a pipe until it closes, also because the driver died."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver handles Ctrl-C
    with Connection(descriptor) as pipe, suppress(EOFError, ConnectionError):
        while True:
            pipe.send(run_item(*pipe.recv()))


class _Worker:
    """A process and its pipe."""

    def __init__(self) -> None:
        self.pipe, theirs = Pipe()
        command = [
            sys.executable,
            "-P",
            "-c",
            WORKER_COMMAND,
            str(theirs.fileno()),
            *map(str, sys.path),
        ]
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

    def run(self, function: Callable[[Any], Any], item: Any) -> tuple[Status, Any] | None:
        """Return the result of an item; None if the process was killed. Raises WorkerError."""
        try:
            self.pipe.send((function, item))
            answer: tuple[Status, Any] = self.pipe.recv()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            if (code := self.process.wait()) > 0:
                raise WorkerError(
                    f"a worker process exited with status {code}: its error output is above"
                ) from None
            return None
        return answer


class _Pool:
    """Worker processes, shared by the threads of `map`."""

    def __init__(self) -> None:
        self.lock, self.closed = Lock(), False
        self.idle: list[_Worker] = []
        self.workers: set[_Worker] = set()

    def run(self, function: Callable[[Any], Any], item: Any) -> tuple[Status, Any]:
        """Run an item in a process, with at most ATTEMPTS attempts. Raises WorkerError."""
        for _ in range(ATTEMPTS):
            with self.lock:
                if self.closed:
                    break
                worker = self.idle.pop() if self.idle else _Worker()
                self.workers.add(worker)
            if (answer := worker.run(function, item)) is not None:
                self.idle.append(worker)
                return answer
        return "lost", None

    def kill(self) -> None:
        """Kill the processes, which unblocks the threads that wait for them."""
        with self.lock:
            self.closed = True
            for worker in self.workers:
                worker.process.kill()


class LocalEngine:
    """Runs items in processes on this machine; a single worker runs in this process."""

    def __init__(self, workers: int = 0) -> None:
        """Use `workers` processes; 0 for one per core."""
        self.workers = workers if workers > 0 else count_cores()

    def map(
        self, function: Callable[[Any], Any], items: Iterable[Any], cancelled: Stop = never
    ) -> Generator[Result, None, None]:
        """Yield results in the order of completion; closing the generator stops all workers."""
        if self.workers == 1:
            for index, item in enumerate(items):
                if cancelled():
                    return
                yield (index, *run_item(function, item))
            return
        pool, threads = _Pool(), ThreadPoolExecutor(self.workers, "worker")
        pending: dict[Future[tuple[Status, Any]], int] = {}
        waiting = enumerate(items)
        try:
            while not cancelled():
                # one item is taken ahead, so that an idle worker does not wait for the reader
                while len(pending) <= self.workers and (following := next(waiting, None)):
                    index, item = following
                    pending[threads.submit(pool.run, function, item)] = index
                if not pending:
                    return
                done, _ = wait(pending, POLL_SECONDS, FIRST_COMPLETED)
                for future in done:
                    yield (pending.pop(future), *future.result())
        finally:
            pool.kill()
            threads.shutdown(cancel_futures=True)
            for worker in pool.workers:
                worker.pipe.close()
                worker.process.wait()

    def connected(self) -> AbstractContextManager[None]:
        """Do nothing."""
        return nullcontext()

    def slots(self) -> int:
        """Return the number of workers."""
        return self.workers
