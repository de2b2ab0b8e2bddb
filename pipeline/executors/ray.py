"""Run items as Ray tasks, with the guarantees of pipeline/executors/local.py.

Ray's own retries are off, because they never end when its memory monitor kills tasks. Every node
needs the same version of Fianchetto and must see `--out` under the same path. A cluster needs a
private network and RAY_AUTH_MODE=token on every node. Without an address, Ray is started on this
machine and listens on loopback only.
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
    MAX_ATTEMPTS,
    ONE_THREAD_ENVIRONMENT,
    POLL_SECONDS,
    Failure,
    Result,
    Status,
    run_item,
)
from pipeline.storage.stores import shorten_error

TASKS_PER_CORE = 2
"""Maximum number of submitted tasks per core: one running and one queued."""
CONNECT_TIMEOUT_SECONDS = 10.0
CANCEL_TIMEOUT_SECONDS = 5.0
"""Maximum wait for cancelled tasks to end."""

_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # otherwise Ray warns about CUDA_VISIBLE_DEVICES
    "RAY_DEDUP_LOGS": "0",
}
_LOOPBACK_ENVIRONMENT = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Environment that makes a local Ray listen on loopback only. Ray reads it on import."""


@cache
def _hash_kernel_sources() -> str:
    """Return the hash of the kernels' sources, which must be the same on all nodes. Takes 20 ms."""
    return hash_kernel_sources(Path(__file__).resolve().parents[2])


def _run_versioned_item(
    function: Callable[[Any], Any], item: Any, version: str
) -> tuple[Status, Any]:
    """Run an item on a node; return an error if its kernels differ from the driver's."""
    if (node_version := _hash_kernel_sources()) != version:
        message = (
            f"node {socket.gethostname()} has a different version of Fianchetto ({node_version}, "
            f"not {version}): install the same version on all nodes"
        )
        return "error", Failure(IngestError.__name__, message)
    return run_item(function, item)


class RayEngine:
    """Runs items as Ray tasks, on this machine or on a cluster."""

    def __init__(self, address: str = "", workers: int = 0) -> None:
        """Use at most `workers` cores (0: all) of a cluster, or of this machine without `address`.

        Raises ConfigError if Ray is not installed.
        """
        os.environ.update(_ENVIRONMENT | ({} if address else _LOOPBACK_ENVIRONMENT))
        try:
            self._ray: Any = importlib.import_module("ray")
        except ImportError as error:
            raise ConfigError('the engine ray needs Ray: pip install "fianchetto[ray]"') from error
        self.address, self.workers = address, workers

    def map(
        self, function: Callable[[Any], Any], items: Iterable[Any], cancelled: Stop = never
    ) -> Generator[Result, None, None]:
        """Yield results as `Engine.map` does; raises IngestError if Ray cannot be used or fails."""
        ray = self._ray
        run_task = ray.remote(_run_versioned_item).options(num_cpus=1, max_retries=0)
        waiting, to_submit = enumerate(items), deque[int]()
        running: dict[Any, int] = {}
        stored: dict[int, Any] = {}
        """Items in Ray's object store, kept for retries."""
        attempts: Counter[int] = Counter()
        with self.connect():
            try:
                while not cancelled():
                    while to_submit or len(running) < TASKS_PER_CORE * self.count_slots():
                        if not to_submit:
                            if (indexed := next(waiting, None)) is None:
                                break
                            stored[indexed[0]] = ray.put(indexed[1])
                            to_submit.append(indexed[0])
                        index = to_submit.popleft()
                        attempts[index] += 1
                        task = run_task.remote(function, stored[index], _hash_kernel_sources())
                        running[task] = index
                    if not running:
                        return
                    ready, _ = ray.wait(list(running), num_returns=1, timeout=POLL_SECONDS)
                    for task in ready:
                        index, outcome = running.pop(task), self._get_outcome(task)
                        if outcome is None and attempts[index] < MAX_ATTEMPTS:
                            to_submit.append(index)
                            continue
                        del stored[index], attempts[index]
                        yield (index, *(outcome or ("lost", None)))
            # no task raised this: the object store is full or the cluster is gone
            except ray.exceptions.RayError as error:
                raise IngestError(
                    f"the connection to Ray was lost ({shorten_error(error)}): run the same "
                    "command to continue"
                ) from error
            finally:
                self._cancel(list(running))

    def _get_outcome(self, task: Any) -> tuple[Status, Any] | None:
        """Return a task's status and value; None if its worker, its node or its item was lost."""
        errors = self._ray.exceptions
        try:
            answer: tuple[Status, Any] = self._ray.get(task)
        # raised, for example, if Fianchetto is not installed on that node
        except errors.RayTaskError as error:
            cause = error.cause or error
            message = f"a node cannot run the task: {type(cause).__name__}: {shorten_error(cause)}"
            return "error", Failure(type(cause).__name__, message, str(error))
        except (errors.WorkerCrashedError, errors.NodeDiedError, errors.LocalRayletDiedError):
            return None
        except (errors.OutOfMemoryError, errors.ObjectLostError):
            return None
        return answer

    def _cancel(self, tasks: list[Any]) -> None:
        """Kill running tasks, and wait up to CANCEL_TIMEOUT_SECONDS for them to end."""
        with suppress(self._ray.exceptions.RayError, OSError, RuntimeError):
            for task in tasks:
                self._ray.cancel(task, force=True)
            if tasks and self._ray.is_initialized():
                self._ray.wait(tasks, num_returns=len(tasks), timeout=CANCEL_TIMEOUT_SECONDS)

    @contextmanager
    def connect(self) -> Iterator[None]:
        """Connect to Ray unless connected; without an address, start it. Raises IngestError."""
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
            # Ray raises bare Exceptions too, for example if a node starts too slowly
            except Exception as error:
                raise IngestError(
                    f"Ray {self.address or 'on this machine'} cannot be reached or started: "
                    f"{shorten_error(error)} (if the cluster sets RAY_AUTH_MODE=token, set it here "
                    "too)"
                ) from error
            yield

    def _require_listener(self) -> None:
        """Raise IngestError if nobody listens at the address, since Ray would retry for minutes."""
        host, _, port = self.address.removeprefix("ray://").rpartition(":")
        hosts, reason = [host], "the address must be HOST:PORT"
        if host in ("127.0.0.1", "localhost"):  # Ray may listen on the node's IP address instead
            hosts.append(self._ray.util.get_node_ip_address())
        for candidate in hosts if host and port.isdecimal() else []:
            try:
                return socket.create_connection(
                    (candidate, int(port)), CONNECT_TIMEOUT_SECONDS
                ).close()
            except (OSError, OverflowError) as error:
                reason = str(error)
        raise IngestError(f"Ray at {self.address} cannot be reached: {reason}")

    def count_slots(self) -> int:
        """Return how many tasks can run in parallel now."""
        cores = max(1, int(self._ray.cluster_resources().get("CPU", 0.0)))
        return min(cores, self.workers) if self.workers > 0 else cores


@contextmanager
def _restore_process() -> Iterator[None]:
    """Set ONE_THREAD_ENVIRONMENT in the block; restore it and the signal handlers afterwards.

    Ray replaces the handlers of SIGTERM and Ctrl-C when it starts.
    """
    environment, is_main = os.environ.copy(), threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    os.environ.update(ONE_THREAD_ENVIRONMENT)
    try:
        yield
    finally:
        for name in ONE_THREAD_ENVIRONMENT:
            if name in environment:
                os.environ[name] = environment[name]
            else:
                del os.environ[name]
        for number, handler in handlers.items():
            if is_main:
                signal.signal(number, handler)
