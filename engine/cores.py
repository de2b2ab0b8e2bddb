"""Count the cores that this process may use."""

import math
import os
from pathlib import Path, PurePosixPath


def count_cores() -> int:
    """Return the number of cores that CPU affinity and the container's quota allow."""
    affine = hasattr(os, "sched_getaffinity")
    own = len(os.sched_getaffinity(0)) if affine else os.cpu_count() or 1
    quota = container_quota()
    return own if math.isinf(quota) else max(1, min(own, math.ceil(quota)))


def container_quota(root: Path = Path("/")) -> float:
    """Return the smallest CPU quota of this process's cgroups, in cores; infinity if there is none.

    Parent groups are read too, because they may have a smaller quota. A container may see its own
    group as the root of the mount. Supports cgroup v1 and v2. `root` is the file system's root.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except (OSError, ValueError):
        return math.inf
    quotas = [math.inf]
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        group = PurePosixPath("/", *(part for part in path.split("/") if part != ".."))
        for mount in (controllers, "cpu") if controllers else ("", "unified"):
            for above in (group, *group.parents):
                quotas.append(_read_quota(root / "sys/fs/cgroup" / mount / str(above)[1:]))
    return min(quotas)


def _read_quota(group: Path) -> float:
    """Return the CPU quota of one cgroup, in cores; infinity if there is none."""
    try:
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            quota, period = ((group / name).read_text().strip() for name in names)
        cores = int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):  # no quota is written as "max"
        return math.inf
    return cores if cores > 0 else math.inf
