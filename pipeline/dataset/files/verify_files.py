"""Verify a dataset's files against its manifest: sizes on every open, hashes once per version.

A version of a file is its size with its inode and times. Hashes of verified versions are cached in
the user's cache folder, never in the dataset, which may be read-only: those of the files that this
machine wrote when they are published, others when a folder is first opened. Without a cache, or
with a damaged one, files are hashed again. In a store only sizes are compared, since hashing would
download everything. `fianchetto verify` hashes all files, and ignores the cache.
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
KEPT = 180 * 86_400.0
"""Seconds that a dataset's cached hashes are kept: many datasets are temporary."""
THREADS = 4
"""Files that are hashed at a time; hashing takes one core 0.8 s per GB."""
PATIENCE = 0.5
"""Seconds of hashing before `stop` is first polled."""
BLOCK = 1 << 20

Entry = Mapping[str, Any]


def verify_files(
    directory: Path, manifest: Mapping[str, Any], progress: Progress = silent, stop: Stop = never
) -> None:
    """Raise DatasetError if a file of a dataset is missing, or differs from its manifest in size or
    hash.

    Files whose hash is cached are not read. Hashing reports progress in bytes; raises Stopped if
    `stop` returns true.
    """
    entries = manifest["files"]
    if not is_local(directory):
        _compare_sizes(directory, entries, _list_sizes(directory))
        return
    versions = _versions(directory, entries)
    _compare_sizes(directory, entries, {name: size for name, (size, _) in versions.items()})
    cached = _read_cache(directory)
    hashes = {
        name: cached[name][2]
        for name, version in versions.items()
        if _is_cached(cached.get(name), version)
    }
    unknown = [entry for entry in entries if entry["name"] not in hashes]
    settled = time.time() - SETTLED
    hashes |= _hash_files(directory, unknown, progress, stop)
    for entry in entries:
        if hashes[entry["name"]] != entry["sha256"]:
            raise _refusal(directory, entry, "its hash differs")
    unsettled = {e["name"] for e in unknown if _changed(versions[e["name"]]) > settled}
    rows = {
        name: [*version, hashes[name]]
        for name, version in versions.items()
        if name not in unsettled
    }
    if rows != cached:
        _write_cache(directory, rows)


def remember_files(directory: Path, manifest: Mapping[str, Any]) -> None:
    """Cache the hashes of files that were just written, so that opening them hashes nothing."""
    if is_local(directory):
        versions = _versions(directory, manifest["files"])
        hashes = {entry["name"]: entry["sha256"] for entry in manifest["files"]}
        rows = {name: [*version, hashes[name]] for name, version in versions.items()}
        _write_cache(directory, rows)


def _compare_sizes(directory: Path, entries: Sequence[Entry], sizes: Mapping[str, int]) -> None:
    """Raise DatasetError for a file that is missing or has another size."""
    for entry in entries:
        size = sizes.get(entry["name"])
        if size is None:
            raise _refusal(directory, entry, "it is not on disk")
        if size != entry["bytes"]:
            raise _refusal(directory, entry, f"it has {size:,} bytes, not {entry['bytes']:,}")


def _refusal(directory: Path, entry: Entry, why: str) -> DatasetError:
    return DatasetError(
        f"{directory / entry['name']} cannot be read: it is not the file that the manifest names "
        f"({why}): `fianchetto verify` lists all such files",
        remedy="ingest the dump again",
        code="damaged",
    )


def _is_cached(row: object, version: tuple[int, str]) -> bool:
    """Return whether a cached row, [size, tag, hash], is of a version of a file."""
    return isinstance(row, list) and len(row) == 3 and row[:2] == [*version]


def _changed(version: tuple[int, str]) -> float:
    """Return when a version of a file was made, in seconds."""
    return int(version[1].rpartition(":")[2]) / 1e9


def _versions(directory: Path, entries: Sequence[Entry]) -> dict[str, tuple[int, str]]:
    """Return the size and the version tag of those files of a local folder that exist."""
    found: dict[str, tuple[int, str]] = {}
    for entry in entries:
        with suppress(FileNotFoundError, NotADirectoryError):
            about = (directory / entry["name"]).stat()
            if stat.S_ISREG(about.st_mode):  # ctime, unlike mtime, cannot be set by a program
                tag = f"{about.st_ino}:{about.st_mtime_ns}:{about.st_ctime_ns}"
                found[entry["name"]] = about.st_size, tag
    return found


def _list_sizes(directory: Path) -> dict[str, int]:
    """Return the sizes of the files of a store's folder, by one request."""
    store, found = cast("Any", directory), dict[str, int]()
    with catch_store_errors(directory), suppress(FileNotFoundError):
        for info in store.fs.ls(store.path, detail=True, refresh=True):
            if info.get("type") != "directory":
                name = str(info["name"]).rstrip("/").rpartition("/")[2]
                found[name] = int(info["size"] or 0)
    return found


def _cache_path(directory: Path) -> Path:
    """Return the cache file of a dataset; RuntimeError for a user without a home."""
    named = os.environ.get(CACHE)
    base = (
        Path(named)
        if named
        else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fianchetto"
    )
    name = hashlib.sha256(os.fsencode(directory.resolve())).hexdigest()[:32]
    return base / "hashes" / f"{name}.json"


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
        for old in path.parent.glob("*.json"):
            if old.stat().st_mtime < time.time() - KEPT:
                old.unlink()


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
