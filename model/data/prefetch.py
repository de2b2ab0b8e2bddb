"""Prepare batches, and copy them to a GPU, on another thread."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

import torch

from model.data.rows import Batch
from model.network.encoder import Rows

AHEAD = 2
"""Number of batches prepared in advance, so that a slow one does not delay a step."""

Parts = Sequence[Rows]
"""A batch, divided into the parts that a step computes one after the other."""
Ready = tuple[Parts, torch.cuda.Event | None]
"""A prepared batch, and the event that marks the end of its copy to the GPU."""


class Prefetcher:
    """Prepare the batches of an iterator in order, on one thread, up to AHEAD in advance.

    It does not track a position in the stream: the run's step counter does. On exit, the context
    manager waits for the batch in preparation and starts no other.
    """

    def __init__(
        self, batches: Iterator[Batch], prepare: Callable[[Batch], Parts], device: torch.device
    ) -> None:
        """Preparation starts with the first call of `take`."""
        self.batches, self.prepare = batches, prepare
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self.thread = ThreadPoolExecutor(1, "next-batch")
        self.futures: deque[Future[Ready | None]] = deque()

    def __enter__(self) -> Self:
        """Return self."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the thread."""
        self.thread.shutdown(cancel_futures=True)

    def take(self) -> Parts | None:
        """Return the next batch and start preparing another; None at the end.

        Errors of the iterator or of `prepare` are raised here.
        """
        while len(self.futures) <= AHEAD:
            self.futures.append(self.thread.submit(self._make))
        ready = self.futures.popleft().result()
        if ready is None:
            return None
        parts, copied = ready
        if copied is not None:
            here = torch.cuda.current_stream(self.stream.device if self.stream else None)
            here.wait_event(copied)
            for columns in parts:
                for column in columns.values():
                    # the copying stream must not reuse this memory until `here` is done with it
                    column.record_stream(here)
        return parts

    def _make(self) -> Ready | None:
        batch = next(self.batches, None)
        if batch is None:
            return None
        if self.stream is None:
            return self.prepare(batch), None
        with torch.cuda.stream(self.stream):
            return self.prepare(batch), self.stream.record_event()
