"""Select the device and the dtype of a network's arithmetic; report a lack of memory."""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from engine.errors import UserError

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt, from glibc's malloc.h."""
ALLOCATION_ERROR_TEXTS = (
    "can't allocate memory",
    "not enough memory",
    "out of memory",
    "bad_alloc",
    "can't start new thread",
    "pyobject pointer is null",
    "error return without exception set",
)
"""Texts in the error messages of failed allocations in torch, safetensors and extensions."""


class DeviceError(UserError):
    """The requested device is unknown or not available."""


class OutOfMemoryError(UserError):
    """There is not enough memory, or the process has reached a limit of memory or threads."""


def select_device(name: str, gpu: int | None = None) -> torch.device:
    """Return the device of the setting `name`; raise DeviceError if there is no such device.

    `gpu` selects one of several GPUs by its number.
    """
    if name not in ("auto", "cpu", "cuda"):
        raise DeviceError(f"device must be auto, cpu or cuda, not {name!r}")
    if name == "cuda" and not torch.cuda.is_available():
        raise DeviceError("torch finds no GPU on this machine: use --device auto or cpu")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cpu" or gpu is None:
        return torch.device(name)
    if gpu >= torch.cuda.device_count():
        raise DeviceError(
            f"process {gpu} of this machine has no GPU of its own, because torch finds only "
            f"{torch.cuda.device_count()}: start one process for each GPU"
        )
    return torch.device(name, gpu)


def is_bf16_faster(device: torch.device) -> bool:
    """Return whether bf16 is faster than float32 on the device.

    Emulated bf16 is slower. Intel CPUs gain only with AMX, which virtual machines may hide. With
    AVX-512, bf16 had half the speed of float32 on Intel and twice its speed on AMD. The CPU's
    features are compared instead of timings, so that a resumed run gets the same dtype.
    """
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    features = torch.cpu.get_capabilities()
    if features.get("avx512_bf16") and "intel" not in str(features.get("cpu_name")).lower():
        return True
    return any(bool(features.get(name)) for name in ("amx_bf16", "sve_bf16", "bf16"))


def select_dtype(amp: str, device: torch.device) -> torch.dtype:
    """Return autocast's dtype for `amp` (auto, bf16 or off); weights stay float32."""
    if amp == "bf16" or (amp == "auto" and is_bf16_faster(device)):
        return torch.bfloat16
    return torch.float32


def autocast(device: torch.device, dtype: torch.dtype) -> torch.autocast:
    """Return the autocast context for a forward pass."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16)


def keep_freed_memory() -> None:
    """Make glibc keep large freed blocks, so that the next step can reuse them.

    Otherwise, 10 % of a step's time on a CPU went into zeroed pages from the system.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, 1 << 30)
        mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch use `count` CPU threads during the block; 0 leaves their number unchanged."""
    before = torch.get_num_threads()
    try:
        if count:
            torch.set_num_threads(count)
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def convert_memory_errors(work: str, remedy: str) -> Iterator[None]:
    """Convert a failed allocation during `work` to an OutOfMemoryError with a `remedy`."""
    try:
        yield
    except BaseException as error:  # a Rust panic, from safetensors, is not an Exception
        is_panic = type(error).__name__ == "PanicException"
        may_be_allocation = is_panic or isinstance(error, (RuntimeError, SystemError))
        has_text = any(text in str(error).lower() for text in ALLOCATION_ERROR_TEXTS)
        if not isinstance(error, MemoryError) and not (may_be_allocation and has_text):
            raise
        raise OutOfMemoryError(f"not enough memory for {work}: {remedy}") from error
