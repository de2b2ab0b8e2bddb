"""Use local and object-store folders (`s3://bucket/prefix`) through the methods of `pathlib.Path`.

`parse_path` returns a Path for a local folder and a UPath for a store.

    publish: write -> temporary file -> fsync -> rename     on this machine (engine/temporaries.py)
             write -> temporary file -> one upload          to a store

A file therefore appears under its name only when it is complete. fsspec is not imported for local
folders.
"""

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from filelock import FileLock, Timeout

from engine.progress import Stop, never
from engine.temporaries import replace_file, sync_directory
from pipeline.errors import ConfigError, Stopped, StoreError

BUFFER_BYTES = 1 << 20
"""Bytes that are buffered before a write, since a Parquet page has only about 8 kB."""
MAX_PENDING_FILES = 4
"""Maximum number of files that are fsynced or uploaded concurrently."""
LOCK_FILE = ".lock"
"""Name of the lock file in a local folder, which is empty."""
STORE_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "hf": "hf"}
STORE_EXTRAS |= dict.fromkeys(("az", "abfs", "abfss"), "")
"""Supported schemes, with the extra of this package that installs the driver, if there is one."""


def is_url(name: str) -> bool:
    """Return whether a name is a URL and not a path."""
    return "://" in name


def parse_path(name: str | Path) -> Path:
    """Return a local Path, or a UPath for a store; raises ConfigError for an unusable store."""
    if isinstance(name, Path) or not is_local(name):
        return cast("Path", name)
    scheme, separator, rest = name.partition("://")
    if not separator or scheme == "file":
        return Path(rest if separator else name)
    if scheme not in STORE_EXTRAS:
        raise ConfigError(
            f"{scheme}:// is not a supported store: use {'://, '.join(STORE_EXTRAS)}://"
        )
    from upath import UPath

    try:
        # no cached listings, since other processes may write there
        path = UPath(name, use_listings_cache=False)
        path.fs  # noqa: B018 - imports the driver, so that its absence is reported here
    except ImportError as error:
        how = (
            f"pip install 'fianchetto[{STORE_EXTRAS[scheme]}]'"
            if STORE_EXTRAS[scheme]
            else str(error)
        )
        raise ConfigError(f"{scheme}:// needs a driver that is not installed: {how}") from error
    except ValueError as error:
        raise ConfigError(f"{name}: {shorten_error(error)}") from error
    return cast("Path", path)


def is_local(where: object) -> bool:
    """Return whether a path, as returned by `parse_path`, is on this machine and not in a store."""
    return isinstance(where, (str, Path))


def open_for_arrow(path: Path) -> Any:
    """Open a file for pyarrow, which would take a path such as `run:1/x` for a URL."""
    if not is_local(path):
        return path.open("rb")
    import pyarrow as pa

    return pa.OSFile(os.fsencode(path))


def make_folder(folder: Path) -> None:
    """Create a local folder and its parents; a store needs no folders."""
    if is_local(folder):
        folder.mkdir(parents=True, exist_ok=True)


def make_folder_lock(folder: Path) -> FileLock:
    """Return the lock of a folder; for a store, it only excludes processes on this machine.

    Stores have no common locking. Two machines that ingest the same dumps into one store publish
    the same bytes, and `job.json` and the notes of chunks reveal any difference.
    """
    if is_local(folder):
        return FileLock(folder / LOCK_FILE, timeout=0)
    digest = hashlib.sha256(str(folder).rstrip("/").encode()).hexdigest()[:16]
    name = f"fianchetto-{os.getuid()}-{digest}.lock"
    return FileLock(Path(tempfile.gettempdir()) / name, timeout=0)


@contextmanager
def hold_lock(lock: FileLock, busy: Exception, seconds: float = 0.0) -> Iterator[None]:
    """Hold a lock during the block; raises `busy` if it cannot be acquired within `seconds`."""
    try:
        lock.acquire(timeout=seconds)
    except Timeout as error:
        raise busy from error
    try:
        yield
    finally:
        lock.release()


def list_store_errors() -> tuple[type[Exception], ...]:
    """Return the exception types that the loaded drivers of stores raise."""
    errors_by_module = (
        ("botocore.exceptions", "BotoCoreError"),
        ("botocore.exceptions", "ClientError"),
        ("aiohttp", "ClientError"),
        ("gcsfs.retry", "HttpError"),
        ("google.auth.exceptions", "GoogleAuthError"),
    )
    loaded = (getattr(sys.modules[at], name) for at, name in errors_by_module if at in sys.modules)
    return (OSError, *loaded)


@contextmanager
def catch_store_errors(where: Path) -> Iterator[None]:
    """Convert the errors of a store to a one-line StoreError; local errors are not converted."""
    try:
        yield
    except list_store_errors() as error:
        if is_local(where) or isinstance(error, StoreError):
            raise
        raise StoreError(f"{where}: {shorten_error(error)}") from error


def shorten_error(error: BaseException) -> str:
    """Return an error's message on one line of at most 300 characters."""
    message = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(message).split())[:300]


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """Name, rows, size and hash of a published file."""

    name: str
    rows: int
    bytes: int
    sha256: str


class _HashingFile:
    """A file whose content is hashed while it is written."""

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


def _write_unpublished(
    directory: Path, name: str, rows: int, write: Callable[[Any], None]
) -> tuple[PublishedFile, Callable[[], None]]:
    """Write a new file; return its description and a function that publishes it."""
    path, local = directory / name, is_local(directory)
    with ExitStack() as stack:
        opened: Any = (
            replace_file(path, buffering=BUFFER_BYTES) if local else tempfile.NamedTemporaryFile()  # noqa: SIM115
        )
        file = stack.enter_context(opened)
        target = _HashingFile(file)
        write(target)
        target.flush()
        published = PublishedFile(name, rows, file.tell(), target.hash.hexdigest())
        still_open = stack.pop_all()
    if local:
        return published, still_open.close

    def upload() -> None:
        store = cast("Any", path)
        with still_open, catch_store_errors(path):
            store.fs.put_file(file.name, store.path)

    return published, upload


def publish(directory: Path, name: str, rows: int, write: Callable[[Any], None]) -> PublishedFile:
    """Write a file and publish it once it is complete and on disk; return its description.

    `write` is called with the open file. If it fails, no file is left. Raises StoreError or an
    OSError.
    """
    published, finish = _write_unpublished(directory, name, rows, write)
    finish()
    return published


def publish_bytes(directory: Path, name: str, content: bytes) -> PublishedFile:
    """Publish a file with the given content."""
    return publish(directory, name, 0, lambda target: target.write(content))


Publish = Callable[[Path, str, int, Callable[[Any], None]], PublishedFile]


@contextmanager
def publish_in_background() -> Iterator[Publish]:
    """Yield a function like `publish` that fsyncs or uploads a file while the next one is written.

    Every file has been published when the block exits. Waiting for each file would take 3 to 12 %
    of an ingest's time on a disk, and most of its time with a store. Raises the first error.
    """
    pending: list[Future[None]] = []

    def publish_later(
        directory: Path, name: str, rows: int, write: Callable[[Any], None]
    ) -> PublishedFile:
        published, finish = _write_unpublished(directory, name, rows, write)
        pending.append(pool.submit(finish))
        return published

    with ThreadPoolExecutor(MAX_PENDING_FILES, "publish") as pool:
        yield publish_later
    for file in pending:
        file.result()


def publish_json(directory: Path, name: str, content: Mapping[str, Any]) -> PublishedFile:
    """Publish JSON, once the renames of the other files in its folder are on disk."""
    text = json.dumps(content, indent=2, allow_nan=False).encode() + b"\n"
    if not is_local(directory):
        return publish_bytes(directory, name, text)
    sync_directory(directory.parent)
    sync_directory(directory)
    published = publish_bytes(directory, name, text)
    sync_directory(directory)
    return published


def hash_file(path: Path, stop: Stop = never) -> str:
    """Return a file's SHA-256 in hex; polls `stop`, as this may take a minute. Raises Stopped."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BUFFER_BYTES):
            if stop():
                raise Stopped(f"stopped while {path} was hashed; run the same command to continue")
            digest.update(block)
    return digest.hexdigest()
