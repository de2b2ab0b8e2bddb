"""Names of temporary files, and which of them were abandoned.

    .train-00000-0.parquet.fianchetto-5f0e11c2-4711-9d0c27aa.tmp

The parts: the file's name, ours, the machine, the process id, and a random number. No two writers share a file, wherever they
run. Such a file is abandoned when its process is gone, which only its own machine can tell (one boot of one host and one
namespace of process ids, so that containers of a host are told apart), or when nobody has written to it for a day.
"""

import hashlib
import os
import platform
import re
import secrets
import time
from functools import cache
from pathlib import Path

import psutil

_NAME = re.compile(r"\..+\.fianchetto-([0-9a-f]{8})-(\d{1,10})-[0-9a-f]{8}\.tmp", re.DOTALL)
_LONGEST = 180
"""Bytes of the file's own name that are kept: file systems take 255 in all."""
DAY = 86_400.0
"""Seconds after which a file that nobody writes to is abandoned, whoever it is of."""


@cache
def machine() -> str:
    """Return an identifier of this machine's process ids, 8 hex digits."""
    parts = [platform.node(), str(psutil.boot_time() // 60) if not _BOOT.exists() else _BOOT.read_text().strip()]
    if _NAMESPACE.exists():  # of Linux: two containers see other processes under the same numbers
        parts.append(str(_NAMESPACE.stat().st_ino))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8]


_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE = Path("/proc/self/ns/pid")


def temporary_name(name: str) -> str:
    """Return a name that no other writer has, for a file that will be called `name`."""
    kept = name.encode()[:_LONGEST].decode(errors="ignore")
    return f".{kept}.fianchetto-{machine()}-{os.getpid()}-{secrets.token_hex(4)}.tmp"


def is_temporary(name: str) -> bool:
    """Return whether a file's name is one that `temporary_name` gives."""
    return _NAME.fullmatch(name) is not None


def is_abandoned(path: Path) -> bool:
    """Return whether a file is a temporary one of ours that its writer provably cannot finish."""
    found = _NAME.fullmatch(path.name)
    if found is None:
        return False
    if found[1] == machine() and not psutil.pid_exists(int(found[2])):
        return True
    try:
        return time.time() - path.lstat().st_mtime > DAY
    except OSError:  # it has its name by now
        return False


def abandoned(folder: Path) -> list[Path]:
    """List the temporary files in a folder that killed writers left."""
    return sorted(path for path in folder.glob(".*.tmp") if is_abandoned(path))
