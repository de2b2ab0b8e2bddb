"""Prepare batches, and copy them to a GPU, on other threads."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

import torch

from engine.cores import count_cores
from model.data.rows import Batch
from model.network.encoder import Rows

BATCHES_AHEAD = 2
"""Number of batches that a single thread prepares in advance, so that a slow batch does not delay a
step. Each further thread adds one."""
MAX_THREADS = 14
"""Maximum number of threads that prepare batches for a GPU; more would wait for the GIL."""
MAX_QUEUED_STEPS = 2
"""Maximum number of steps in a GPU's queue, to limit the memory of their batches."""

Parts = Sequence[Rows]
"""A batch, divided into the parts that a step computes one after the other."""
PreparedBatch = tuple[Parts, torch.cuda.Event | None]
"""A prepared batch, and the event that marks the end of its copy to the GPU."""


def count_threads(device: torch.device, threads: int, processes: int) -> int:
    """Return the number of threads that prepare batches: only one on a CPU, whose cores train.

    For a GPU, `processes` training processes share `threads` cores (0 for all of the machine), and
    each keeps one of its cores free for the training loop.
    """
    if device.type == "cpu":
        return 1
    return max(1, min(MAX_THREADS, (threads or count_cores()) // processes - 1))


class Prefetcher:
    """Prepare the batches of an iterator on threads, a few in advance, and return them in order.

    One thread reads the iterator, so the batches do not depend on the number of threads that
    prepare them. On exit, the context manager waits for the batches in preparation and starts no
    others.
    """

    def __init__(
        self,
        batches: Iterator[Batch],
        prepare: Callable[[Batch], Parts],
        device: torch.device,
        threads: int = 1,
    ) -> None:
        self.batches, self.prepare = batches, prepare
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self.reader = ThreadPoolExecutor(1, "next-batch")
        self.workers = ThreadPoolExecutor(threads, "next-batch")
        self.ahead = BATCHES_AHEAD + threads - 1
        self.futures: deque[Future[PreparedBatch | None]] = deque()
        self.waits: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()
        """Start and end of the GPU's waits that have not been added to `waited`."""
        self.waited = 0.0
        """Seconds that the device has waited for batches after the first; on a GPU, a wait is added
        MAX_QUEUED_STEPS steps later."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.reader.shutdown(wait=False, cancel_futures=True)
        self.workers.shutdown(cancel_futures=True)
        self.reader.shutdown()

    def take_parts(self) -> Parts | None:
        """Return the next batch and start preparing another; None at the end.

        Errors of the iterator or of `prepare` are raised here.
        """
        is_first = not self.futures
        while len(self.futures) <= self.ahead:
            batch = self.reader.submit(next, self.batches, None)
            self.futures.append(self.workers.submit(self._prepare_next, batch))
        began, step_ended = time.perf_counter(), self._record_event()
        prepared = self.futures.popleft().result()
        if prepared is None:
            return None
        parts, copied = prepared
        if copied is None or step_ended is None:
            self.waited += 0.0 if is_first else time.perf_counter() - began
            return parts
        compute_stream = torch.cuda.current_stream(self.stream.device if self.stream else None)
        compute_stream.wait_event(copied)
        for columns in parts:
            for column in columns.values():
                # the copying stream must not reuse this memory before the step has read it
                column.record_stream(compute_stream)
        step_begins = self._record_event()
        assert step_begins is not None
        self.waits.append((step_begins if is_first else step_ended, step_begins))
        while len(self.waits) > MAX_QUEUED_STEPS:
            step_ended, step_begins = self.waits.popleft()
            step_begins.synchronize()
            self.waited += step_ended.elapsed_time(step_begins) / 1000
        return parts

    def _record_event(self) -> torch.cuda.Event | None:
        """Record when the GPU reaches this point of its queue; None on a CPU."""
        if self.stream is None:
            return None
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.stream.device))
        return event

    def _prepare_next(self, next_batch: Future[Batch | None]) -> PreparedBatch | None:
        batch = next_batch.result()
        if batch is None:
            return None
        if self.stream is None:
            return self.prepare(batch), None
        with torch.cuda.stream(self.stream):
            return self.prepare(batch), self.stream.record_event()
