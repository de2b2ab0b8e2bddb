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
    """Which process of a run's this is."""

    rank: int = 0
    """Its number, from 0."""
    size: int = 1
    """Processes of the run."""
    local: int = 0
    """Its number among those of its machine, which is the number of its GPU."""

    @property
    def first(self) -> bool:
        """Tell whether this process is the one that writes."""
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
def joined(place: World, device: torch.device) -> Iterator[None]:
    """Meet the other processes (gloo on processors, nccl on GPUs, gloo there too to agree), and part from them.

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


def summed(tensor: Tensor) -> Tensor:
    """Add a tensor up over all processes, in place."""
    if dist.is_initialized():
        dist.all_reduce(tensor)
    return tensor


def told(place: World, numbers: list[float]) -> list[float]:
    """Give every process what process 0 says; through the processors, so that no GPU waits."""
    if place.size == 1:
        return numbers
    tensor = torch.tensor(numbers, dtype=torch.float64)
    dist.broadcast(tensor, 0)
    return [float(number) for number in tensor]


def by_first(place: World, work: Callable[[], T]) -> T:
    """Do something in process 0 alone and give every process the result; a UserError becomes a WorldError in the rest."""
    if place.size == 1:
        return work()
    said: list[Any] = [None, None]
    failure: UserError | None = None
    if place.first:
        try:
            said[0] = work()
        except UserError as error:
            failure = error
            said[1] = str(error)
    dist.broadcast_object_list(said, 0)
    if failure is not None:
        raise failure
    if said[1] is not None:
        raise WorldError(f"process 0: {said[1]}")
    result: T = said[0]
    return result
