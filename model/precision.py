"""Which device and which arithmetic: bf16 only where the processor multiplies it natively."""

import torch

from engine.errors import UserError


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
