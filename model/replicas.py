"""A step's batch in parts, worked on side by side: each part by a replica of the network, on a thread of its own.

On a processor, two threads with a part each outrun one part that two threads share by a third: nothing of forward and
backward is left that only one of them can do. Each part's norms count its own rows (Hoffer et al. 2017, arXiv:1705.08741),
whoever works on it, so what a run learns depends on the number of parts and never on that of threads or processes.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn

from engine.errors import UserError
from model.inputs import Batch
from model.world import World, summed

T = TypeVar("T")

PART = 128
"""Rows of a part on a processor, about: its activations stay near the core, and its norms are steady."""


class PartsError(UserError):
    """Parts that a batch or the processes cannot have in equal shares."""


def parts_of(parts: int, batch_size: int, device: torch.device, world: World) -> int:
    """Give the parts that a process has of each step: `parts` of all processes as configured, 0 for as many as suit."""
    size = world.size
    if not parts:
        share = batch_size // size
        wanted = 1 if device.type != "cpu" else max(1, share // PART)
        return max(number for number in range(1, wanted + 1) if share % number == 0)
    if parts % size or batch_size % parts:
        raise PartsError(
            f"a batch of {batch_size} cannot be cut into {parts} equal parts for {size} "
            f"{'process' if size == 1 else 'processes'}: change parts"
        )
    return parts // size


class Replicas:
    """The network once for each part: the weights are shared, gradients and the norms' running statistics are its own."""

    def __init__(self, network: nn.Module, parts: int, world: World) -> None:
        self.network, self.parts, self.world = network, parts, world
        self.copies = [network, *(_replica(network) for _ in range(parts - 1))]

    def work(self, step: Callable[[nn.Module, Batch], T], batch: Batch, pool: ThreadPoolExecutor | None) -> list[T]:
        """Let `step` add a part's gradients to its replica's weights, for each part, and give what it gave.

        The network has the sum of the gradients of all parts and processes afterwards, and the mean of their norms' running
        statistics. Always in the order of the parts: threads change no bit.
        """
        for other in self.copies[1:]:
            _follow(other, self.network)
        tasks = list(zip(self.copies, cut(batch, self.parts), strict=True))
        if pool is None:
            done = [step(*task) for task in tasks]
        else:
            done = [future.result() for future in [pool.submit(step, *task) for task in tasks]]
        self._join()
        return done

    @torch.no_grad()
    def _join(self) -> None:
        """Bring what the replicas have found into the network."""
        weights = [weight for weight in self.network.parameters() if weight.requires_grad]
        sums = [weight.grad if weight.grad is not None else torch.zeros_like(weight) for weight in weights]
        means = _statistics(self.network)
        for other in self.copies[1:]:
            grads = [weight.grad for weight in other.parameters() if weight.requires_grad]
            for mine, grad in zip(sums, grads, strict=True):
                if grad is not None:
                    mine += grad
            for weight in other.parameters():
                weight.grad = None
            for mean, own in zip(means, _statistics(other), strict=True):
                mean += own
        for weight, grad in zip(weights, sums, strict=True):
            weight.grad = grad
        if self.world.size > 1:
            _summed_over_processes([*sums, *means])
        if means:
            torch._foreach_mul_(means, 1 / (self.parts * self.world.size))


def cut(batch: Batch, parts: int) -> Iterator[Batch]:
    """Deal a batch's rows to its parts in turn, as they are dealt to processes: so parts are the same among one or many."""
    rows = len(batch["planes"])
    if rows % parts:
        raise PartsError(f"a process's {rows} rows of a step cannot be cut into {parts} equal parts: change parts")
    for part in range(parts):
        yield {name: column[part::parts] for name, column in batch.items()} if parts > 1 else batch


@contextmanager
def crew(parts: int, threads: int, device: torch.device) -> Iterator[ThreadPoolExecutor | None]:
    """Open the threads that work on parts, each with its share of a processor's `threads`; None where one does it all."""
    workers = min(parts, threads)
    if device.type != "cpu" or workers == 1:
        yield None
        return
    # torch counts the threads of an operation for each thread that calls one
    with ThreadPoolExecutor(workers, "part", initializer=torch.set_num_threads, initargs=(threads // workers,)) as pool:
        yield pool


def _replica(network: nn.Module) -> nn.Module:
    """Copy a network but for its weights' memory."""
    other = copy.deepcopy(network)
    for mine, weight in zip(other.parameters(), network.parameters(), strict=True):
        mine.data = weight.data
    return other


def _statistics(network: nn.Module) -> list[Tensor]:
    """List the norms' running means and variances."""
    return [buffer for buffer in network.buffers() if buffer.is_floating_point()]


@torch.no_grad()
def _follow(other: nn.Module, network: nn.Module) -> None:
    """Begin a step with the network's statistics."""
    for mine, buffer in zip(other.buffers(), network.buffers(), strict=True):
        mine.copy_(buffer)


def _summed_over_processes(tensors: Sequence[Tensor]) -> None:
    """Add tensors up over all processes, in place, in one message."""
    total = summed(torch.cat([tensor.flatten() for tensor in tensors]))
    for tensor, flat in zip(tensors, torch.split(total, [tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(flat.view(tensor.shape))
