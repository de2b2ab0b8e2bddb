"""Which device and which arithmetic: bf16 only where the processor multiplies it natively."""

import ctypes
import sys

import torch

from engine.errors import UserError

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Names of glibc's malloc.h: M_TRIM_THRESHOLD, M_MMAP_THRESHOLD."""


class DeviceError(UserError):
    """A device was asked for that this machine does not have."""


def device_for(name: str) -> torch.device:
    """Find the device by its setting: auto, cpu or cuda."""
    if name == "cuda" and not torch.cuda.is_available():
        raise DeviceError("device cuda was asked for, and torch sees no GPU here; use --device auto or cpu")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def native_bf16(device: torch.device) -> bool:
    """Tell whether the device multiplies bf16 in hardware; emulated, it is slower than float32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    features = torch.cpu.get_capabilities()
    return any(bool(features.get(name)) for name in ("avx512_bf16", "amx_bf16", "sve_bf16", "bf16"))


def dtype_for(amp: str, device: torch.device) -> torch.dtype:
    """Choose the arithmetic of convolutions by the setting auto, bf16 or off; weights stay float32."""
    if amp == "bf16" or (amp == "auto" and native_bf16(device)):
        return torch.bfloat16
    return torch.float32


def autocast(device: torch.device, dtype: torch.dtype) -> torch.autocast:
    """Open the arithmetic for one forward pass."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16)


def keep_freed_memory() -> None:
    """Let the allocator keep large blocks that are freed: a training step asks for the same ones again.

    By default glibc hands them back to the system, and each step pays for zeroed pages, a tenth of its time on a
    processor. Other C libraries are left as they are.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(MMAP_THRESHOLD, 1 << 30)
        mallopt(TRIM_THRESHOLD, (1 << 31) - 1)
