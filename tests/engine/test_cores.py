"""The number of usable cores, with file trees of both versions of cgroup as containers see them."""

import math
import os
from pathlib import Path

import pytest

from engine import cores as module
from engine.cores import count_cores, read_container_quota

ROOT, V1 = "sys/fs/cgroup", "sys/fs/cgroup/cpu,cpuacct"
TREES: dict[str, tuple[float, str, dict[str, str]]] = {
    "v2 in a container": (1.5, "0::/", {f"{ROOT}/cpu.max": "150000 100000"}),
    "v2 without a limit": (math.inf, "0::/", {f"{ROOT}/cpu.max": "max 100000"}),
    "v2, a parent group has less": (
        2.0,
        "0::/user.slice/job",
        {
            f"{ROOT}/user.slice/cpu.max": "200000 100000",
            f"{ROOT}/user.slice/job/cpu.max": "400000 100000",
        },
    ),
    "v2 in another namespace": (3.0, "0::/../../other", {f"{ROOT}/cpu.max": "300000 100000"}),
    "v1 with the host's path": (
        2.5,
        "5:memory:/docker/ab\n4:cpu,cpuacct:/docker/ab\n0::/",
        {f"{V1}/cpu.cfs_quota_us": "250000", f"{V1}/cpu.cfs_period_us": "100000"},
    ),
    "v1 without a limit": (
        math.inf,
        "4:cpu,cpuacct:/",
        {f"{V1}/cpu.cfs_quota_us": "-1", f"{V1}/cpu.cfs_period_us": "100000"},
    ),
    "damaged": (math.inf, "x\n0\n\n0::/", {f"{ROOT}/cpu.max": "nonsense"}),
    "a period of zero": (math.inf, "0::/", {f"{ROOT}/cpu.max": "1 0"}),
}


@pytest.mark.parametrize("name", TREES)
def test_the_quota_is_the_smallest_of_all_groups(name: str, tmp_path: Path) -> None:
    assert read_container_quota(tmp_path) == math.inf
    quota, groups, files = TREES[name]
    for path, text in {"proc/self/cgroup": groups, **files}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text + "\n")
    assert read_container_quota(tmp_path) == quota


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no affinity on this system")
@pytest.mark.parametrize(
    ("quota", "expected"), [(math.inf, 8), (0.5, 1), (1.5, 2), (2.0, 2), (64.0, 8)]
)
def test_the_number_of_cores_is_the_smaller_of_affinity_and_quota(
    quota: float, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    monkeypatch.setattr(module, "read_container_quota", lambda: quota)
    assert count_cores() == expected
