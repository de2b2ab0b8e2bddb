"""Which arithmetic `auto` stands for, by what torch says of a processor."""

import pytest
import torch

from model.training.precision import dtype_for

EPYC = {"cpu_name": "AMD EPYC 9R45", "avx512_bf16": True, "amx_bf16": False}
XEON = {"cpu_name": "Intel(R) Xeon(R) Platinum 8481C", "avx512_bf16": True, "amx_bf16": True}
XEON_IN_A_GUEST = {"cpu_name": "Intel Xeon", "avx512_bf16": True, "amx_bf16": False}


@pytest.mark.parametrize(
    ("amp", "features", "expected"),
    [
        ("auto", EPYC, torch.bfloat16),
        ("auto", XEON, torch.bfloat16),
        ("auto", XEON_IN_A_GUEST, torch.float32),
        (
            "auto",
            {"cpu_name": "Intel Xeon", "avx512_bf16": False, "amx_bf16": False},
            torch.float32,
        ),
        ("auto", {"avx512_bf16": True}, torch.bfloat16),
        ("auto", {"sve_bf16": True}, torch.bfloat16),
        ("auto", {}, torch.float32),
        ("bf16", XEON_IN_A_GUEST, torch.bfloat16),
        ("off", EPYC, torch.float32),
    ],
)
def test_auto_is_bf16_only_where_it_is_faster(
    monkeypatch: pytest.MonkeyPatch, amp: str, features: dict[str, object], expected: torch.dtype
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: features)
    assert dtype_for(amp, torch.device("cpu")) == expected
