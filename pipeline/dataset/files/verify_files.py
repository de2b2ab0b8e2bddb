"""Verify a dataset's files against its manifest: sizes on every open, hashes once per version.

The version of a file is its size, inode and times. A dataset whose files were verified is recorded
by a mark in the user's cache folder, since the dataset itself may be read-only. The mark is an
empty file; its name is a hash of all file names, hashes and versions. A dataset that this machine
writes is marked when it is published, any other after its first opening, when all files are hashed.
In a store only sizes are compared, since hashing would download everything. `fianchetto verify`
hashes all files, whether or not there is a mark.
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
from pipeline.storage.stores import catch_store_errors, hash_file, is_local

CACHE_VARIABLE = "FIANCHETTO_CACHE"
"""Environment variable that names the cache folder, by default `~/.cache/fianchetto`."""
MIN_AGE_SECONDS = 2.0
"""Minimum time in seconds since the last change of a file that is marked: a further change within
the same clock tick would go unnoticed."""
MARK_LIFETIME_SECONDS = 180 * 86_400.0
"""Age in seconds at which a mark is deleted, since its dataset may be gone."""
HASH_THREADS = 4
"""Number of files that are hashed concurrently; one core needs 0.8 s per GB."""

Entry = Mapping[str, Any]


def verify_files(
    directory: Path, manifest: Mapping[str, Any], progress: Progress = silent, stop: Stop = never
) -> None:
    """Raise DatasetError for a file that is missing or differs from the manifest.

    Files are hashed only without a mark; hashing reports progress in bytes. Raises Stopped.
    """
    entries = manifest["files"]
    local = is_local(directory)
    versions = _read_versions(directory, entries) if local else _list_sizes(directory)
    for entry in entries:
        if entry["name"] not in versions:
            raise _make_mismatch_error(directory, entry, "it is missing")
        if (size := versions[entry["name"]][0]) != entry["bytes"]:
            raise _make_mismatch_error(
                directory, entry, f"it has {size:,} bytes, not {entry['bytes']:,}"
            )
    mark = _find_mark(entries, versions) if local else None
    if local and not (mark and os.path.exists(mark)):  # noqa: PTH110 - Path.exists may raise
        latest_change = (time.time() - MIN_AGE_SECONDS) * 1e9
        _compare_hashes(directory, entries, progress, stop)
        if all(changed < latest_change for *_, changed in versions.values()):
            _create_mark(mark)


def mark_files_verified(directory: Path, manifest: Mapping[str, Any]) -> None:
    """Mark files that were just written as verified, so that opening them does not hash them."""
    if is_local(directory):
        entries = manifest["files"]
        _create_mark(_find_mark(entries, _read_versions(directory, entries)))


def _make_mismatch_error(directory: Path, entry: Entry, why: str) -> DatasetError:
    return damaged_file_error(
        f"{directory / entry['name']} does not match the manifest ({why}): `fianchetto verify` "
        "lists all such files"
    )


def _read_versions(directory: Path, entries: Sequence[Entry]) -> dict[str, list[int]]:
    """Return the size, inode and times of each existing file of a local folder, by name."""
    found: dict[str, list[int]] = {}
    for entry in entries:
        with suppress(FileNotFoundError, NotADirectoryError):
            info = (directory / entry["name"]).stat()
            if stat.S_ISREG(info.st_mode):
                # include the ctime, since programs can set the mtime
                times = [info.st_mtime_ns, info.st_ctime_ns]
                found[entry["name"]] = [info.st_size, info.st_ino, *times]
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


def _find_mark(entries: Sequence[Entry], versions: Mapping[str, list[int]]) -> Path | None:
    """Return the path of the mark for these file versions; None for a user without a home."""
    files = [[entry["name"], entry["sha256"], versions[entry["name"]]] for entry in entries]
    digest = hashlib.sha256(json.dumps(files).encode()).hexdigest()
    if cache := os.environ.get(CACHE_VARIABLE):
        return Path(cache) / "verified" / digest
    with suppress(RuntimeError):
        base = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
        return base / "fianchetto" / "verified" / digest
    return None


def _create_mark(mark: Path | None) -> None:
    """Create a mark and delete expired ones; a cache that cannot be written is ignored."""
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
    done, total, closing = 0, sum(entry["bytes"] for entry in entries), Event()
    pool = ThreadPoolExecutor(min(HASH_THREADS, count_cores()), "hash")
    try:
        hashes = pool.map(
            lambda entry: hash_file(directory / entry["name"], lambda: closing.is_set() or stop()),
            entries,
        )
        for entry, found in zip(entries, hashes, strict=True):
            if found != entry["sha256"]:
                raise _make_mismatch_error(directory, entry, "its hash differs")
            done += entry["bytes"]
            progress(Tick(done, total, "B", stage="checking hashes"))
    finally:
        closing.set()  # after an error, stop hashing the other files
        pool.shutdown(cancel_futures=True)
