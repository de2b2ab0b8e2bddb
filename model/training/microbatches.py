"""A step's batch in parts, worked on side by side: each part by a replica of the network, on a thread of its own.

On a processor, two threads with a part each outrun one part that two threads share by a third: nothing of forward and
backward is left that only one of them can do. Each part's norms count its own rows (Hoffer et al. 2017, arXiv:1705.08741),
whoever works on it, so what is learned of the same rows depends on the number of parts and never on that of threads or
processes.
"""

import copy
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import TypeVar

import torch
from torch import Tensor, nn

from engine.errors import UserError
from model.data.inputs import Batch, DeviceBatch
from model.training.distributed import GradientSums, World, all_reduce
from model.training.stopping import NEVER_STOP, StopCheck, check_in_layers

T = TypeVar("T")

PART = 128
"""Rows of a part on a processor, about: its activations stay near the core, and its norms are steady."""
FEWEST = 4
"""Copies of the network that are made at least, where a step has as many parts."""


class PartsError(UserError):
    """Parts that a batch or the processes cannot have in equal shares."""


def parts_per_process(parts: int, batch_size: int, device: torch.device, world: World) -> int:
    """Return the parts that a process has of each step: `parts` of all processes as configured, 0 for as many as suit."""
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
    """Copies of the network, which parts are worked on with: they share its weights; gradients and statistics are their own.

    There are a few more than threads, whatever the number of parts: a copy's gradients take as much memory as the weights. The
    network itself works on no part, so that all of its state is that of the last whole step.
    """

    def __init__(self, network: nn.Module, parts: int, world: World) -> None:
        self.network, self.parts, self.world = network, parts, world
        self.copies = [_replica(network) for _ in range(min(parts, max(FEWEST, 2 * torch.get_num_threads())))]
        self.sums = GradientSums(_trained(self.copies[0])) if world.size > 1 else None

    def check_in_layers(self, stop_check: StopCheck) -> None:
        """Have every layer of the copies look whether to stop."""
        for copied in self.copies:
            check_in_layers(copied, stop_check.check)

    def work(
        self,
        step: Callable[[nn.Module, DeviceBatch], T],
        parts: Sequence[DeviceBatch],
        pool: ThreadPoolExecutor | None,
        stop_check: StopCheck = NEVER_STOP,
    ) -> list[T]:
        """Let `step` add a part's gradients to its copy's weights, for each part, and return what it returned.

        The network has the sum of the gradients of all parts and processes afterwards, and the mean of their norms' running
        statistics, summed in the order of the parts: threads change no bit. Raises WorkInterrupted when `stop_check` says so,
        and what `step` raises; the network is then what it was, and results of parts that still run are dropped.
        """
        found = _Sum(self.network, self.sums)
        free, busy = deque(self.copies), deque[tuple[nn.Module, Future[T]]]()
        done: list[T] = []

        def take_in() -> None:
            copied, future = busy.popleft()
            done.append(stop_check.result(future))
            found.add(copied)
            free.append(copied)

        try:
            for part in parts:
                stop_check.check()
                if not free:
                    take_in()
                copied = free.popleft()
                reset_copy(copied, self.network)
                if pool is None:
                    with found.last(copied) if len(done) + 1 == len(parts) else nullcontext():
                        done.append(step(copied, part))
                    found.add(copied)
                    free.appendleft(copied)
                else:
                    busy.append((copied, pool.submit(step, copied, part)))
            while busy:
                take_in()
        finally:
            for _, future in busy:
                future.cancel()
        found.put(self.parts * self.world.size)
        return done


class _Sum:
    """What the parts of a step have found: gradients, and the norms' statistics."""

    def __init__(self, network: nn.Module, sums: GradientSums | None) -> None:
        self.network, self.sums = network, sums
        self.grads: list[Tensor | None] = []
        self.buffers: list[Tensor] = []

    @contextmanager
    def last(self, copied: nn.Module) -> Iterator[None]:
        """Let a copy add the last part's gradients to those found, and send each sum to the other processes when made."""
        if self.sums is None:
            yield
            return
        if self.grads:
            for weight, grad in zip(_trained(copied), self.grads, strict=True):
                weight.grad = grad
            self.grads = [None] * len(self.grads)
        with self.sums.during():
            yield

    @torch.no_grad()
    def add(self, copied: nn.Module) -> None:
        """Add those of a copy, which it has no longer."""
        weights = _trained(copied)
        grads = [weight.grad for weight in weights]
        for weight in weights:
            weight.grad = None
        if not self.buffers:
            self.grads, self.buffers = grads, [buffer.clone() for buffer in copied.buffers()]
            return
        for at, grad in enumerate(grads):
            mine = self.grads[at]
            self.grads[at] = grad if mine is None else mine if grad is None else mine.add_(grad)
        for mean, own in zip(_statistics(self.buffers), _statistics(copied.buffers()), strict=True):
            mean += own

    @torch.no_grad()
    def put(self, parts: int) -> None:
        """Bring it into the network: sums of gradients and means of statistics over `parts` parts of all processes."""
        weights, means = _trained(self.network), _statistics(self.buffers)
        pairs = zip(weights, self.grads, strict=True)
        sums = [torch.zeros_like(weight) if grad is None else grad for weight, grad in pairs]
        if self.sums is not None:
            self.sums.finish(sums)
            if means:
                _summed_over_processes(means)
        if means:
            torch._foreach_mul_(means, 1 / parts)
        for weight, grad in zip(weights, sums, strict=True):
            weight.grad = grad
        for buffer, found in zip(self.network.buffers(), self.buffers, strict=True):
            buffer.copy_(found)


def split(batch: Batch, parts: int) -> Iterator[Batch]:
    """Deal a batch's rows to its parts in turn."""
    rows = len(batch["planes"])
    if rows % parts:
        raise PartsError(f"a process's {rows} rows of a step cannot be cut into {parts} equal parts: change parts")
    for part in range(parts):
        yield {name: column[part::parts] for name, column in batch.items()} if parts > 1 else batch


@contextmanager
def thread_pool(parts: int, threads: int, device: torch.device) -> Iterator[ThreadPoolExecutor | None]:
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


def _trained(network: nn.Module) -> list[nn.Parameter]:
    """List the weights that are trained."""
    return [weight for weight in network.parameters() if weight.requires_grad]


def _statistics(buffers: Iterable[Tensor]) -> list[Tensor]:
    """List the norms' running means and variances."""
    return [buffer for buffer in buffers if buffer.is_floating_point()]


@torch.no_grad()
def reset_copy(copied: nn.Module, network: nn.Module) -> None:
    """Begin a part with the network's statistics and no gradients."""
    for mine, buffer in zip(copied.buffers(), network.buffers(), strict=True):
        mine.copy_(buffer)
    for weight in copied.parameters():
        weight.grad = None


def _summed_over_processes(tensors: Sequence[Tensor]) -> None:
    """Add tensors up over all processes, in place, in one message."""
    total = all_reduce(torch.cat([tensor.flatten() for tensor in tensors]))
    for tensor, flat in zip(tensors, torch.split(total, [tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(flat.view(tensor.shape))
