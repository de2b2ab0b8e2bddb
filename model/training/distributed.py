"""Several processes that train one network: who they are, and how they agree.

`torchrun`, or Ray Train (pipeline.training.ray), starts the processes and tells each its place by environment variables. Each
gets its share of every batch; gradients are those of all shares together (model.training.microbatches), so that a run
of two processes is the run of one with the same batch and parts, but for rounding. Process 0 keeps the time, writes the
checkpoint and decides; the rest follow.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from engine.errors import UserError

T = TypeVar("T")


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
