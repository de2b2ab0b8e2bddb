"""Run a function over many items: the interface `Engine.map`, and local processes behind it.

The standard library's process pool fails as a whole when one worker is killed. Here each thread of
a ThreadPoolExecutor drives one process, and retries the item if that process dies. Workers are not
forked, because a fork copies locks that other threads hold. Unlike multiprocessing's workers, they
do not import the user's script again.
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
MAX_ATTEMPTS = 3
"""Maximum number of attempts at an item if its workers are killed."""
POLL_SECONDS = 0.5
"""Seconds between polls of `cancelled` while `map` waits for results."""
ONE_THREAD_ENVIRONMENT = {
    **dict.fromkeys(
        ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"),
        "1",
    ),
    # pyarrow does not use jemalloc here, but jemalloc would still start a thread
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
"""Environment of workers, in which libraries use one thread, since there is a process per core."""

Status = Literal["ok", "error", "lost"]


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception as text, so that it can be sent between processes."""

    kind: str
    """Name of the exception's class."""
    message: str
    traceback: str = ""
    is_system_error: bool = False
    """Whether it was an OSError, such as a full disk or a missing file."""
    is_user_error: bool = True
    """Whether the message alone tells the user what to do, so that no traceback is shown."""


Result = tuple[int, Status, Any]
"""Index of the item, status, and the value ("ok"), a Failure ("error") or None ("lost")."""


class WorkerError(UserError):
    """Raised if a worker exits with an error status, since a retry would fail too."""


class Engine(Protocol):
    """Applies a function to items in parallel."""

    def map(
        self, function: Callable[[Any], Any], items: Iterable[Any], cancelled: Stop = never
    ) -> Generator[Result, None, None]:
        """Yield a result for each item, in the order of completion.

        An item whose worker is killed is retried, and reported as "lost" after MAX_ATTEMPTS. The
        work stops when the generator is closed or `cancelled()` returns True. It is polled twice a
        second, or before each item if the items run in this process.
        """
        ...

    def connect(self) -> AbstractContextManager[None]:
        """Connect to the engine once, for every `map` and `count_slots` inside the block."""
        ...

    def count_slots(self) -> int:
        """Return how many items can run in parallel now; call it inside `connect`."""
        ...


def run_item(function: Callable[[Any], Any], item: Any) -> tuple[Status, Any]:
    """Apply a function to an item; return ("ok", value), or ("error", Failure) if it raises."""
    try:
        return "ok", function(item)
    except Exception as error:  # noqa: BLE001 - reported to the caller, who decides
        return "error", Failure(
            type(error).__name__,
            str(error),
            traceback.format_exc(),
            is_system_error=isinstance(error, OSError),
            is_user_error=isinstance(error, UserError),
        )


WORKER_COMMAND = (
    "import sys; sys.path[:] = sys.argv[2:]; from pipeline.executors.local import run_worker; "
    "run_worker(int(sys.argv[1]))"
)


def run_worker(descriptor: int) -> None:
    """Run (function, item) pairs from a pipe and send back the results, until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver handles Ctrl-C
    with Connection(descriptor) as pipe, suppress(EOFError, ConnectionError):
        while True:
            pipe.send(run_item(*pipe.recv()))


class _WorkerProcess:
    def __init__(self) -> None:
        self.pipe, worker_end = Pipe()
        code = ["-P", "-c", WORKER_COMMAND]
        command = [sys.executable, *code, str(worker_end.fileno()), *map(str, sys.path)]
        # the worker inherits the mask, so that no Ctrl-C arrives before `run_worker` ignores it
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self.process = subprocess.Popen(
                command,
                env=os.environ | ONE_THREAD_ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                pass_fds=[worker_end.fileno()],
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            worker_end.close()

    def run_item(self, function: Callable[[Any], Any], item: Any) -> tuple[Status, Any] | None:
        """Run an item; return None if the process was killed, raise WorkerError if it failed."""
        try:
            self.pipe.send((function, item))
            answer: tuple[Status, Any] = self.pipe.recv()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            if (code := self.process.wait()) > 0:
                raise WorkerError(
                    f"a worker process exited with status {code}: see its error output above"
                ) from None
            return None
        return answer


class _WorkerPool:
    """Worker processes that the threads of `map` share."""

    def __init__(self) -> None:
        self.lock, self.closed = Lock(), False
        self.idle: list[_WorkerProcess] = []
        self.workers: set[_WorkerProcess] = set()

    def run_item(self, function: Callable[[Any], Any], item: Any) -> tuple[Status, Any]:
        """Run an item; return "lost" after MAX_ATTEMPTS killed processes. Raises WorkerError."""
        for _ in range(MAX_ATTEMPTS):
            with self.lock:
                if self.closed:
                    break
                worker = self.idle.pop() if self.idle else _WorkerProcess()
                self.workers.add(worker)
            if (answer := worker.run_item(function, item)) is not None:
                self.idle.append(worker)
                return answer
        return "lost", None

    def kill(self) -> None:
        """Kill all processes, so that the threads that wait for them return."""
        with self.lock:
            self.closed = True
            for worker in self.workers:
                worker.process.kill()


class LocalEngine:
    """Runs items in processes on this machine, or in this process if there is a single worker."""

    def __init__(self, workers: int = 0) -> None:
        """Use `workers` processes; 0 for one per core."""
        self.workers = workers if workers > 0 else count_cores()

    def map(
        self, function: Callable[[Any], Any], items: Iterable[Any], cancelled: Stop = never
    ) -> Generator[Result, None, None]:
        """Yield results as `Engine.map` does; raises WorkerError if a worker process fails."""
        if self.workers == 1:
            for index, item in enumerate(items):
                if cancelled():
                    return
                yield (index, *run_item(function, item))
            return
        pool, threads = _WorkerPool(), ThreadPoolExecutor(self.workers, "worker")
        pending: dict[Future[tuple[Status, Any]], int] = {}
        waiting = enumerate(items)
        try:
            while not cancelled():
                # submit one item more than there are workers, so that none waits for the next item
                while len(pending) <= self.workers and (indexed := next(waiting, None)):
                    index, item = indexed
                    pending[threads.submit(pool.run_item, function, item)] = index
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

    def connect(self) -> AbstractContextManager[None]:
        """Do nothing, since there is no connection."""
        return nullcontext()

    def count_slots(self) -> int:
        """Return the number of workers."""
        return self.workers
