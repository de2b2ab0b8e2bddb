"""What comes before a run's first step, and is no part of its minutes: kernels are compiled, and a step's cost is measured.

Nothing of a run changes here: copies of the network work on a few rows, and what they find is thrown away.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import psutil
import torch
from torch import Tensor

from engine.compiling import interruptible
from engine.errors import UserError
from model.data.inputs import Batch
from model.data.prefetch import AHEAD
from model.training.microbatches import reset_copy, split
from model.training.objective.targets import step_columns
from model.training.state import Run, backward
from model.training.stopping import StopCheck

T = TypeVar("T")

FEW_ROWS = 16
"""Rows that a position's memory is measured on."""
SCRATCH = 1.5
"""Memory of a pass over what is kept for the way back, measured: gradients of activations, and operations' own."""


class StepTooLargeError(UserError):
    """A step that needs more memory than there is."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """What a step takes in this process."""

    rows: int
    parts: int
    at_once: int
    """Parts that are worked on side by side."""
    seconds: float
    bytes: int

    def __str__(self) -> str:
        each = f"{self.parts:,} parts of {self.rows // self.parts:,}" if self.parts > 1 else "one part"
        seconds = f"{self.seconds:,.0f}" if self.seconds >= 10 else f"{self.seconds:.2g}"
        return f"a step of {self.rows:,} positions in {each} takes about {seconds} s and {self.bytes / 1e9:.1f} GB"


def warm_up(run: Run, batch: Batch, pool: ThreadPoolExecutor | None, stop_check: StopCheck) -> StepCost:
    """Compile what a step needs and return what it will take; StepTooLargeError for more memory than there is.

    `batch` is this process's share of the first step. Raises WorkInterrupted when `stop_check` says so.
    """
    parts = run.replicas.parts
    part = next(split(batch, parts))
    rows = len(part["planes"])
    few = {name: column[:FEW_ROWS] for name, column in part.items()}
    with interruptible(stop_check.check):
        kept = _done(partial(_kept_bytes, run, few), pool, stop_check) / len(few["planes"])
    at_once = 1 if pool is None else min(parts, pool._max_workers)
    memory = int(SCRATCH * kept * rows * at_once)
    memory += (1 + AHEAD) * sum(column.nbytes for column in batch.values())
    copies = len(run.replicas.copies)
    memory += copies * sum(weight.nbytes for weight in run.network.parameters())
    _check_memory(memory, run, parts, len(batch["planes"]))
    if run.config.compile:
        for number in range(copies):  # each is compiled by itself
            _done(partial(_timed, run, part, number), pool, stop_check)
    seconds = _done(partial(_timed, run, part, 0), pool, stop_check)
    for copied in run.replicas.copies:
        reset_copy(copied, run.network)
    return StepCost(len(batch["planes"]), parts, at_once, seconds * parts / at_once, memory)


def _done(work: Callable[[], T], pool: ThreadPoolExecutor | None, stop_check: StopCheck) -> T:
    """Return what work gives, on a thread of the step's where it has some: they have their own share of the processor."""
    return work() if pool is None else stop_check.result(pool.submit(work))


def _timed(run: Run, part: Batch, number: int) -> float:
    """Return the seconds of one part by one of the copies."""
    copied = run.replicas.copies[number]
    reset_copy(copied, run.network)
    before = time.perf_counter()
    backward(run, copied, step_columns(run.config, run.preset, part, run.device), 0.0)
    if run.device.type == "cuda":
        torch.cuda.synchronize(run.device)
    return time.perf_counter() - before


def _kept_bytes(run: Run, few: Batch) -> int:
    """Return the bytes that a pass over a few rows keeps for the way back, the weights left out."""
    copied = run.replicas.copies[0]
    weights = {weight.untyped_storage().data_ptr() for weight in copied.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    reset_copy(copied, run.network)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        columns = step_columns(run.config, run.preset, few, run.device)
        backward(run, copied.forward, columns, 0.0)  # as it is before torch.compile
    return sum(kept.values())


def _check_memory(wanted: int, run: Run, parts: int, rows: int) -> None:
    """Raise StepTooLargeError where a step needs more than the device has left."""
    if run.device.type == "cuda":
        idle = torch.cuda.memory_reserved(run.device) - torch.cuda.memory_allocated(run.device)
        free = torch.cuda.mem_get_info(run.device)[0] + idle
    else:
        free = psutil.virtual_memory().available
    if wanted > free:
        raise StepTooLargeError(
            f"a step of {rows:,} positions in {parts:,} {'part' if parts == 1 else 'parts'} needs about "
            f"{wanted / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free: choose more parts (a divisor of the batch size), "
            "or a smaller --batch-size"
        )
