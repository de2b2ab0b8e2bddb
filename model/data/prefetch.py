"""Batches made ready on a thread of their own while the step before them runs, and copied to a GPU beside it."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import Protocol, TypeVar

import torch

from model.data.inputs import Batch, DeviceBatch

AHEAD = 2
"""Batches that are ready or in the making while a step runs: one that takes longer than others delays no step."""

Parts = Sequence[DeviceBatch]
"""A batch in the parts that it is worked on in."""


T = TypeVar("T")


class Wait(Protocol):
    """Waits for the result of a future, and may give up."""

    def __call__(self, future: Future[T]) -> T:
        """Return the result, or raise what the work raised."""
        ...


def _result(future: Future[T]) -> T:
    return future.result()


@dataclass(frozen=True, slots=True)
class _Ready:
    parts: Parts
    copied: torch.cuda.Event | None
    """What happens on a GPU when all of it is there."""


class Prefetcher:
    """Takes batches of an iterator and prepares them on one thread, in their order, at most AHEAD before they are asked for.

    It holds no place in a stream: which batches a run has used is known by the steps that it has taken. As a context manager
    it waits in the end for the batch that is being prepared, and begins no other.
    """

    def __init__(self, batches: Iterator[Batch], prepare: Callable[[Batch], Parts], device: torch.device) -> None:
        """Begin nothing before the first batch is asked for."""
        self.batches, self.prepare = batches, prepare
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self.thread = ThreadPoolExecutor(1, "next-batch")
        self.futures: deque[Future[_Ready | None]] = deque()

    def __enter__(self) -> "Prefetcher":
        """Give itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the thread."""
        self.thread.shutdown(cancel_futures=True)

    def peek(self, wait: Wait = _result) -> Batch | None:
        """Return the first batch as it is before it is prepared; None where there is none."""
        first = wait(self.thread.submit(next, self.batches, None))
        if first is not None:
            self.batches = chain((first,), self.batches)
        return first

    def take(self, wait: Wait = _result) -> Parts | None:
        """Return the next batch and begin with another; None behind the last.

        Raises what the iterator or `prepare` raised for this batch.
        """
        while len(self.futures) <= AHEAD:
            self.futures.append(self.thread.submit(self._make))
        ready = wait(self.futures.popleft())
        if ready is None:
            return None
        if ready.copied is not None:
            here = torch.cuda.current_stream(self.stream.device if self.stream else None)
            here.wait_event(ready.copied)
            for part in ready.parts:
                for column in part.values():
                    column.record_stream(here)  # its memory is the copying stream's, which must not reuse it before
        return ready.parts

    def _make(self) -> _Ready | None:
        batch = next(self.batches, None)
        if batch is None:
            return None
        if self.stream is None:
            return _Ready(self.prepare(batch), None)
        with torch.cuda.stream(self.stream):
            return _Ready(self.prepare(batch), self.stream.record_event())
