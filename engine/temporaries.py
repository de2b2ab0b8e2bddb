"""Atomic file writes: temporary names, the rename, and temporary files of killed writers.

    .train-00000-0.parquet.fianchetto-5f0e11c2-4711-9d0c27aa.tmp

A temporary name holds the file's name, the project's, the machine, the process and a random part,
so it is unique. The file is abandoned when its process is gone, or after a day without a write.
Whether a process is gone is known on its own machine only: one boot of one host and one namespace
of process ids, so a container does not delete the files of another one.
"""

import hashlib
import os
import platform
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO

import psutil

_NAME = re.compile(r"\..+\.fianchetto-([0-9a-f]{8})-(\d{1,10})-[0-9a-f]{8}\.tmp", re.DOTALL)
_MAX_NAME_BYTES = 180
"""Bytes of the file's name in a temporary name; file systems allow 255 in all."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE = Path("/proc/self/ns/pid")
DAY = 86_400.0
"""Seconds without a write after which a temporary file is abandoned, whatever machine wrote it."""


@cache
def machine() -> str:
    """Return a hash of host, boot and process namespace, in which process ids are unique."""
    boot = _BOOT.read_text().strip() if _BOOT.exists() else str(psutil.boot_time() // 60)
    parts = [platform.node(), boot]
    if _NAMESPACE.exists():  # Linux: each container numbers its own processes
        parts.append(str(_NAMESPACE.stat().st_ino))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8]


def temporary_name(name: str) -> str:
    """Return a unique temporary name for a file that will be called `name`."""
    kept = os.fsencode(name)[:_MAX_NAME_BYTES].decode(errors="ignore")
    return f".{kept}.fianchetto-{machine()}-{os.getpid()}-{secrets.token_hex(4)}.tmp"


def is_temporary(name: str) -> bool:
    """Return whether a file name was made by `temporary_name`."""
    return _NAME.fullmatch(name) is not None


def is_abandoned(path: Path) -> bool:
    """Return whether a file is a temporary file whose writer is gone."""
    found = _NAME.fullmatch(path.name)
    if found is None:
        return False
    if found[1] == machine() and not psutil.pid_exists(int(found[2])):
        return True
    try:
        return time.time() - path.lstat().st_mtime > DAY
    except OSError:  # renamed to its final name since
        return False


def abandoned(folder: Path) -> list[Path]:
    """Return the abandoned temporary files of a folder, sorted."""
    return sorted(path for path in folder.glob(".*.tmp") if is_abandoned(path))


_swept: set[Path] = set()
"""Folders that this process has swept."""


def _sweep_once(folder: Path) -> None:
    """Delete a folder's abandoned temporary files; once per process, since it lists the folder."""
    if folder not in _swept:
        _swept.add(folder)
        for path in abandoned(folder):
            with suppress(OSError):
                path.unlink()


@contextmanager
def name_path(path: Path) -> Iterator[None]:
    """Add a path to OSErrors raised in the block without one, as on a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


@contextmanager
def new_file(path: Path, *, sync: bool = True, buffering: int = -1) -> Iterator[IO[bytes]]:
    """Yield an open temporary file; rename it to `path` at the end, delete it on an error.

    The folder's abandoned files are deleted first. `sync`: flush the bytes to the disk before the
    rename; a power cut may still undo the rename, see `sync_directory`.
    """
    _sweep_once(path.parent)
    temporary = path.with_name(temporary_name(path.name))
    file = temporary.open("wb", buffering=buffering)
    try:
        with name_path(path):
            yield file
            file.flush()
            if sync:
                os.fsync(file.fileno())
            file.close()
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):  # on a full disk closing fails like writing
            file.close()
        temporary.unlink(missing_ok=True)
        raise


def sync_directory(directory: Path) -> None:
    """Flush a directory's renames to the disk, where the system can, against a power cut."""
    with suppress(OSError):
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
