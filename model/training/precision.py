"""Choose the device and the arithmetic: bf16 only where it is faster."""

import ctypes
import subprocess
import sys
import time
from typing import get_args

import torch

from engine.errors import UserError
from model.training.config import Device

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's malloc.h."""
METER_SECONDS = 5.0
"""Seconds between two samples of a GPU's use."""


class DeviceError(UserError):
    """The machine lacks the requested device, or there is no device of this name."""


def device_for(name: str, number: int | None = None) -> torch.device:
    """Return the device of a setting; `number` selects one of several GPUs. Raises DeviceError."""
    if name not in get_args(Device):
        raise DeviceError(f"device must be auto, cpu or cuda, not {name!r}")
    if name == "cuda" and not torch.cuda.is_available():
        raise DeviceError("torch sees no GPU here: use --device auto or cpu")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and number is not None:
        if number >= torch.cuda.device_count():
            count = torch.cuda.device_count()
            raise DeviceError(
                f"process {number} of this machine has no GPU, since torch sees only {count}: "
                "start fewer processes"
            )
        return torch.device(name, number)
    return torch.device(name)


class GpuMeter:
    """Measure the share of time that the first GPU is busy, with the driver's nvidia-smi."""

    def __init__(self) -> None:
        self.shares: list[float] = []
        self.asked = 0.0

    def read(self) -> dict[str, float]:
        """Return the mean share as `gpu_busy`, sampled every few seconds; {} if not known."""
        if time.monotonic() - self.asked >= METER_SECONDS:
            self.asked = time.monotonic()
            self.shares += self._sample()
        return {"gpu_busy": sum(self.shares) / len(self.shares)} if self.shares else {}

    def _sample(self) -> list[float]:
        gpu = torch.cuda.get_device_properties(0).uuid
        words = ["nvidia-smi", f"--id=GPU-{gpu}", "--query-gpu=utilization.gpu"]
        try:
            answer = subprocess.run(
                [*words, "--format=csv,noheader,nounits"],
                capture_output=True,
                text=True,
                timeout=METER_SECONDS,
            ).stdout
            return [float(answer) / 100]
        except (OSError, ValueError, subprocess.TimeoutExpired):
            return []


def gains_by_bf16(device: torch.device) -> bool:
    """Return whether bf16 is faster than float32 on the device.

    Emulated bf16 is slower. Intel CPUs gain only with AMX, which virtual machines may hide; with
    AVX-512, bf16 was measured at half the speed of float32 on Intel and at twice on AMD. The answer
    depends on the CPU's features, not on a timing, so that a resumed run gets the same one.
    """
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    features = torch.cpu.get_capabilities()
    if features.get("avx512_bf16") and "intel" not in str(features.get("cpu_name")).lower():
        return True
    return any(bool(features.get(name)) for name in ("amx_bf16", "sve_bf16", "bf16"))


def dtype_for(amp: str, device: torch.device) -> torch.dtype:
    """Return the dtype of convolutions for auto, bf16 or off; weights stay float32."""
    if amp == "bf16" or (amp == "auto" and gains_by_bf16(device)):
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
