"""Count cores by the container's quota, with control groups of both versions."""

import math
import os
from pathlib import Path

import pytest

from engine import cores
from engine.cores import container_quota, count_cores

QUOTAS: dict[str, tuple[float, dict[str, str]]] = {
    "version 2": (1.5, {"cpu.max": "150000 100000"}),
    "version 2 without a quota": (math.inf, {"cpu.max": "max 100000"}),
    "version 1": (2.5, {"cpu/cpu.cfs_quota_us": "250000", "cpu/cpu.cfs_period_us": "100000"}),
    "version 1 without a quota": (
        math.inf,
        {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"},
    ),
    "no control group": (math.inf, {}),
    "damaged": (math.inf, {"cpu.max": "nonsense"}),
    "a period of zero": (math.inf, {"cpu.max": "1 0"}),
}


@pytest.mark.parametrize("name", QUOTAS)
def test_the_quota_is_read_from_the_control_group(name: str, tmp_path: Path) -> None:
    quota, files = QUOTAS[name]
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text + "\n")
    assert container_quota(tmp_path) == quota


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no affinity on this system")
def test_cores_are_limited_by_affinity_and_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    for quota, expected in ((math.inf, 8), (0.5, 1), (1.5, 2), (2.0, 2), (64.0, 8)):
        monkeypatch.setattr(cores, "container_quota", lambda quota=quota: quota)
        assert count_cores() == expected
