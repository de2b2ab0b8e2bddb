"""Count the cores that this process may use."""

import math
import os
from pathlib import Path


def count_cores() -> int:
    """Return the number of cores that CPU affinity and the container's quota allow."""
    affine = hasattr(os, "sched_getaffinity")
    own = len(os.sched_getaffinity(0)) if affine else os.cpu_count() or 1
    quota = container_quota()
    return own if math.isinf(quota) else max(1, min(own, math.ceil(quota)))


def container_quota(group: Path = Path("/sys/fs/cgroup")) -> float:
    """Return the CPU quota of this container, in cores; infinity if there is none.

    `group` is where a container sees its own control group, of version 1 or 2.
    """
    try:
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            quota, period = ((group / "cpu" / name).read_text().strip() for name in names)
        cores = int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):  # no quota is written as "max"
        return math.inf
    return cores if cores > 0 else math.inf
