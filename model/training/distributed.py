"""Several processes that train one network: who they are, and how they agree.

`torchrun`, or Ray Train (pipeline.training.ray), starts the processes and tells each its place by environment variables. Each
gets its share of every batch; gradients are those of all shares together (model.training.microbatches), so that of the same
rows two processes learn what one does with the same batch and parts, but for rounding. Which rows those are, the dataset says:
each process reads row groups of its own. Process 0 keeps the time, writes the checkpoint and decides; the rest follow.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from engine.errors import UserError

T = TypeVar("T")

BUCKET_BYTES = 4 << 20
"""Gradients that are sent together: enough for a message, few enough that most are on their way before the last is made."""


class WorldError(UserError):
    """Processes that cannot work together, or one that learns what went wrong in process 0."""


@dataclass(frozen=True, slots=True)
class World:
    """The place of this process among those of its run."""

    rank: int = 0
    """Its number, from 0."""
    size: int = 1
    """Processes of the run."""
    local: int = 0
    """Its number among those of its machine, which is the number of its GPU."""

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes."""
        return self.rank == 0


def world() -> World:
    """Read this process's place from the environment, as torchrun sets it; one process alone without it."""
    if "WORLD_SIZE" not in os.environ:
        return World()
    try:
        rank, size, local = (int(os.environ.get(name, "0")) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    except ValueError as error:
        raise WorldError(f"RANK, WORLD_SIZE and LOCAL_RANK must be numbers, as torchrun sets them ({error})") from error
    if not 0 <= rank < size:
        raise WorldError(f"RANK is {rank} and WORLD_SIZE {size}: start the processes with torchrun")
    return World(rank, size, local)


@contextmanager
def process_group(place: World, device: torch.device) -> Iterator[None]:
    """Join the process group: gloo on processors, nccl on GPUs, with gloo beside it for decisions.

    A group that the launcher has made already is used, and left to it.
    """
    if place.size == 1:
        yield
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if dist.is_initialized():
        yield
        return
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()


def all_reduce(tensor: Tensor) -> Tensor:
    """Sum a tensor over all processes, in place, and return it."""
    if dist.is_initialized():
        dist.all_reduce(tensor)
    return tensor


class GradientSums:
    """Sums of gradients over all processes, each bucket of them under way as soon as a backward pass has made it.

    Buckets hold weights from the last to the first, as a backward pass comes by them, and are sent in the same order by all
    processes, as torch's DistributedDataParallel does it (Li et al. 2020, arXiv:2006.15704).
    """

    def __init__(self, weights: Sequence[nn.Parameter]) -> None:
        """Watch weights, those whose gradients the last backward pass of a step completes."""
        self.weights = weights
        self.buckets: list[list[int]] = [[]]
        size = 0
        for index in reversed(range(len(weights))):
            if self.buckets[-1] and size + weights[index].nbytes > BUCKET_BYTES:
                self.buckets.append([])
                size = 0
            self.buckets[-1].append(index)
            size += weights[index].nbytes
        self.bucket_of = {index: number for number, bucket in enumerate(self.buckets) for index in bucket}
        self.sent: list[tuple[Tensor, dist.Work]] = []
        self.missing: list[int] | None = None
        """Gradients that each bucket waits for; None while no backward pass is the last."""
        for index, weight in enumerate(weights):
            weight.register_post_accumulate_grad_hook(partial(self._made, index))  # type: ignore[no-untyped-call]

    @contextmanager
    def during(self) -> Iterator[None]:
        """Send the gradients that a backward pass completes meanwhile."""
        self.sent, self.missing = [], [len(bucket) for bucket in self.buckets]
        try:
            yield
        finally:
            self.missing = None

    def _made(self, index: int, _weight: Tensor) -> None:
        if self.missing is None:
            return
        self.missing[self.bucket_of[index]] -= 1
        while len(self.sent) < len(self.buckets) and self.missing[len(self.sent)] == 0:
            grads = [self.weights[number].grad for number in self.buckets[len(self.sent)]]
            self._send([grad for grad in grads if grad is not None])  # which none is

    def _send(self, grads: Sequence[Tensor]) -> None:
        """Send the next bucket."""
        flat = torch.cat([grad.flatten() for grad in grads])
        work = dist.all_reduce(flat, async_op=True)
        assert work is not None
        self.sent.append((flat, work))

    def finish(self, grads: Sequence[Tensor]) -> None:
        """Send what was not, and put the sums over all processes in the place of this process's `grads`, one of each weight.

        A weight that is not used here may be in another process: its gradient is zeros.
        """
        while len(self.sent) < len(self.buckets):
            self._send([grads[index] for index in self.buckets[len(self.sent)]])
        for bucket, (flat, work) in zip(self.buckets, self.sent, strict=True):
            work.wait()
            for index, found in zip(bucket, torch.split(flat, [grads[index].numel() for index in bucket]), strict=True):
                grads[index].copy_(found.view(grads[index].shape))
        self.sent = []


def broadcast(place: World, numbers: list[float]) -> list[float]:
    """Return the numbers of process 0 in every process; sent between processors, so that no GPU waits."""
    if place.size == 1:
        return numbers
    tensor = torch.tensor(numbers, dtype=torch.float64)
    dist.broadcast(tensor, 0)
    return [float(number) for number in tensor]


def run_on_first(place: World, work: Callable[[], T]) -> T:
    """Call `work` in process 0 alone and return its result in all; a UserError there is a WorldError in the others."""
    if place.size == 1:
        return work()
    sent: list[Any] = [None, None]
    failure: UserError | None = None
    if place.first:
        try:
            sent[0] = work()
        except UserError as error:
            failure = error
            sent[1] = str(error)
    dist.broadcast_object_list(sent, 0)
    if failure is not None:
        raise failure
    if sent[1] is not None:
        raise WorldError(f"process 0: {sent[1]}")
    result: T = sent[0]
    return result
