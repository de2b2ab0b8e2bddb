"""Cores by the container's quota: trees of both versions of cgroup, as containers see them."""

import math
import os
from pathlib import Path

import pytest

from engine import cores as module
from engine.cores import container_quota, cores

TREES: dict[str, tuple[dict[str, str], float]] = {
    "no cgroup": ({}, math.inf),
    "v2 in a container": (
        {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"},
        1.5,
    ),
    "v2 without a limit": (
        {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"},
        math.inf,
    ),
    "v2, a group above grants less": (
        {
            "proc/self/cgroup": "0::/user.slice/job\n",
            "sys/fs/cgroup/user.slice/cpu.max": "200000 100000\n",
            "sys/fs/cgroup/user.slice/job/cpu.max": "400000 100000\n",
        },
        2.0,
    ),
    "v2, seen from another namespace": (
        {"proc/self/cgroup": "0::/../../other\n", "sys/fs/cgroup/cpu.max": "300000 100000\n"},
        3.0,
    ),
    "v1, whose path is the host's": (
        {
            "proc/self/cgroup": "5:memory:/docker/ab\n4:cpu,cpuacct:/docker/ab\n0::/\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "250000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        },
        2.5,
    ),
    "v1 without a limit": (
        {
            "proc/self/cgroup": "4:cpu:/\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
        math.inf,
    ),
    "damaged": (
        {"proc/self/cgroup": "x\n0\n\n0::/\n", "sys/fs/cgroup/cpu.max": "nonsense\n"},
        math.inf,
    ),
    "a period of nothing": (
        {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "1 0\n"},
        math.inf,
    ),
}


@pytest.mark.parametrize("name", TREES)
def test_the_quota_is_that_of_the_tightest_group(name: str, tmp_path: Path) -> None:
    files, quota = TREES[name]
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    assert container_quota(tmp_path) == quota


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no affinity on this system")
@pytest.mark.parametrize(
    ("quota", "expected"), [(math.inf, 8), (0.5, 1), (1.5, 2), (2.0, 2), (64.0, 8)]
)
def test_cores_are_the_lesser_of_affinity_and_quota(
    quota: float, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    monkeypatch.setattr(module, "container_quota", lambda: quota)
    assert cores() == expected
