"""Verify a dataset's files against its manifest: sizes on every open, hashes once per version.

The version of a file is its size, inode and times. Verified versions are recorded by a mark in the
user's cache folder, since the dataset may be read-only. Files written on this machine are marked
when they are published, others when a folder is first opened. A mark is an empty file; its name is
a hash of all file names, hashes and versions. Without a mark, all files are hashed. In a store only
sizes are compared, since hashing would download everything. `fianchetto verify` always hashes all
files.
"""

import hashlib
import json
import os
import stat
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Any, cast

from engine.cores import count_cores
from engine.progress import Progress, Stop, Tick, never, silent
from pipeline.dataset.files.manifest import damaged_file_error
from pipeline.errors import DatasetError
from pipeline.storage.stores import catch_store_errors, file_hash, is_local

CACHE_VARIABLE = "FIANCHETTO_CACHE"
"""Environment variable with the folder for marks; default: `fianchetto` in the user's cache."""
MIN_AGE_SECONDS = 2.0
"""Minimum age of a file's last change in seconds before it is marked: a second change within the
same clock tick would go unnoticed."""
MARK_LIFETIME_SECONDS = 180 * 86_400.0
"""Seconds after which a mark is deleted, since many datasets are temporary."""
THREADS = 4
"""Number of files hashed concurrently; hashing takes a core 0.8 s per GB."""

Entry = Mapping[str, Any]


def verify_files(
    directory: Path, manifest: Mapping[str, Any], progress: Progress = silent, stop: Stop = never
) -> None:
    """Raise DatasetError for a file that is missing or differs from the manifest.

    Marked files are not read. Hashing reports progress in bytes; raises Stopped.
    """
    entries = manifest["files"]
    local = is_local(directory)
    versions = _versions(directory, entries) if local else _list_sizes(directory)
    for entry in entries:
        if entry["name"] not in versions:
            raise _refusal(directory, entry, "it is missing")
        if (size := versions[entry["name"]][0]) != entry["bytes"]:
            raise _refusal(directory, entry, f"it has {size:,} bytes, not {entry['bytes']:,}")
    mark = _mark(entries, versions) if local else None
    if local and not (mark and os.path.exists(mark)):  # noqa: PTH110 - Path.exists may raise
        settled = (time.time() - MIN_AGE_SECONDS) * 1e9
        _compare_hashes(directory, entries, progress, stop)
        if all(changed < settled for *_, changed in versions.values()):
            _create_mark(mark)


def remember_files(directory: Path, manifest: Mapping[str, Any]) -> None:
    """Mark new files as verified, so that they are not hashed when they are opened."""
    if is_local(directory):
        entries = manifest["files"]
        _create_mark(_mark(entries, _versions(directory, entries)))


def _refusal(directory: Path, entry: Entry, why: str) -> DatasetError:
    return damaged_file_error(
        f"{directory / entry['name']} does not match the manifest ({why}): `fianchetto verify` "
        "lists all such files"
    )


def _versions(directory: Path, entries: Sequence[Entry]) -> dict[str, list[int]]:
    """Return the size, inode and times of each existing file of a local folder, by name."""
    found: dict[str, list[int]] = {}
    for entry in entries:
        with suppress(FileNotFoundError, NotADirectoryError):
            at = (directory / entry["name"]).stat()
            if stat.S_ISREG(at.st_mode):
                # include the ctime, since programs can set the mtime
                found[entry["name"]] = [at.st_size, at.st_ino, at.st_mtime_ns, at.st_ctime_ns]
    return found


def _list_sizes(directory: Path) -> dict[str, list[int]]:
    """Return the sizes of the files in a store's folder by name, with a single request."""
    store, found = cast("Any", directory), dict[str, list[int]]()
    with catch_store_errors(directory), suppress(FileNotFoundError):
        for info in store.fs.ls(store.path, detail=True, refresh=True):
            if info.get("type") != "directory":
                name = str(info["name"]).rstrip("/").rpartition("/")[2]
                found[name] = [int(info["size"] or 0)]
    return found


def _mark(entries: Sequence[Entry], versions: Mapping[str, list[int]]) -> Path | None:
    """Return the path of the mark for these file versions, None for a user without a home."""
    files = [[entry["name"], entry["sha256"], versions[entry["name"]]] for entry in entries]
    digest = hashlib.sha256(json.dumps(files).encode()).hexdigest()
    if named := os.environ.get(CACHE_VARIABLE):
        return Path(named) / "verified" / digest
    with suppress(RuntimeError):
        base = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
        return base / "fianchetto" / "verified" / digest
    return None


def _create_mark(mark: Path | None) -> None:
    """Create a verification mark, and delete expired ones; OSErrors are ignored."""
    if mark is None:
        return
    with suppress(OSError):
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
        for old in mark.parent.iterdir():
            if old.stat().st_mtime < time.time() - MARK_LIFETIME_SECONDS:
                old.unlink()


def _compare_hashes(
    directory: Path, entries: Sequence[Entry], progress: Progress, stop: Stop
) -> None:
    done, total, over = 0, sum(entry["bytes"] for entry in entries), Event()
    pool = ThreadPoolExecutor(min(THREADS, count_cores()), "hash")
    try:
        hashes = pool.map(
            lambda entry: file_hash(directory / entry["name"], lambda: over.is_set() or stop()),
            entries,
        )
        for entry, found in zip(entries, hashes, strict=True):
            if found != entry["sha256"]:
                raise _refusal(directory, entry, "its hash differs")
            done += entry["bytes"]
            progress(Tick(done, total, "B", stage="checking hashes"))
    finally:
        over.set()  # files that are still being hashed
        pool.shutdown(cancel_futures=True)
