"""Count the cores that this process may use."""

import math
import os
from pathlib import Path, PurePosixPath


def cores() -> int:
    """Return how many cores this process may use, by its affinity and its container's quota."""
    affine = hasattr(os, "sched_getaffinity")
    own = len(os.sched_getaffinity(0)) if affine else os.cpu_count() or 1
    quota = container_quota()
    return own if math.isinf(quota) else max(1, min(own, math.ceil(quota)))


def container_quota(root: Path = Path("/")) -> float:
    """Return the smallest CPU quota of this process's cgroups, in cores; infinity for none.

    A group above may grant less than the process's own, and a container may see its own group as
    the root of the mount. Both versions of cgroup are read. `root` is the file system's root.
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
