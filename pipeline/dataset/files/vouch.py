"""Files are held against their manifest before they are used: sizes always, hashes once a version of a file, remembered.

What has been hashed is remembered in the user's cache folder, never in the dataset, which may be read-only and is not ours to
write to: a line a file, by its size and what tells its version (inode and times here, the ETag in a store). Where nothing can
be remembered, or what was is damaged, files are hashed again. `fianchetto verify` believes no memory.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from filelock import FileLock, Timeout

from engine.json_files import read_json
from engine.progress import Progress, Stop, Tick, never, silent
from engine.temporaries import new_file
from pipeline.errors import DatasetError, Stopped
from pipeline.storage.stores import is_local, reached

CACHE = "FIANCHETTO_CACHE"
"""Environment variable: the folder where hashes are remembered, else `fianchetto` in the user's cache folder."""
SETTLED = 2.0
"""Seconds since a file's last change before its hash is remembered: within a clock's tick a second change shows no trace."""
THREADS = 4
"""Files that are hashed at a time; hashing is a core's work, 0.8 s a GB."""
PATIENCE = 0.5
"""Seconds of hashing before it asks whether to stop: what takes no time is not what anybody wanted to stop."""
BLOCK = 1 << 20

Entry = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Version:
    """A file as it lies: whoever changes it changes this."""

    size: int
    tag: str
    """Empty where nothing tells one version from another of the same size."""
    changed: float = 0.0
    """When it was changed last, seconds; of this machine's files."""

    @property
    def lasting(self) -> bool:
        """Tell whether a later change would show."""
        return bool(self.tag) and time.time() - self.changed > SETTLED


_known: dict[str, tuple[Version, str]] = {}
"""Hashes that this process has found or read, by the path of the file."""
_listed: set[tuple[str, str]] = set()
"""Datasets of stores that this process has vouched for, with their manifests' files: a listing costs requests."""


def vouch(directory: Path, manifest: Mapping[str, Any], progress: Progress = silent, stop: Stop = never) -> None:
    """Raise DatasetError where a file of a dataset is not the one that its manifest names: missing, of another size or hash.

    Quick where all is remembered. Hashing ticks bytes; raises Stopped when `stop` says so.
    """
    entries = manifest["files"]
    digest = hashlib.sha256("".join(entry["sha256"] for entry in entries).encode()).hexdigest()
    if (str(directory), digest) in _listed:
        return
    versions = _versions(directory, [entry["name"] for entry in entries])
    for entry in entries:
        _check_size(directory, entry, versions.get(entry["name"]))
    with _memory(directory, stop) as memory:
        for entry in entries:
            _recall(directory / entry["name"], versions[entry["name"]], memory.get(entry["name"]))
        new = [entry for entry in entries if _hash_known(directory / entry["name"], versions[entry["name"]]) is None]
        found = _hashed(directory, new, versions, progress, stop)
        for entry in entries:
            version = versions[entry["name"]]
            actual = found.get(entry["name"]) or _hash_known(directory / entry["name"], version)
            if actual != entry["sha256"]:
                raise _refusal(directory, entry, "its hash differs")
        memory.update(_rows(directory, versions))
    if not is_local(directory):
        _listed.add((str(directory), digest))


def hash_of(path: Path) -> str:
    """Hash a file, whatever is remembered of it, and remember that for this process."""
    version = _versions(path.parent, [path.name]).get(path.name)
    digest = _hash(path, lambda count: None, never)
    if version is not None and version.lasting:
        _known[str(path)] = (version, digest)
    return digest


def _refusal(directory: Path, entry: Entry, why: str) -> DatasetError:
    return DatasetError(
        f"{directory / entry['name']} cannot be read: it is not the file that the manifest names ({why}): `fianchetto verify` "
        "lists all such files; ingest the dump again"
    )


def _check_size(directory: Path, entry: Entry, version: Version | None) -> None:
    if version is None:
        raise DatasetError(f"{directory / entry['name']} is in the manifest and not on disk: ingest the dump again")
    if version.size != entry["bytes"]:
        raise _refusal(directory, entry, f"it has {version.size:,} bytes, not {entry['bytes']:,}")


def _versions(directory: Path, names: Sequence[str]) -> dict[str, Version]:
    """Look at files of a folder, those that are there."""
    found: dict[str, Version] = {}
    if not is_local(directory):
        wanted, store = set(names), cast("Any", directory)
        with reached(directory), suppress(FileNotFoundError):
            for info in store.fs.ls(store.path, detail=True, refresh=True):
                name = str(info["name"]).rstrip("/").rpartition("/")[2]
                if name in wanted and info.get("type") != "directory":
                    found[name] = Version(int(info["size"] or 0), _tag(info))
        return found
    for name in names:
        with suppress(FileNotFoundError, NotADirectoryError):
            about = (directory / name).stat()
            tag = f"{about.st_ino}:{about.st_mtime_ns}:{about.st_ctime_ns}"
            if (directory / name).is_file():
                found[name] = Version(
                    about.st_size, tag, about.st_ctime
                )  # which no program can set, as it can the other
    return found


def _tag(info: Mapping[str, Any]) -> str:
    """Give what a store says of an object's version."""
    return next(
        (str(info[name]) for name in ("ETag", "etag", "md5Hash", "generation", "created") if info.get(name)), ""
    )


# ---------------------------------------------------------------- what is remembered


def cache_folder(name: str) -> Path:
    """Return the user's folder for what can be found again; RuntimeError for a user without a home."""
    named = os.environ.get(CACHE)
    base = Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fianchetto"
    return base / name


@contextmanager
def _memory(directory: Path, stop: Stop) -> Iterator[dict[str, Any]]:
    """Give what is remembered of a dataset's files, by name, alone; what is in it at the end is remembered, if it can be."""
    place = str(directory.resolve()) if is_local(directory) else str(directory)
    try:
        path = (
            cache_folder("hashes") / f"{hashlib.sha256(place.encode(errors='surrogateescape')).hexdigest()[:32]}.json"
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path.with_suffix(".lock"))
        while True:
            try:
                lock.acquire(timeout=0.5)
                break
            except Timeout:  # another process hashes the same
                if stop():
                    raise Stopped("stopped while another process compares the files with their hashes") from None
    except (OSError, RuntimeError):  # it cannot be written, or this user has no home
        yield {}
        return
    try:
        before = _read(path)
        memory = dict(before)
        yield memory
        if memory != before:
            with suppress(OSError), new_file(path, sync=False) as file:
                file.write(json.dumps(memory).encode())
    finally:
        lock.release()


def _read(path: Path) -> dict[str, Any]:
    """Read what was remembered; nothing, where it is damaged."""
    try:
        found = read_json(path, DatasetError)
    except (DatasetError, FileNotFoundError):
        return {}
    return found if isinstance(found, dict) else {}


def _rows(directory: Path, versions: Mapping[str, Version]) -> dict[str, Any]:
    """Write what is worth remembering."""
    found = {}
    for name, version in versions.items():
        digest = _hash_known(directory / name, version)
        if digest is not None and version.lasting:
            found[name] = [version.size, version.tag, digest]
    return found


def _recall(path: Path, version: Version, row: object) -> None:
    """Take a remembered hash for true, if it is of this version of the file."""
    if not isinstance(row, list) or len(row) != 3 or row[:2] != [version.size, version.tag]:
        return
    if isinstance(row[2], str) and _hash_known(path, version) is None:
        _known[str(path)] = (version, row[2])


def _hash_known(path: Path, version: Version) -> str | None:
    """Give the hash of a version of a file, None where it must be found."""
    known = _known.get(str(path))
    return known[1] if known is not None and (known[0].size, known[0].tag) == (version.size, version.tag) else None


# ---------------------------------------------------------------- hashing


def _hashed(
    directory: Path, entries: Sequence[Entry], versions: Mapping[str, Version], progress: Progress, stop: Stop
) -> dict[str, str]:
    """Hash files, and keep in mind what a later change would show of."""
    found: dict[str, str] = {}
    total, done = sum(entry["bytes"] for entry in entries), 0
    began, ended = time.monotonic(), False

    def read(count: int) -> None:
        nonlocal done
        done += count

    def asked() -> bool:
        return ended or (time.monotonic() - began > PATIENCE and stop())

    with ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1), "hash") as pool:
        names = {pool.submit(_hash, directory / entry["name"], read, asked): entry["name"] for entry in entries}
        try:
            for future in as_completed(names):
                name = names[future]
                found[name] = future.result()
                progress(Tick(done, total, "B", {}))
                if versions[name].lasting:
                    _known[str(directory / name)] = (versions[name], found[name])
        finally:
            ended = True
    return found


def _hash(path: Path, read: Callable[[int], None], stop: Stop) -> str:
    """Hash a file, in hex; raises Stopped."""
    digest = hashlib.sha256()
    with reached(path), path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
            read(len(block))
            if stop():
                raise Stopped("stopped while the files were compared with their hashes; nothing was written")
    return digest.hexdigest()
