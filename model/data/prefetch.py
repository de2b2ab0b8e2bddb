"""Prefetching: batches are prepared on another thread, and copied to a GPU, while the step before
them runs.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch

from model.data.rows import Batch
from model.network.encoder import Rows

AHEAD = 2
"""Batches prepared while a step runs, so that one that takes longer than others delays no step."""

Parts = Sequence[Rows]
"""A batch in the parts that a step computes one after the other."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A prepared batch."""

    parts: Parts
    copied: torch.cuda.Event | None
    """Recorded when all of it is on the GPU."""


class Prefetcher:
    """Prepares batches of an iterator on one thread, in order, at most AHEAD before they are taken.

    It keeps no position in the stream: a run knows the batches it used by its steps. As a context
    manager it waits at the end for the batch in preparation, and starts no other.
    """

    def __init__(
        self, batches: Iterator[Batch], prepare: Callable[[Batch], Parts], device: torch.device
    ) -> None:
        """Start nothing before the first batch is taken."""
        self.batches, self.prepare = batches, prepare
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self.thread = ThreadPoolExecutor(1, "next-batch")
        self.futures: deque[Future[Ready | None]] = deque()

    def __enter__(self) -> "Prefetcher":
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the thread."""
        self.thread.shutdown(cancel_futures=True)

    def take(
        self, wait: Callable[[Future[Ready | None]], Ready | None] = lambda future: future.result()
    ) -> Parts | None:
        """Return the next batch and start preparing another; None at the end.

        `wait` waits for a future, and may give up by raising. Raises what the iterator or `prepare`
        raised for this batch.
        """
        while len(self.futures) <= AHEAD:
            self.futures.append(self.thread.submit(self._make))
        ready = wait(self.futures.popleft())
        if ready is None:
            return None
        if ready.copied is not None:
            here = torch.cuda.current_stream(self.stream.device if self.stream else None)
            here.wait_event(ready.copied)
            for columns in ready.parts:
                for column in columns.values():
                    # its memory is the copying stream's, which must not reuse it before
                    column.record_stream(here)
        return ready.parts

    def _make(self) -> Ready | None:
        batch = next(self.batches, None)
        if batch is None:
            return None
        if self.stream is None:
            return Ready(self.prepare(batch), None)
        with torch.cuda.stream(self.stream):
            return Ready(self.prepare(batch), self.stream.record_event())
