"""`Engine.map` on more than one machine: Ray tasks, with the guarantees of
pipeline/executors/local.py.

Ray retries nothing itself: a task whose worker or node died is submitted again here, at most
ATTEMPTS times, whatever killed it (Ray's own retries are endless when its memory monitor kills).
Items are put into Ray's object store once, a window of them at a time, and read from there by every
attempt.

On a cluster every node has the same Fianchetto and sees `--out` under the same name; a node with
other kernels is refused. A cluster belongs on a private network, with RAY_AUTH_MODE=token
everywhere; the embedded Ray listens on loopback.
"""

import importlib
import logging
import os
import signal
import socket
import tempfile
import threading
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from engine.cores import cores
from engine.jit_cache import sources_hash
from engine.progress import Stop, never
from pipeline.errors import ConfigError, IngestError
from pipeline.executors.local import (
    ATTEMPTS,
    ONE_THREAD,
    POLL_SECONDS,
    Failure,
    Result,
    Status,
    run_item,
)

AHEAD = 2
"""Tasks submitted for each core: one that runs, and one that waits for it."""
CONNECT_SECONDS = 10.0
"""Timeout of the first connection to a cluster."""
CANCEL_SECONDS = 5.0
"""Timeout for cancelled tasks to end."""

_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else it warns about CUDA_VISIBLE_DEVICES
    "RAY_DEDUP_LOGS": "0",
}
_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Makes Ray on one machine listen on loopback only. It is read when Ray is imported."""


@cache
def _version() -> str:
    """Return the hash of the kernels' sources, which all nodes must share; takes 20 ms."""
    return sources_hash(Path(__file__).resolve().parents[2])


def _work(function: Callable[[Any], Any], item: Any, version: str) -> tuple[Status, Any]:
    """Run an item on a worker, unless its kernels differ from the driver's."""
    if (ours := _version()) != version:
        message = (
            f"node {socket.gethostname()} has another Fianchetto ({ours}, the driver "
            f"{version}): install the same"
        )
        return "error", Failure(IngestError.__name__, message, "", system=False, mistake=True)
    return run_item(function, item)


class RayEngine:
    """Ray core tasks: on this machine, or on a cluster."""

    def __init__(self, address: str = "", workers: int = 0) -> None:
        """Use the cluster at an address, or for "" a new Ray with `workers` cores (0: all).

        On a cluster `workers` bounds the tasks at a time; 0 uses all cores. Raises ConfigError if
        Ray is not installed.
        """
        if workers < 0:
            raise ConfigError("workers must be 0 or more")
        os.environ.update(_ENVIRONMENT | ({} if address else _LOOPBACK))
        try:
            self._ray: Any = importlib.import_module("ray")
        except ImportError as error:
            raise ConfigError('the engine ray needs Ray: pip install "fianchetto[ray]"') from error
        self.address, self.workers = address, workers

    def map(
        self, function: Callable[[Any], Any], items: Iterable[Any], cancelled: Stop = never
    ) -> Generator[Result, None, None]:
        """Yield results in the order of completion; closing the generator cancels all tasks.

        Raises IngestError if the cluster cannot be reached or is lost.
        """
        running: dict[Any, int] = {}
        with self.connected():
            try:
                yield from self._distribute(running, function, enumerate(items), cancelled)
            # not of one task: the store is full, the cluster is gone
            except self._ray.exceptions.RayError as error:
                raise IngestError(
                    f"Ray was lost ({first_line(error)}): run the same command to continue"
                ) from error
            finally:
                self._cancel(list(running))

    def _distribute(
        self,
        running: dict[Any, int],
        function: Callable[[Any], Any],
        items: Iterator[tuple[int, Any]],
        cancelled: Stop,
    ) -> Iterator[Result]:
        """Keep AHEAD tasks for each core submitted until the items end and all have results."""
        ray = self._ray
        work = ray.remote(_work).options(num_cpus=1, max_retries=0)
        stored: dict[int, Any] = {}
        tries: Counter[int] = Counter()
        again: deque[int] = deque()
        while True:
            while again or len(running) < AHEAD * self.slots():
                if not again:
                    following = next(items, None)
                    if following is None:
                        break
                    stored[following[0]] = ray.put(following[1])
                    again.append(following[0])
                index = again.popleft()
                tries[index] += 1
                running[work.remote(function, stored[index], _version())] = index
            if not running:
                return
            ready: list[Any] = []
            while not ready:
                ready, _ = ray.wait(list(running), num_returns=1, timeout=POLL_SECONDS)
                if cancelled():
                    return
            for task in ready:
                index = running.pop(task)
                outcome = self._outcome(task)
                if outcome is None and tries[index] < ATTEMPTS:
                    again.append(index)
                    continue
                del stored[index], tries[index]
                yield (index, *(outcome or ("lost", None)))

    def _outcome(self, task: Any) -> tuple[Status, Any] | None:
        """Return a task's status and value; None if its worker, its node or its item was lost."""
        errors = self._ray.exceptions
        lost = (
            errors.WorkerCrashedError,
            errors.NodeDiedError,
            errors.OutOfMemoryError,
            errors.ObjectLostError,
        )
        try:
            answer: tuple[Status, Any] = self._ray.get(task)
        # for example, Fianchetto is not installed on that node
        except errors.RayTaskError as error:
            cause = error.cause or error
            message = f"a node cannot run this: {type(cause).__name__}: {first_line(cause)}"
            return "error", Failure(
                type(cause).__name__, message, str(error), system=False, mistake=True
            )
        except (*lost, errors.LocalRayletDiedError):
            return None
        return answer

    def _cancel(self, tasks: list[Any]) -> None:
        """Kill what runs and wait a little for it to end."""
        with suppress(self._ray.exceptions.RayError, OSError, RuntimeError):
            for task in tasks:
                self._ray.cancel(task, force=True)
            if tasks and self._ray.is_initialized():
                self._ray.wait(tasks, num_returns=len(tasks), timeout=CANCEL_SECONDS)

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Connect to Ray, or start one if there is no address; an existing connection is used."""
        if self._ray.is_initialized():
            yield
            return
        if self.address not in ("", "auto"):
            self._require_listener()
        settings: dict[str, Any] = {
            "log_to_driver": False,
            "logging_level": logging.ERROR,
            "configure_logging": False,
        }
        with ExitStack() as stack:
            if not self.address:
                folder = stack.enter_context(
                    tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)
                )
                count = self.workers or cores()
                settings |= {"num_cpus": count, "include_dashboard": False, "_temp_dir": folder}
            stack.callback(self._ray.shutdown)
            try:
                with _signal_handlers_kept(), _one_thread_each():
                    self._ray.init(address=self.address or "local", **settings)
            # Ray also raises a bare Exception, for example if a node starts too slowly
            except Exception as error:
                where = self.address or "on this machine"
                # a client without a token gets no answer
                tokenless = (
                    self.address.startswith("ray://") and os.environ.get("RAY_AUTH_MODE") != "token"
                )
                hint = "; set RAY_AUTH_MODE=token here as on the cluster" if tokenless else ""
                raise IngestError(
                    f"Ray {where} cannot be reached or started: {first_line(error)}{hint}"
                ) from error
            yield

    def _require_listener(self) -> None:
        """Raise IngestError if nothing listens at the address: Ray would retry for minutes."""
        host, _, port = self.address.removeprefix("ray://").rpartition(":")
        # on its own machine Ray listens on one of the two
        hosts = (
            [host, self._ray.util.get_node_ip_address()]
            if host in ("127.0.0.1", "localhost")
            else [host]
        )
        reason = "an address is HOST:PORT"
        for one in hosts if host and port.isdecimal() else []:
            try:
                return socket.create_connection((one, int(port)), CONNECT_SECONDS).close()
            except (OSError, OverflowError) as error:
                reason = str(error)
        raise IngestError(f"Ray at {self.address} cannot be reached: {reason}")

    def slots(self) -> int:
        """Return how many tasks can run at a time now."""
        cores = self._ray.cluster_resources().get("CPU", 0.0)
        found = max(1, int(cores))
        return min(found, self.workers) if self.workers else found


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Start processes inside the block with one thread each."""
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


@contextmanager
def _signal_handlers_kept() -> Iterator[None]:
    """Restore the handlers of SIGTERM and Ctrl-C, which Ray replaces when it starts."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message that is not blank."""
    return next(
        (line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__
    )
