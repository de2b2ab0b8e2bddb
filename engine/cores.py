"""Count the cores that this process may use."""

import math
import os
from pathlib import Path, PurePosixPath


def count_cores() -> int:
    """Return the number of cores that CPU affinity and the container's quota allow."""
    has_affinity = hasattr(os, "sched_getaffinity")  # not on macOS
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    quota = read_container_quota()
    return cores if math.isinf(quota) else max(1, min(cores, math.ceil(quota)))


def read_container_quota(root: Path = Path("/")) -> float:
    """Return the smallest CPU quota of this process's cgroups, in cores; infinity if there is none.

    Supports cgroup v1 and v2. Reads the parent groups too, because they may have a smaller quota
    and because a container may see its own group as the root of the mount. `root` is the root of
    the file system.
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
            for ancestor in (group, *group.parents):
                quotas.append(_read_quota(root / "sys/fs/cgroup" / mount / str(ancestor)[1:]))
    return min(quotas)


def _read_quota(group: Path) -> float:
    try:
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            quota, period = ((group / name).read_text().strip() for name in names)
        cores = int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):  # "max" means no quota
        return math.inf
    return cores if cores > 0 else math.inf
