"""Verify a dataset's files against its manifest: sizes on every open, hashes once per version of a
file.

A version of a file is its size with its inode and times, or with its ETag in a store. Hashes are
cached in the user's cache folder, never in the dataset, which may be read-only. Without a cache, or
with a damaged one, files are hashed again. `fianchetto verify` ignores the cache.
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
from typing import Any, cast

from engine.cores import cores
from engine.json_files import read_json
from engine.progress import Progress, Stop, Tick, never, silent
from engine.temporaries import new_file
from pipeline.errors import DatasetError, Stopped
from pipeline.storage.stores import catch_store_errors, is_local

CACHE = "FIANCHETTO_CACHE"
"""Environment variable: the folder for cached hashes; else `fianchetto` in the user's cache
folder."""
SETTLED = 2.0
"""Seconds since a file's last change before its hash is cached: a second change within a tick of
the clock would not show."""
THREADS = 4
"""Files that are hashed at a time; hashing takes one core 0.8 s per GB."""
PATIENCE = 0.5
"""Seconds of hashing before `stop` is first polled."""
BLOCK = 1 << 20

Entry = Mapping[str, Any]

_verified: set[tuple[str, str]] = set()
"""Datasets in stores that this process has verified, with their manifests' hashes: listing a store
costs requests."""


def verify_files(
    directory: Path, manifest: Mapping[str, Any], progress: Progress = silent, stop: Stop = never
) -> None:
    """Raise DatasetError if a file of a dataset is missing, or differs from its manifest in size or
    hash.

    Files whose hash is cached are not read. Hashing reports progress in bytes; raises Stopped if
    `stop` returns true.
    """
    entries = manifest["files"]
    key = (
        str(directory),
        hashlib.sha256("".join(entry["sha256"] for entry in entries).encode()).hexdigest(),
    )
    if key in _verified:
        return
    versions = _versions(directory, {entry["name"] for entry in entries})
    for entry in entries:
        size, _ = versions.get(entry["name"], (None, ""))
        if size is None:
            raise _refusal(directory, entry, "it is not on disk")
        if size != entry["bytes"]:
            raise _refusal(directory, entry, f"it has {size:,} bytes, not {entry['bytes']:,}")
    cached = _read_cache(directory)
    hashes = {
        name: cached[name][2]
        for name, version in versions.items()
        if _is_cached(cached.get(name), version)
    }
    hashes |= _hash_files(
        directory, [entry for entry in entries if entry["name"] not in hashes], progress, stop
    )
    for entry in entries:
        if hashes[entry["name"]] != entry["sha256"]:
            raise _refusal(directory, entry, "its hash differs")
    rows = {name: [size, tag, hashes[name]] for name, (size, tag) in versions.items() if tag}
    if rows != cached:
        _write_cache(directory, rows)
    if not is_local(directory):
        _verified.add(key)


def _refusal(directory: Path, entry: Entry, why: str) -> DatasetError:
    return DatasetError(
        f"{directory / entry['name']} cannot be read: it is not the file that the manifest names "
        f"({why}): `fianchetto verify` "
        "lists all such files",
        remedy="ingest the dump again",
        code="damaged",
    )


def _is_cached(row: object, version: tuple[int, str]) -> bool:
    """Return whether a cached row, [size, tag, hash], is of a version of a file."""
    return isinstance(row, list) and len(row) == 3 and version[1] != "" and row[:2] == [*version]


def _versions(directory: Path, names: set[str]) -> dict[str, tuple[int, str]]:
    """Return the size and the version tag of those files of a folder that exist; "" where a later
    change may not show.
    """
    found: dict[str, tuple[int, str]] = {}
    if not is_local(directory):
        store = cast("Any", directory)
        with catch_store_errors(directory), suppress(FileNotFoundError):
            for info in store.fs.ls(store.path, detail=True, refresh=True):
                name = str(info["name"]).rstrip("/").rpartition("/")[2]
                if name in names and info.get("type") != "directory":
                    tags = (
                        info.get(key)
                        for key in ("ETag", "etag", "md5Hash", "generation", "created")
                    )
                    found[name] = int(info["size"] or 0), str(next(filter(None, tags), ""))
        return found
    for name in names:
        with suppress(FileNotFoundError, NotADirectoryError):
            about = (directory / name).stat()
            if stat.S_ISREG(about.st_mode):  # ctime, unlike mtime, cannot be set by a program
                tag = f"{about.st_ino}:{about.st_mtime_ns}:{about.st_ctime_ns}"
                found[name] = about.st_size, tag if time.time() - about.st_ctime > SETTLED else ""
    return found


def _cache_path(directory: Path) -> Path:
    """Return the cache file of a dataset; RuntimeError for a user without a home."""
    named = os.environ.get(CACHE)
    base = (
        Path(named)
        if named
        else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fianchetto"
    )
    place = str(directory.resolve()) if is_local(directory) else str(directory)
    return base / "hashes" / f"{hashlib.sha256(os.fsencode(place)).hexdigest()[:32]}.json"


def _read_cache(directory: Path) -> dict[str, Any]:
    """Return the cached rows of a dataset's files by name; none if there is no cache, or a damaged
    one.
    """
    try:
        found = read_json(_cache_path(directory), DatasetError)
    except (DatasetError, OSError, RuntimeError):
        return {}
    return found if isinstance(found, dict) else {}


def _write_cache(directory: Path, rows: Mapping[str, Any]) -> None:
    """Cache the rows of a dataset's files, if a cache folder is available."""
    with suppress(OSError, RuntimeError):
        path = _cache_path(directory)
        path.parent.mkdir(parents=True, exist_ok=True)
        with new_file(path, sync=False) as file:
            file.write(json.dumps(rows).encode())


def _hash_files(
    directory: Path, entries: Sequence[Entry], progress: Progress, stop: Stop
) -> dict[str, str]:
    """Return the hashes of files by name; raises Stopped."""
    total, done, began, ended = sum(entry["bytes"] for entry in entries), 0, time.monotonic(), False

    def should_stop() -> bool:
        return ended or (time.monotonic() - began > PATIENCE and stop())

    found: dict[str, str] = {}
    with ThreadPoolExecutor(min(THREADS, cores()), "hash") as pool:
        waiting = [
            pool.submit(_hash_file, directory / entry["name"], should_stop) for entry in entries
        ]
        try:
            for entry, future in zip(entries, waiting, strict=True):
                found[entry["name"]] = future.result()
                done += entry["bytes"]
                progress(Tick(done, total, "B", stage="checking hashes"))
        finally:
            ended = True  # the other threads stop too
    return found


def _hash_file(path: Path, stop: Stop) -> str:
    """Return a file's sha256 in hex; raises Stopped."""
    digest = hashlib.sha256()
    with catch_store_errors(path), path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
            if stop():
                raise Stopped(
                    "stopped while the files were compared with their hashes; nothing was written"
                )
    return digest.hexdigest()
