"""`Engine.map` as Ray tasks, with the guarantees of pipeline/executors/local.py.

Ray's own retries are off, because they never end when its memory monitor kills tasks. Every node
needs the same version of Fianchetto and must see `--out` under the same path. Use a private network
and RAY_AUTH_MODE=token on every node; Ray started on one machine listens on loopback only.
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

from engine.cores import count_cores
from engine.jit_cache import hash_kernel_sources
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
from pipeline.storage.stores import one_line

TASKS_PER_CORE = 2
"""Tasks submitted per core: one running and one queued."""
CONNECT_SECONDS = 10.0
CANCEL_SECONDS = 5.0
"""Timeout for cancelled tasks, in seconds."""

_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # otherwise Ray warns about CUDA_VISIBLE_DEVICES
    "RAY_DEDUP_LOGS": "0",
}
_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Makes Ray on one machine listen on loopback only; Ray reads it when imported."""


@cache
def _version() -> str:
    """Return the hash of the kernels' sources, which must match on all nodes. Takes 20 ms."""
    return hash_kernel_sources(Path(__file__).resolve().parents[2])


def _work(function: Callable[[Any], Any], item: Any, version: str) -> tuple[Status, Any]:
    """Run an item on a worker; return an error if its kernels differ from the driver's."""
    if (ours := _version()) != version:
        message = (
            f"node {socket.gethostname()} has a different version of Fianchetto ({ours}, not "
            f"{version})"
        )
        return "error", Failure(
            IngestError.__name__, f"{message}: install the same version on all nodes"
        )
    return run_item(function, item)


class RayEngine:
    """Runs items as Ray tasks, on this machine or on a cluster."""

    def __init__(self, address: str = "", workers: int = 0) -> None:
        """Use at most `workers` cores (0: all) of the cluster, or of a new Ray if `address` is "".

        Raises ConfigError if Ray is not installed.
        """
        os.environ.update(_ENVIRONMENT | ({} if address else _LOOPBACK))
        try:
            self._ray: Any = importlib.import_module("ray")
        except ImportError as error:
            raise ConfigError('the engine ray needs Ray: pip install "fianchetto[ray]"') from error
        self.address, self.workers = address, workers

    def map(
        self, function: Callable[[Any], Any], items: Iterable[Any], cancelled: Stop = never
    ) -> Generator[Result, None, None]:
        """Yield results as `Engine.map` does; raises IngestError if the cluster is lost."""
        ray = self._ray
        work = ray.remote(_work).options(num_cpus=1, max_retries=0)
        waiting, again = enumerate(items), deque[int]()
        running: dict[Any, int] = {}
        stored: dict[int, Any] = {}
        """Items in Ray's object store, kept for retries."""
        tries: Counter[int] = Counter()
        with self.connected():
            try:
                while not cancelled():
                    while again or len(running) < TASKS_PER_CORE * self.slots():
                        if not again:
                            if (following := next(waiting, None)) is None:
                                break
                            stored[following[0]] = ray.put(following[1])
                            again.append(following[0])
                        index = again.popleft()
                        tries[index] += 1
                        running[work.remote(function, stored[index], _version())] = index
                    if not running:
                        return
                    ready, _ = ray.wait(list(running), num_returns=1, timeout=POLL_SECONDS)
                    for task in ready:
                        index, outcome = running.pop(task), self._outcome(task)
                        if outcome is None and tries[index] < ATTEMPTS:
                            again.append(index)
                            continue
                        del stored[index], tries[index]
                        yield (index, *(outcome or ("lost", None)))
            # not an error of one task: the object store is full or the cluster is gone
            except ray.exceptions.RayError as error:
                raise IngestError(
                    f"the connection to Ray was lost ({one_line(error)}): run the same command to "
                    "continue"
                ) from error
            finally:
                self._cancel(list(running))

    def _outcome(self, task: Any) -> tuple[Status, Any] | None:
        """Return a task's status and value; None if its worker, its node or its item was lost."""
        errors = self._ray.exceptions
        try:
            answer: tuple[Status, Any] = self._ray.get(task)
        # for example, Fianchetto is not installed on that node
        except errors.RayTaskError as error:
            cause = error.cause or error
            message = f"a node cannot run this: {type(cause).__name__}: {one_line(cause)}"
            return "error", Failure(type(cause).__name__, message, str(error))
        except (errors.WorkerCrashedError, errors.NodeDiedError, errors.LocalRayletDiedError):
            return None
        except (errors.OutOfMemoryError, errors.ObjectLostError):
            return None
        return answer

    def _cancel(self, tasks: list[Any]) -> None:
        """Kill running tasks, and wait up to CANCEL_SECONDS for them to end."""
        with suppress(self._ray.exceptions.RayError, OSError, RuntimeError):
            for task in tasks:
                self._ray.cancel(task, force=True)
            if tasks and self._ray.is_initialized():
                self._ray.wait(tasks, num_returns=len(tasks), timeout=CANCEL_SECONDS)

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Connect to Ray, or start it if there is no address; reuse an existing connection."""
        if self._ray.is_initialized():
            yield
            return
        if self.address not in ("", "auto"):
            self._require_listener()
        settings: dict[str, Any] = {"address": self.address or "local"}
        settings |= {"log_to_driver": False, "configure_logging": False}
        with ExitStack() as stack:
            if not self.address:
                scratch = tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)
                settings |= {"num_cpus": self.workers or count_cores(), "include_dashboard": False}
                settings["_temp_dir"] = stack.enter_context(scratch)
            stack.callback(self._ray.shutdown)
            try:
                with _restore_process():
                    self._ray.init(logging_level=logging.ERROR, **settings)
            # Ray also raises a bare Exception, for example if a node starts too slowly
            except Exception as error:
                raise IngestError(
                    f"Ray {self.address or 'on this machine'} cannot be reached or started: "
                    f"{one_line(error)} (if the cluster sets RAY_AUTH_MODE=token, set it here too)"
                ) from error
            yield

    def _require_listener(self) -> None:
        """Raise IngestError if nothing listens at the address; Ray would retry for minutes."""
        host, _, port = self.address.removeprefix("ray://").rpartition(":")
        hosts, reason = [host], "the address must be HOST:PORT"
        if host in ("127.0.0.1", "localhost"):  # Ray may listen on the node's IP address instead
            hosts.append(self._ray.util.get_node_ip_address())
        for one in hosts if host and port.isdecimal() else []:
            try:
                return socket.create_connection((one, int(port)), CONNECT_SECONDS).close()
            except (OSError, OverflowError) as error:
                reason = str(error)
        raise IngestError(f"Ray at {self.address} cannot be reached: {reason}")

    def slots(self) -> int:
        """Return how many tasks can currently run in parallel."""
        found = max(1, int(self._ray.cluster_resources().get("CPU", 0.0)))
        return min(found, self.workers) if self.workers > 0 else found


@contextmanager
def _restore_process() -> Iterator[None]:
    """Set ONE_THREAD for processes started inside; restore environment and signal handlers after.

    Ray replaces the handlers of SIGTERM and Ctrl-C when it starts.
    """
    environment, is_main = os.environ.copy(), threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    os.environ.update(ONE_THREAD)
    try:
        yield
    finally:
        for name in ONE_THREAD:
            if name in environment:
                os.environ[name] = environment[name]
            else:
                del os.environ[name]
        for number, handler in handlers.items():
            if is_main:
                signal.signal(number, handler)
