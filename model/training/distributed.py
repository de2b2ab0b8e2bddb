"""Train one network in several processes: ranks, and communication between processes.

`torchrun` starts the processes, on one or several machines, and sets their ranks in environment
variables. Each process gets its share of every batch, and torch's DistributedDataParallel averages
the gradients. Process 0 keeps the time, writes the checkpoint and decides when to stop.
"""

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from engine.errors import UserError

T = TypeVar("T")


class WorldError(UserError):
    """The processes cannot train together, or process 0 failed."""


@dataclass(frozen=True, slots=True)
class World:
    """Rank of this process, and the number of processes."""

    rank: int = 0
    """Number of this process, from 0."""
    size: int = 1
    """Number of processes."""
    local_rank: int = 0
    """Number of this process on its machine."""

    @property
    def is_first(self) -> bool:
        """Whether this process writes the checkpoint."""
        return self.rank == 0

    @property
    def gpu(self) -> int | None:
        """Number of this process's GPU on its machine; None if there is only one process."""
        return self.local_rank if self.size > 1 else None


def read_world() -> World:
    """Return the World that torchrun's variables describe, by default that of one process."""
    if "WORLD_SIZE" not in os.environ:
        return World()
    try:
        rank, size, local_rank = (
            int(os.environ.get(name, "0")) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")
        )
    except ValueError as error:
        raise WorldError(
            f"RANK, WORLD_SIZE and LOCAL_RANK must be whole numbers ({error}): start the processes "
            "with torchrun, which sets them"
        ) from error
    if not 0 <= rank < size:
        raise WorldError(
            f"RANK must be from 0 to WORLD_SIZE - 1 = {size - 1}, got {rank}: start the processes "
            "with torchrun, which sets them"
        )
    return World(rank, size, local_rank)


@contextmanager
def process_group(world: World, device: torch.device) -> Iterator[None]:
    """Join the process group, if any: gloo on CPUs; on GPUs nccl, plus gloo for decisions.

    The block must release DistributedDataParallel before it ends. Dropping its last reference to
    the group joins threads while holding the GIL, which deadlocks if one of them waits for the GIL.
    """
    if world.size == 1:
        yield
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    try:
        yield
    finally:
        gc.collect()
        dist.destroy_process_group()


def all_reduce(tensor: Tensor) -> Tensor:
    """Sum a tensor over all processes, in place, and return it."""
    if dist.is_initialized():
        dist.all_reduce(tensor)
    return tensor


def average_over_processes(tensors: Sequence[Tensor], size: int) -> None:
    """Average tensors over all processes, in place, with a single all-reduce."""
    if size == 1:
        return
    total = all_reduce(torch.cat([tensor.flatten() for tensor in tensors])) / size
    sizes = [tensor.numel() for tensor in tensors]
    for tensor, flat in zip(tensors, torch.split(total, sizes), strict=True):
        tensor.copy_(flat.view(tensor.shape))


def run_on_first_process(world: World, work: Callable[[], T]) -> T:
    """Run `work` in process 0 and return its result in all processes.

    A UserError of process 0 becomes a WorldError in the others.
    """
    if world.size == 1:
        return work()
    result: T | None = None
    failure: UserError | None = None
    if world.is_first:
        try:
            result = work()
        except UserError as error:
            failure = error
    outcome: list[Any] = [result, failure and str(failure)]
    dist.broadcast_object_list(outcome, 0)
    if failure is not None:
        raise failure
    if outcome[1] is not None:
        raise WorldError(f"process 0: {outcome[1]}")
    return outcome[0]  # type: ignore[no-any-return]
