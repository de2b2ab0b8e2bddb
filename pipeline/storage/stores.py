"""Where files lie, and how one gets its name there: whole or not at all.

A place is a folder of this machine or of an object store (`s3://bucket/prefix`, `gs://...`, whatever fsspec has a driver
for). Both are used through the methods of `pathlib.Path`: `place` gives a Path for the one and a UPath for the other.

    publish: write -> temporary file -> fsync -> rename            on this machine
             write -> nameless file -> one upload                  to a store, where a name appears when its upload is complete

A writer that is killed leaves a temporary file, or an upload that was never completed: neither is seen under a name, and
`pipeline.dataset.files.sweep` takes both away. Nothing of fsspec is imported for a place on this machine.
"""

import hashlib
import json
import mmap
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from filelock import FileLock, Timeout

from engine.temporaries import abandoned, temporary_name
from pipeline.errors import ConfigError, StoreError

ATTEMPTS = 4
"""Times that an upload is tried; the drivers try again by themselves before."""
GATHERED = 1 << 20
"""Bytes that are gathered before the system is asked to write them: a Parquet page is some 8 kB."""
SETTLING = 4
"""Files of one writer that are on their way to the disk at a time; a file system settles them together."""
AT_ONCE = 1 << 26
"""Bytes of a file that is held in memory for its upload; of a larger one only the parts under way are."""

LOCK = ".lock"
"""The lock of a folder of this machine: an empty file."""

_INSTALLED_BY = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}


def is_url(name: str) -> bool:
    """Tell whether a name is an address and no path."""
    return "://" in name


def place(name: str | Path) -> Path:
    """Give a folder or file of this machine or of a store by its name; raises ConfigError for an address of neither.

    What is given for a store is a UPath, which is no Path but has all the methods of one that are used here.
    """
    if isinstance(name, Path) or not is_local(name):
        return cast("Path", name)
    scheme, found, rest = name.partition("://")
    if not found:
        return Path(name)
    if scheme == "file":
        return Path(rest)
    if scheme in ("http", "https"):
        raise ConfigError(f"{name}: the web can be read from and not written to")
    from upath import UPath

    with drivers(scheme):
        made = UPath(name, use_listings_cache=False)  # another process may have written since it was last listed
        made.fs  # noqa: B018 - the driver is imported now, where its absence can be explained
    return cast("Path", made)


@contextmanager
def drivers(scheme: str) -> Iterator[None]:
    """Say what to install where the driver of a store is not there, and refuse a scheme that nobody knows."""
    try:
        yield
    except ImportError as error:
        extra = _INSTALLED_BY.get(scheme)
        how = f"pip install 'fianchetto[{extra}]'" if extra else str(error)
        raise ConfigError(f"{scheme}:// needs a driver that is not installed: {how}") from error
    except ValueError as error:
        raise ConfigError(f"{scheme}:// is no kind of store that is known here: {error}") from error


def is_local(where: object) -> bool:
    """Tell whether a place is of this machine."""
    return isinstance(where, (str, Path))


def opened(path: Path) -> Any:
    """Give what pyarrow and polars take for a file: its path on this machine, an open file of a store."""
    return path if is_local(path) else path.open("rb")


def read_span(path: Path, begin: int, end: int) -> bytes:
    """Read a part of a file, its bytes from `begin` to before `end`; fewer where it ends before that. Raises OSError."""
    if not is_local(path):
        store = cast("Any", path)
        data: bytes = b""
        if begin < end:
            data = persist(str(path), lambda: store.fs.cat_file(store.path, start=begin, end=end))
        return data
    with path.open("rb") as file:
        file.seek(begin)
        return file.read(end - begin)


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it; a store has no folders, and its buckets are their owner's to make."""
    if is_local(folder):
        folder.mkdir(parents=True, exist_ok=True)


def temporaries(folder: Path) -> list[Path]:
    """List the temporary files that killed writers left in a folder (engine/temporaries.py); stores have none."""
    return abandoned(folder) if is_local(folder) else []


def lock_of(folder: Path) -> FileLock:
    """Give the lock of a dataset's folder. A store's keeps off the processes of this machine only.

    Two machines that ingest the same into one store publish the same bytes, and what differs is refused, by `run.json` and by
    the notes of chunks; no lock is portable between stores.
    """
    if is_local(folder):
        return FileLock(folder / LOCK, timeout=0)
    digest = hashlib.sha256(str(folder).rstrip("/").encode()).hexdigest()[:16]
    return FileLock(Path(tempfile.gettempdir()) / f"fianchetto-{os.getuid()}-{digest}.lock", timeout=0)


@contextmanager
def alone(folder: Path, busy: Exception) -> Iterator[None]:
    """Make a folder of this machine and keep others out of it meanwhile; raises `busy` where somebody is at work there."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = lock_of(folder)
    try:
        lock.acquire()
    except Timeout as error:
        raise busy from error
    try:
        yield
    finally:
        lock.release()


def store_errors() -> tuple[type[Exception], ...]:
    """Give what may be raised of a store or network: OSError, and what the drivers that are loaded have beside it."""
    names = {
        "botocore.exceptions": ("BotoCoreError", "ClientError"),
        "aiohttp": ("ClientError",),
        "gcsfs.retry": ("HttpError",),
        "google.auth.exceptions": ("GoogleAuthError",),
    }
    loaded = [(sys.modules[module], found) for module, found in names.items() if module in sys.modules]
    return (OSError, *(getattr(module, name) for module, found in loaded for name in found))


@contextmanager
def reached(where: Path) -> Iterator[None]:
    """Turn what goes wrong with a store into a StoreError of one line; what goes wrong on this machine passes."""
    try:
        yield
    except store_errors() as error:
        if is_local(where) or isinstance(error, StoreError):
            raise
        raise StoreError(f"{where}: {_plain(error)}") from error


def _plain(error: BaseException) -> str:
    """Say in one line what a driver said."""
    said = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(said).split())[:300]


def persist(what: str, request: Callable[[], Any], attempts: int = ATTEMPTS) -> Any:
    """Do a request to a store, again when it fails and might not; raises StoreError."""
    for attempt in range(1, attempts + 1):
        try:
            return request()
        except (PermissionError, FileNotFoundError, IsADirectoryError) as error:
            raise StoreError(f"{what}: {_plain(error)}") from error
        except store_errors() as error:
            if attempt == attempts or "Credentials" in type(error).__name__:
                raise StoreError(f"{what}: {_plain(error)}") from error
            time.sleep(0.5 * 2.0**attempt)
    raise AssertionError("attempts is at least 1")


@dataclass(frozen=True, slots=True)
class Published:
    """A file under its final name."""

    name: str
    rows: int
    bytes: int
    sha256: str


Guard = Callable[[Path, Published], None]
"""What is called with a file's folder when it is whole and before it gets its name; what it raises is raised instead."""


class _HashingFile:
    """A file that is hashed as it is written."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.hash = hashlib.sha256()
        self.closed = False

    def write(self, data: Any) -> int:
        self.hash.update(data)
        return self.file.write(data)

    def flush(self) -> None:
        self.file.flush()

    def close(self) -> None:
        self.closed = True


def sync_directory(directory: Path) -> None:
    """Make a rename last through a power cut, so that no manifest outlives a shard it names; a no-op where unsupported."""
    with suppress(OSError):
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def unguarded(directory: Path, file: Published) -> None:
    """Let any file get its name."""


def _written(
    directory: Path, name: str, rows: int, write: Callable[[Any], None], guard: Guard
) -> tuple[Published, Callable[[], None]]:
    """Let `write` fill a file: give what it will be, and what brings it to the disk and then gives it its name."""
    if not is_local(directory):
        return _publish_to_store(directory, name, rows, write, guard), lambda: None
    temporary = directory / temporary_name(name)
    target = _HashingFile(temporary.open("wb", buffering=GATHERED))

    @contextmanager
    def or_nothing() -> Iterator[None]:
        try:
            yield
        except BaseException:
            with suppress(OSError):  # on a full disk closing fails as writing did
                target.file.close()
            temporary.unlink(missing_ok=True)
            raise

    def settle() -> None:
        with or_nothing():
            os.fsync(target.file.fileno())
            target.file.close()
            guard(directory, published)
            temporary.replace(directory / name)

    with or_nothing():
        write(target)
        target.file.flush()
        size = target.file.tell()
    published = Published(name, rows, size, target.hash.hexdigest())
    return published, settle


def publish(directory: Path, name: str, rows: int, write: Callable[[Any], None], guard: Guard = unguarded) -> Published:
    """Let `write` fill a file and give it its final name only when it is whole and on disk.

    The name appears by atomic rename after fsync, in a store by the end of one upload; whatever stops the writing leaves
    nothing under the name, and the temporary file is taken away. Raises StoreError, an OSError, and what `guard` raises.
    """
    published, settle = _written(directory, name, rows, write, guard)
    settle()
    return published


class Publisher:
    """Publishes files one after another as `publish` does; one is brought to the disk while the next is written.

    All have their names when it closes without an exception. Of the time that a chunk takes, waiting for the disk is a
    thirtieth to an eighth otherwise, by the disk's hour.
    """

    def __init__(self) -> None:
        """Start no thread before there is a file."""
        self._pool = ThreadPoolExecutor(SETTLING, "publish")
        self._coming: list[Future[None]] = []

    def __enter__(self) -> "Publisher":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Wait for all; raises the error of the first that failed, unless something else has gone wrong already."""
        self._pool.shutdown()
        if kind is None:
            for one in self._coming:
                one.result()

    def publish(
        self, directory: Path, name: str, rows: int, write: Callable[[Any], None], guard: Guard = unguarded
    ) -> Published:
        """Let `write` fill a file: what it raises is raised here; the name appears later."""
        published, settle = _written(directory, name, rows, write, guard)
        self._coming.append(self._pool.submit(settle))
        return published


def _publish_to_store(directory: Path, name: str, rows: int, write: Callable[[Any], None], guard: Guard) -> Published:
    """Write a nameless file of this machine, then upload it; a large one goes in parts, which the store joins at the end."""
    path = cast("Any", directory / name)
    with tempfile.TemporaryFile() as file:
        target = _HashingFile(file)
        write(target)
        file.flush()
        size = file.tell()
        published = Published(name, rows, size, target.hash.hexdigest())
        guard(directory, published)
        if size <= AT_ONCE:
            file.seek(0)
            data = file.read()
            persist(str(path), lambda: path.fs.pipe_file(path.path, data))
        else:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                persist(str(path), lambda: path.fs.pipe_file(path.path, mapped, chunksize=AT_ONCE // 4))
    return published


def publish_json(directory: Path, name: str, content: Mapping[str, Any], guard: Guard = unguarded) -> Published:
    """Publish a JSON file, keys in their order, two spaces deep.

    Notes and manifests vouch for other files, of their folder or the one above, so the names of those are made to last first.
    """
    local = is_local(directory)
    if local:
        sync_directory(directory.parent)
        sync_directory(directory)
    text = json.dumps(content, indent=2, allow_nan=False).encode() + b"\n"
    published = publish(directory, name, 0, lambda target: target.write(text), guard)
    if local:
        sync_directory(directory)
    return published


def file_hash(path: Path) -> str:
    """Give a file's sha256 in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
