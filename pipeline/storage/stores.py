"""Folders of this machine and of object stores, and files that appear there under their name whole or not at all.

A place is a folder of this machine or of an object store (`s3://bucket/prefix`, `gs://...`, whatever fsspec has a driver
for). Both are used through the methods of `pathlib.Path`: `place` returns a Path for the one and a UPath for the other.

    publish: write -> temporary file -> fsync -> rename            on this machine (engine/temporaries.py)
             write -> nameless file -> one upload                  to a store, where a name appears when its upload is complete

A writer that is killed leaves a temporary file, or an upload that was never completed: neither is seen under a name, and
`pipeline.dataset.files.sweep` deletes both. Nothing of fsspec is imported for a place on this machine.
"""

import hashlib
import json
import mmap
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Semaphore
from typing import IO, Any, cast

from filelock import FileLock, Timeout

from engine.temporaries import abandoned, new_file
from engine.temporaries import sync_directory as sync_directory
from pipeline.errors import ConfigError, StoreError
from pipeline.storage.retry import Patience, Retry

REQUESTS = Patience(attempts=4)
"""For requests to a store; its driver has tried again by itself before."""
GATHERED = 1 << 20
"""Bytes of the write buffer: a Parquet page is some 8 kB."""
SETTLING = 4
"""Files of one writer that are synchronised or uploaded at a time; a file system settles them together."""
AT_ONCE = 1 << 26
"""Bytes of a file that is uploaded from memory; of a larger one only the parts under way are in memory."""

LOCK = ".lock"
"""The lock of a folder of this machine: an empty file."""

_INSTALLED_BY = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}


def is_url(name: str) -> bool:
    """Return whether a name is an address and no path."""
    return "://" in name


def place(name: str | Path) -> Path:
    """Return the folder or file of this machine or of a store that a name means; raises ConfigError for any other address.

    For a store that is a UPath, which is no Path but has all of its methods that are used here.
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
        made = UPath(name, use_listings_cache=False)  # another process may write meanwhile
        made.fs  # noqa: B018 - the driver is imported now, where its absence can be explained
    return cast("Path", made)


@contextmanager
def drivers(scheme: str) -> Iterator[None]:
    """Raise ConfigError where a store's driver is not installed, naming what to install, or its scheme is unknown."""
    try:
        yield
    except ImportError as error:
        extra = _INSTALLED_BY.get(scheme)
        how = f"pip install 'fianchetto[{extra}]'" if extra else str(error)
        raise ConfigError(f"{scheme}:// needs a driver that is not installed: {how}") from error
    except ValueError as error:
        raise ConfigError(f"{scheme}:// is not a known kind of store: {error}") from error


def is_local(where: object) -> bool:
    """Return whether a place is of this machine."""
    return isinstance(where, (str, Path))


def opened(path: Path) -> Any:
    """Open a file for pyarrow, by bytes: it takes the path `run:1/x` for an address, and refuses names that are not UTF-8."""
    if not is_local(path):
        return path.open("rb")
    import pyarrow as pa

    return pa.OSFile(os.fsencode(path))


def read_span(path: Path, begin: int, end: int) -> bytes:
    """Return the bytes of a file from `begin` to before `end`, fewer where it ends before that. Raises OSError."""
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
    """Make a folder, and those above it; a store has no folders, and its buckets are made by their owner."""
    if is_local(folder):
        folder.mkdir(parents=True, exist_ok=True)


def temporaries(folder: Path) -> list[Path]:
    """Return the temporary files that killed writers left in a folder (engine/temporaries.py); a store has none."""
    return abandoned(folder) if is_local(folder) else []


def lock_of(folder: Path) -> FileLock:
    """Return the lock of a folder; that of a store's folder excludes the processes of this machine only.

    No lock is portable between stores. Two machines that ingest the same into one store publish the same bytes, and what
    differs is refused, by `run.json` and by the records of chunks.
    """
    if is_local(folder):
        return FileLock(folder / LOCK, timeout=0)
    digest = hashlib.sha256(str(folder).rstrip("/").encode()).hexdigest()[:16]
    return FileLock(Path(tempfile.gettempdir()) / f"fianchetto-{os.getuid()}-{digest}.lock", timeout=0)


@contextmanager
def alone(folder: Path, busy: Exception) -> Iterator[None]:
    """Make a folder and hold its lock meanwhile; raises `busy` where another process holds it."""
    make_folder(folder)
    with locked(lock_of(folder), busy):
        yield


@contextmanager
def locked(lock: FileLock, busy: Exception, seconds: float = 0.0) -> Iterator[None]:
    """Hold a lock meanwhile; raises `busy` where another process holds it, after waiting for `seconds`."""
    try:
        lock.acquire(timeout=seconds)
    except Timeout as error:
        raise busy from error
    try:
        yield
    finally:
        lock.release()


def store_errors() -> tuple[type[Exception], ...]:
    """Return the errors of stores and networks: OSError, and those of the drivers that are loaded."""
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
    """Turn the errors of a store into a StoreError of one line; errors of this machine pass."""
    try:
        yield
    except store_errors() as error:
        if is_local(where) or isinstance(error, StoreError):
            raise
        raise StoreError(f"{where}: {one_line(error)}") from error


def one_line(error: BaseException) -> str:
    """Return in one line what a driver said."""
    said = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(said).split())[:300]


def is_credentials(error: Exception) -> bool:
    """Return whether a driver misses credentials, which no second request brings."""
    return "Credentials" in type(error).__name__


def persist(what: str, request: Callable[[], Any]) -> Any:
    """Return what a request to a store returns, made again where that may help; raises StoreError."""

    def refused(error: Exception, last: bool) -> StoreError | None:
        hopeless = isinstance(error, PermissionError | FileNotFoundError | IsADirectoryError) or is_credentials(error)
        return StoreError(f"{what}: {one_line(error)}") if hopeless or last else None

    return Retry(REQUESTS).run(request, store_errors, refused)


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


def unguarded(directory: Path, file: Published) -> None:
    """Let any file get its name."""


def _written(
    directory: Path, name: str, rows: int, write: Callable[[Any], None], guard: Guard
) -> tuple[Published, Callable[[], None]]:
    """Let `write` fill a file; return what it will be, and the function that synchronises it and gives it its name."""
    if not is_local(directory):
        return _written_for_store(directory, name, rows, write, guard)
    with ExitStack() as stack:
        named = new_file(directory / name, buffering=GATHERED, before_rename=lambda: guard(directory, published))
        file = stack.enter_context(named)
        target = _HashingFile(file)
        write(target)
        target.flush()
        published = Published(name, rows, file.tell(), target.hash.hexdigest())
        return published, stack.pop_all().close


def publish(directory: Path, name: str, rows: int, write: Callable[[Any], None], guard: Guard = unguarded) -> Published:
    """Let `write` fill a file, which gets its name only when it is whole and on the disk; return what it is.

    The name appears by atomic rename after fsync, in a store by the end of one upload; whatever stops the writing leaves
    nothing under the name, and the temporary file is deleted. Raises StoreError, an OSError, and what `guard` raises.
    """
    published, settle = _written(directory, name, rows, write, guard)
    settle()
    return published


class Publisher:
    """Publishes files one after another as `publish` does; some are synchronised or uploaded while the next is written.

    All have their names when it closes without an exception. At most SETTLING files are under way. Waiting for each would take
    a thirtieth to an eighth of an ingest's time on a disk, and most of it with a store.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(SETTLING, "publish")
        self._coming: list[Future[None]] = []
        self._room = Semaphore(SETTLING)

    def __enter__(self) -> "Publisher":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Wait for all files; raises the error of the first that failed, unless another error is on its way."""
        self._pool.shutdown()
        if kind is None:
            for one in self._coming:
                one.result()

    def publish(
        self, directory: Path, name: str, rows: int, write: Callable[[Any], None], guard: Guard = unguarded
    ) -> Published:
        """Let `write` fill a file, and return what it will be; what `write` raises is raised here, the name appears later."""
        self._room.acquire()
        try:
            published, settle = _written(directory, name, rows, write, guard)
            future = self._pool.submit(settle)
        except BaseException:
            self._room.release()
            raise
        future.add_done_callback(lambda _: self._room.release())
        self._coming.append(future)
        return published


def _written_for_store(
    directory: Path, name: str, rows: int, write: Callable[[Any], None], guard: Guard
) -> tuple[Published, Callable[[], None]]:
    """Let `write` fill a nameless file of this machine; return what it will be, and the function that uploads it.

    A large file goes in parts, which the store joins at the end.
    """
    path = cast("Any", directory / name)

    def upload() -> None:
        with held:
            guard(directory, published)
            if published.bytes <= AT_ONCE:
                file.seek(0)
                data = file.read()
                persist(str(path), lambda: path.fs.pipe_file(path.path, data))
                return
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                persist(str(path), lambda: path.fs.pipe_file(path.path, mapped, chunksize=AT_ONCE // 4))

    with ExitStack() as stack:
        file = stack.enter_context(tempfile.TemporaryFile())
        target = _HashingFile(file)
        write(target)
        file.flush()
        published = Published(name, rows, file.tell(), target.hash.hexdigest())
        held = stack.pop_all()
        return published, upload


def publish_json(directory: Path, name: str, content: Mapping[str, Any], guard: Guard = unguarded) -> Published:
    """Publish a JSON file, keys in their order, indented by two spaces.

    It vouches for other files, of its folder or the one above, so the renames of those are synchronised first.
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
    """Return a file's sha256 in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
