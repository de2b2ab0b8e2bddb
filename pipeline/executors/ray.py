"""`Engine.map` for more than one machine: Ray tasks, with the guarantees of pipeline/executors/local.py.

Ray re-runs nothing here: a task whose worker or node died is handed in again by this module, at most `attempts` times, so
that the bound holds for whatever killed it (Ray's own retries are endless when its memory monitor is the killer). Items are
laid into Ray's object store once, a window of them at a time, and read from there by every attempt.

On a cluster every node holds the same Fianchetto and sees `--out` under the same name; a node with other kernels is
refused. A cluster belongs on a private network, with RAY_AUTH_MODE=token everywhere; the embedded Ray listens on loopback.
"""

import importlib
import logging
import os
import signal
import socket
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from engine.jit_cache import sources_hash
from engine.progress import Stop, never
from pipeline.errors import ConfigError, IngestError
from pipeline.executors.local import ASKED_SECONDS, Failure, Result, Status, available_cores, run_item

AHEAD = 2
"""Tasks handed in for each core: one that runs, and one for the moment that it ends."""
RECOUNT_SECONDS = 5.0
"""How often the cores of a cluster are counted again, since nodes come and go."""
KNOCK_SECONDS = 10.0
"""How long a cluster has to answer at all."""
CANCEL_SECONDS = 5.0
"""How long closing waits for cancelled tasks to end."""

_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else it warns of what it will do to CUDA_VISIBLE_DEVICES some day
    "RAY_DEDUP_LOGS": "0",
}
_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Ray's name for: on one machine listen on loopback only. It is read when Ray is imported."""


@cache
def _version() -> str:
    """Return the hash of the kernels' sources, which every node must share for the same bytes; 20 ms, so once a process."""
    return sources_hash(Path(__file__).resolve().parents[2])


def _work(function: Callable[[Any], Any], item: Any, version: str) -> tuple[Status, Any]:
    """Run an item on a worker, unless its kernels are not the driver's."""
    if (ours := _version()) != version:
        message = f"node {socket.gethostname()} has another Fianchetto ({ours}, the driver {version}): install the same"
        return "error", Failure(IngestError.__name__, message, "", system=False, mistake=True)
    return run_item(function, item)


class RayEngine:
    """Ray core tasks: embedded on this machine, or on a cluster."""

    def __init__(self, address: str = "", workers: int = 0, cpus_per_task: float = 1.0, attempts: int = 3) -> None:
        """Take the address of a cluster, or "" for a Ray of its own with `workers` cores (0: all of this machine).

        On a cluster `workers` bounds the tasks at a time, 0 for as many as it has cores. Raises ConfigError where Ray is
        not installed.
        """
        if cpus_per_task <= 0 or workers < 0:
            raise ConfigError("cpus_per_task is above 0, and workers is 0 or more")
        os.environ.update(_ENVIRONMENT | ({} if address else _LOOPBACK))
        try:
            self._ray: Any = importlib.import_module("ray")
        except ImportError as error:
            raise ConfigError('the engine ray needs Ray: pip install "fianchetto[ray]"') from error
        self.address, self.workers, self.cpus_per_task, self.attempts = address, workers, cpus_per_task, attempts

    def map(
        self, function: Callable[[Any], Any], items: Iterable[Any], cancelled: Stop = never
    ) -> Generator[Result, None, None]:
        """Yield a result an item, in the order of completion; closing the iterator cancels what runs and what waits.

        Raises IngestError when the cluster cannot be reached or is lost.
        """
        with self.connected():
            tasks = _Tasks(self, function)
            try:
                yield from tasks.spread(iter(items), cancelled)
            except self._ray.exceptions.RayError as error:  # what is not of one task: the store full, the cluster gone
                raise IngestError(f"Ray was lost ({first_line(error)}): run the same command to continue") from error
            finally:
                tasks.cancel()

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Hold a connection to Ray, starting an own one where there is no address; one that stands already is used."""
        if self._ray.is_initialized():
            yield
            return
        if self.address not in ("", "auto"):
            self._knock()
        settings: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": False}
        with ExitStack() as stack:
            if not self.address:
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True))
                cores = self.workers or available_cores()
                settings |= {"num_cpus": cores, "include_dashboard": False, "_temp_dir": folder}
            stack.callback(self._ray.shutdown)
            try:
                with _signals_kept():
                    self._ray.init(address=self.address or "local", **settings)
            except Exception as error:  # Ray raises bare ones too, as of a node that is too slow to start
                where = self.address or "on this machine"
                # A client without a token is not answered at all.
                untold = self.address.startswith("ray://") and os.environ.get("RAY_AUTH_MODE") != "token"
                hint = "; set RAY_AUTH_MODE=token here as on the cluster" if untold else ""
                raise IngestError(f"Ray {where} cannot be reached or started: {first_line(error)}{hint}") from error
            yield

    def _knock(self) -> None:
        """Raise IngestError where nobody listens at the address: Ray would try again for minutes."""
        host, colon, port = self.address.removeprefix("ray://").rpartition(":")
        if not colon or not port.isdigit():
            raise IngestError(f"Ray at {self.address} cannot be reached: an address is HOST:PORT")
        hosts = [host] if host not in ("127.0.0.1", "localhost") else [host, self._ray.util.get_node_ip_address()]
        said = ""
        for one in hosts:  # of this machine Ray listens on the one or the other
            try:
                socket.create_connection((one, int(port)), KNOCK_SECONDS).close()
            except (OSError, OverflowError) as error:
                said = str(error)
            else:
                return
        raise IngestError(f"Ray at {self.address} cannot be reached: {said}")

    def slots(self) -> int:
        """Count the tasks that can run at a time now."""
        cores = self._ray.cluster_resources().get("CPU", 0.0)
        found = max(1, int(cores / self.cpus_per_task))
        return min(found, self.workers) if self.workers else found


class _Tasks:
    """The tasks of one `map`: what is handed in, and how often it was."""

    def __init__(self, engine: RayEngine, function: Callable[[Any], Any]) -> None:
        self.engine, self.function = engine, function
        self.ray = engine._ray
        self.work = self.ray.remote(_work).options(num_cpus=engine.cpus_per_task, max_retries=0)
        self.version = _version()
        self.running: dict[Any, int] = {}
        self.held: dict[int, Any] = {}
        self.tries: dict[int, int] = {}
        self.counted = -RECOUNT_SECONDS
        self.window = 0

    def _window(self) -> int:
        """Return how many tasks may be handed in, the cores counted again now and then."""
        if time.monotonic() - self.counted >= RECOUNT_SECONDS:
            self.window, self.counted = AHEAD * self.engine.slots(), time.monotonic()
        return self.window

    def _hand_in(self, index: int) -> None:
        self.tries[index] = self.tries.get(index, 0) + 1
        self.running[self.work.remote(self.function, self.held[index], self.version)] = index

    def spread(self, items: Iterator[Any], cancelled: Stop) -> Iterator[Result]:
        """Keep the window full until the items end and all are answered, or it is cancelled."""
        coming = enumerate(items)
        again: deque[int] = deque()
        ended = False
        while True:
            while again:
                self._hand_in(again.popleft())
            while not ended and len(self.running) < self._window():
                following = next(coming, None)
                if following is None:
                    ended = True
                else:
                    self.held[following[0]] = self.ray.put(following[1])
                    del following  # a chunk is megabytes
                    self._hand_in(max(self.held))
            if not self.running:
                return
            ready: list[Any] = []
            while not ready:
                ready, _ = self.ray.wait(list(self.running), num_returns=1, timeout=ASKED_SECONDS)
                if cancelled():
                    return
            for task in ready:
                index = self.running.pop(task)
                outcome = self._outcome(task)
                if outcome is None and self.tries[index] < self.engine.attempts:
                    again.append(index)
                    continue
                del self.held[index], self.tries[index]
                status, value = outcome or ("lost", None)
                yield index, status, value

    def _outcome(self, task: Any) -> tuple[Status, Any] | None:
        """Return what a task answered; None when its worker, its node or its item was lost."""
        errors = self.ray.exceptions
        try:
            answer: tuple[Status, Any] = self.ray.get(task)
        except (
            errors.RayTaskError
        ) as error:  # the function could not be run at all, as where Fianchetto is not installed
            cause = error.cause or error
            message = f"a node cannot run this: {type(cause).__name__}: {first_line(cause)}"
            return "error", Failure(type(cause).__name__, message, str(error), system=False, mistake=True)
        except (
            errors.WorkerCrashedError,
            errors.NodeDiedError,
            errors.OutOfMemoryError,
            errors.ObjectLostError,
            errors.LocalRayletDiedError,
        ):
            return None
        return answer

    def cancel(self) -> None:
        """Stop what runs and wait a little for it to end."""
        for task in self.running:
            with suppress(self.ray.exceptions.RayError, OSError, RuntimeError):
                self.ray.cancel(task, force=True)
        if self.running and self.ray.is_initialized():
            with suppress(self.ray.exceptions.RayError, OSError, RuntimeError):
                self.ray.wait(list(self.running), num_returns=len(self.running), timeout=CANCEL_SECONDS)
        self.running.clear()
        self.held.clear()


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Keep the driver's own answer to SIGTERM and Ctrl-C, which Ray replaces by its own when it starts."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, answer in kept.items():
            signal.signal(number, answer)


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says that says something."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
