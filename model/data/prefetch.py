"""Prefetching: batches are prepared, and copied to a GPU, on another thread."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

import torch

from model.data.rows import Batch
from model.network.encoder import Rows

AHEAD = 2
"""Batches prepared while a step runs, so that one that takes longer than others delays no step."""

Parts = Sequence[Rows]
"""A batch in the parts that a step computes one after the other."""
Ready = tuple[Parts, torch.cuda.Event | None]
"""A prepared batch, and the event that all of it is on the GPU."""


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

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the thread."""
        self.thread.shutdown(cancel_futures=True)

    def take(self) -> Parts | None:
        """Return the next batch and start preparing another; None at the end.

        Raises what the iterator or `prepare` raised for this batch.
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
                    # its memory is the copying stream's, which must not reuse it before
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
