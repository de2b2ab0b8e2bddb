"""Choose the device and the arithmetic (bf16 only where it is faster); report a lack of memory."""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from engine.errors import UserError

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's malloc.h."""
ALLOCATION_ERRORS = (
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
    """The machine lacks the requested device, or there is no device of this name."""


class OutOfMemoryError(UserError):
    """There is not enough memory, or the process has reached its limit."""


def device_for(name: str, number: int | None = None) -> torch.device:
    """Return the device of a setting; `number` selects one of several GPUs. Raises DeviceError."""
    if name not in ("auto", "cpu", "cuda"):
        raise DeviceError(f"device must be auto, cpu or cuda, not {name!r}")
    if name == "cuda" and not torch.cuda.is_available():
        raise DeviceError("torch sees no GPU here: use --device auto or cpu")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cpu" or number is None:
        return torch.device(name)
    if number >= torch.cuda.device_count():
        raise DeviceError(
            f"process {number} of this machine has no GPU, since torch sees only "
            f"{torch.cuda.device_count()}: start fewer processes"
        )
    return torch.device(name, number)


def is_bf16_faster(device: torch.device) -> bool:
    """Return whether bf16 is faster than float32 on the device.

    Emulated bf16 is slower. Intel CPUs gain only with AMX, which virtual machines may hide; with
    AVX-512, bf16 was measured at half the speed of float32 on Intel and at twice on AMD. The answer
    depends on the CPU's features, not on a timing, so that a resumed run gets the same dtype.
    """
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    features = torch.cpu.get_capabilities()
    if features.get("avx512_bf16") and "intel" not in str(features.get("cpu_name")).lower():
        return True
    return any(bool(features.get(name)) for name in ("amx_bf16", "sve_bf16", "bf16"))


def dtype_for(amp: str, device: torch.device) -> torch.dtype:
    """Return the dtype of convolutions for auto, bf16 or off; weights stay float32."""
    if amp == "bf16" or (amp == "auto" and is_bf16_faster(device)):
        return torch.bfloat16
    return torch.float32


def autocast(device: torch.device, dtype: torch.dtype) -> torch.autocast:
    """Return the autocast context for a forward pass."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16)


def keep_freed_memory() -> None:
    """Make glibc keep large freed blocks, so that the next step can reuse them.

    Getting zeroed pages from the system took 10 % of a step's time on a CPU.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(MMAP_THRESHOLD, 1 << 30)
        mallopt(TRIM_THRESHOLD, (1 << 31) - 1)


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch use `count` threads of the CPU during the block; 0 leaves the number as it is."""
    before = torch.get_num_threads()
    try:
        if count:
            torch.set_num_threads(count)
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def memory_errors(work: str, remedy: str) -> Iterator[None]:
    """Convert a failed allocation during `work` to an OutOfMemoryError with a `remedy`."""
    try:
        yield
    except BaseException as error:  # a Rust panic (safetensors) is a BaseException only
        is_panic = type(error).__name__ == "PanicException"
        has_text = any(text in str(error).lower() for text in ALLOCATION_ERRORS)
        is_plain = is_panic or isinstance(error, (RuntimeError, SystemError))
        if not isinstance(error, MemoryError) and not (is_plain and has_text):
            raise
        raise OutOfMemoryError(f"not enough memory for {work}: {remedy}") from error
