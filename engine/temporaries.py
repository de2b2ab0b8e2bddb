"""Write files atomically through temporary files, and delete those of killed writers.

    .train-00000-0.parquet.fianchetto-5f0e11c2-4711-9d0c27aa.tmp

A temporary name consists of the file's name, the project, a hash of the machine, the process id and
a random part. A temporary file is abandoned when its process has ended, or after a day without a
write. Only the machine that wrote a file can check its process. A machine is one boot of one host
and one process-id namespace, so a container does not delete another container's files.
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

_TEMPORARY = re.compile(r"\..+\.fianchetto-([0-9a-f]{8})-(\d{1,10})-[0-9a-f]{8}\.tmp", re.DOTALL)
_MAX_NAME_BYTES = 180
"""Maximum bytes of the file's name in a temporary name; file systems allow 255 in total."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PID_NAMESPACE = Path("/proc/self/ns/pid")
ABANDONED_SECONDS = 86_400.0
"""Seconds without a write after which any machine treats a temporary file as abandoned."""


@cache
def machine_id() -> str:
    """Return a hash of host, boot and process-id namespace, in which process ids are unique."""
    boot = _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else str(psutil.boot_time() // 60)
    parts = [platform.node(), boot]
    if _PID_NAMESPACE.exists():  # on Linux, each container numbers its own processes
        parts.append(str(_PID_NAMESPACE.stat().st_ino))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8]


def temporary_name(name: str) -> str:
    """Return a unique temporary name for a file that will be called `name`."""
    kept = os.fsencode(name)[:_MAX_NAME_BYTES].decode(errors="ignore")
    return f".{kept}.fianchetto-{machine_id()}-{os.getpid()}-{secrets.token_hex(4)}.tmp"


def is_temporary(name: str) -> bool:
    """Return whether `name` has the form of a temporary name."""
    return _TEMPORARY.fullmatch(name) is not None


def is_abandoned(path: Path) -> bool:
    """Return whether `path` is a temporary file that its writer has abandoned."""
    match = _TEMPORARY.fullmatch(path.name)
    if match is None:
        return False
    machine, process = match[1], int(match[2])
    if machine == machine_id() and not psutil.pid_exists(process):
        return True
    try:
        return time.time() - path.lstat().st_mtime > ABANDONED_SECONDS
    except OSError:  # its writer has just renamed it
        return False


def list_abandoned(folder: Path) -> list[Path]:
    """Return the abandoned temporary files of a folder, sorted."""
    return sorted(path for path in folder.glob(".*.tmp") if is_abandoned(path))


_swept_folders: set[Path] = set()
"""Folders that this process has already swept."""


def _sweep_once(folder: Path) -> None:
    if folder not in _swept_folders:
        _swept_folders.add(folder)
        for path in list_abandoned(folder):
            with suppress(OSError):
                path.unlink()


@contextmanager
def add_path_to_errors(path: Path) -> Iterator[None]:
    """Add `path` to errors of the `with` block that name no file, such as those of a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


@contextmanager
def replace_file(path: Path, *, buffering: int = -1) -> Iterator[IO[bytes]]:
    """Yield an open temporary file; rename it to `path` on success, delete it on an error.

    The first call for a folder deletes its abandoned temporary files. The bytes are on the disk
    before the rename, which a power failure may still undo: see `sync_directory`.
    """
    _sweep_once(path.parent)
    temporary = path.with_name(temporary_name(path.name))
    file = temporary.open("wb", buffering=buffering)
    try:
        with add_path_to_errors(path):
            yield file
            file.flush()
            os.fsync(file.fileno())
            file.close()
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):  # closing fails too if the disk is full
            file.close()
        temporary.unlink(missing_ok=True)
        raise


def sync_directory(directory: Path) -> None:
    """Flush a directory's renames to disk, if the system supports it."""
    with suppress(OSError):
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
