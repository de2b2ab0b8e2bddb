"""The processor cores of this process."""

import math
import os
from collections.abc import Iterator
from pathlib import Path


def cores() -> int:
    """Return how many cores this process may use, by its affinity and its container's quota."""
    affine = hasattr(os, "sched_getaffinity")
    own = len(os.sched_getaffinity(0)) if affine else os.cpu_count() or 1
    quota = container_quota()
    return own if math.isinf(quota) else max(1, min(own, math.ceil(quota)))


def container_quota(root: Path = Path("/")) -> float:
    """Return the least quota of this process's control groups, in cores; infinity for none.

    A group above may grant less than the process's own. Both versions of cgroup are read:
    `cpu.max`, and `cpu.cfs_quota_us`. `root` is the root of the file system.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except (OSError, ValueError):
        return math.inf
    quotas = [_read_quota(group) for line in lines for group in _find_groups(root, line)]
    return min(quotas, default=math.inf)


def _find_groups(root: Path, line: str) -> Iterator[Path]:
    """Yield the folders of a line of /proc/self/cgroup and of the groups above, if it has a quota.

    A container may see its own group as the root of the mount, whatever the line names.
    """
    _, _, rest = line.partition(":")
    controllers, _, path = rest.partition(":")
    if controllers and "cpu" not in controllers.split(","):
        return
    mounts = (controllers, "cpu") if controllers else ("", "unified")
    parts = [part for part in path.split("/") if part not in ("", "..")]
    for mount in mounts:
        for depth in range(len(parts), -1, -1):
            yield root.joinpath("sys/fs/cgroup", mount, *parts[:depth])


def _read_quota(group: Path) -> float:
    """Return the quota of one group in cores; infinity for none."""
    try:
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            quota, period = ((group / name).read_text().strip() for name in names)
        cores = int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):  # "max" is no number
        return math.inf
    return cores if cores > 0 else math.inf
