"""Use local and object-store folders (`s3://bucket/prefix`) through the methods of `pathlib.Path`.

`place` returns a Path for a local folder and a UPath for a store.

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

BUFFER = 1 << 20
"""Bytes of the write buffer; a Parquet page has only about 8 kB."""
MAX_PENDING_FILES = 4
"""Maximum number of files that a writer fsyncs or uploads concurrently."""
LOCK = ".lock"
"""Name of the lock file of a local folder, an empty file."""
STORES = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "hf": "hf"}
STORES |= dict.fromkeys(("az", "abfs", "abfss"), "")
"""Schemes of stores, with the package extra that installs each driver."""


def is_url(name: str) -> bool:
    """Return whether a name is a URL and not a path."""
    return "://" in name


def parse_path(name: str | Path) -> Path:
    """Return the Path of a name, or a UPath for a store; raises ConfigError."""
    if isinstance(name, Path) or not is_local(name):
        return cast("Path", name)
    scheme, found, rest = name.partition("://")
    if not found or scheme == "file":
        return Path(rest if found else name)
    if scheme not in STORES:
        raise ConfigError(f"{scheme}:// is not a supported store: use {'://, '.join(STORES)}://")
    from upath import UPath

    try:
        made = UPath(name, use_listings_cache=False)  # other processes may write there
        made.fs  # noqa: B018 - imports the driver, so that its absence is reported here
    except ImportError as error:
        how = f"pip install 'fianchetto[{STORES[scheme]}]'" if STORES[scheme] else str(error)
        raise ConfigError(f"{scheme}:// needs a driver that is not installed: {how}") from error
    except ValueError as error:
        raise ConfigError(f"{name}: {one_line(error)}") from error
    return cast("Path", made)


def is_local(where: object) -> bool:
    """Return whether a path is local."""
    return isinstance(where, (str, Path))


def open_for_arrow(path: Path) -> Any:
    """Open a file for pyarrow, which would read the path `run:1/x` as a URL."""
    if not is_local(path):
        return path.open("rb")
    import pyarrow as pa

    return pa.OSFile(os.fsencode(path))


def make_folder(folder: Path) -> None:
    """Create a folder and its parents; a store has no folders."""
    if is_local(folder):
        folder.mkdir(parents=True, exist_ok=True)


def folder_lock(folder: Path) -> FileLock:
    """Return the lock of a folder; for a store it covers only processes on this machine.

    Stores have no common locking. Two machines that ingest the same dumps into one store publish
    the same bytes, and `job.json` and the notes of chunks detect any difference.
    """
    if is_local(folder):
        return FileLock(folder / LOCK, timeout=0)
    digest = hashlib.sha256(str(folder).rstrip("/").encode()).hexdigest()[:16]
    name = f"fianchetto-{os.getuid()}-{digest}.lock"
    return FileLock(Path(tempfile.gettempdir()) / name, timeout=0)


@contextmanager
def hold_lock(lock: FileLock, busy: Exception, seconds: float = 0.0) -> Iterator[None]:
    """Hold a lock; raises `busy` if another process still holds it after `seconds`."""
    try:
        lock.acquire(timeout=seconds)
    except Timeout as error:
        raise busy from error
    try:
        yield
    finally:
        lock.release()


def store_errors() -> tuple[type[Exception], ...]:
    """Return the exception types of stores and networks, for the loaded drivers."""
    errors = (
        ("botocore.exceptions", "BotoCoreError"),
        ("botocore.exceptions", "ClientError"),
        ("aiohttp", "ClientError"),
        ("gcsfs.retry", "HttpError"),
        ("google.auth.exceptions", "GoogleAuthError"),
    )
    loaded = (getattr(sys.modules[at], name) for at, name in errors if at in sys.modules)
    return (OSError, *loaded)


@contextmanager
def catch_store_errors(where: Path) -> Iterator[None]:
    """Convert the errors of a store to a one-line StoreError; local errors pass through."""
    try:
        yield
    except store_errors() as error:
        if is_local(where) or isinstance(error, StoreError):
            raise
        raise StoreError(f"{where}: {one_line(error)}") from error


def one_line(error: BaseException) -> str:
    """Return an error's message on one line."""
    said = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(said).split())[:300]


@dataclass(frozen=True, slots=True)
class Published:
    """A published file."""

    name: str
    rows: int
    bytes: int
    sha256: str


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


def _write(
    directory: Path, name: str, rows: int, write: Callable[[Any], None]
) -> tuple[Published, Callable[[], None]]:
    """Call `write` on a new file; return its description and a function that publishes it."""
    path, local = directory / name, is_local(directory)
    with ExitStack() as stack:
        named: Any = (
            replace_file(path, buffering=BUFFER) if local else tempfile.NamedTemporaryFile()  # noqa: SIM115
        )
        file = stack.enter_context(named)
        target = _HashingFile(file)
        write(target)
        target.flush()
        published = Published(name, rows, file.tell(), target.hash.hexdigest())
        held = stack.pop_all()
    if local:
        return published, held.close

    def upload() -> None:
        store = cast("Any", path)
        with held, catch_store_errors(path):
            store.fs.put_file(file.name, store.path)

    return published, upload


def publish(directory: Path, name: str, rows: int, write: Callable[[Any], None]) -> Published:
    """Write a file, publish it once it is complete and on disk, and return its description.

    A failed write leaves no file. Raises StoreError or an OSError.
    """
    published, settle = _write(directory, name, rows, write)
    settle()
    return published


Publish = Callable[[Path, str, int, Callable[[Any], None]], Published]


@contextmanager
def publish_in_background() -> Iterator[Publish]:
    """Yield a `publish` that fsyncs or uploads files while the next ones are written.

    Every file has been published when the block exits. Waiting for each file would take 3 to 12 %
    of an ingest's time on a disk, and most of it with a store. Raises the first error.
    """
    pending: list[Future[None]] = []

    def publish_later(
        directory: Path, name: str, rows: int, write: Callable[[Any], None]
    ) -> Published:
        published, settle = _write(directory, name, rows, write)
        pending.append(pool.submit(settle))
        return published

    with ThreadPoolExecutor(MAX_PENDING_FILES, "publish") as pool:
        yield publish_later
    for file in pending:
        file.result()


def publish_json(directory: Path, name: str, content: Mapping[str, Any]) -> Published:
    """Flush the renames of the files that a JSON file describes, then publish it."""
    text = json.dumps(content, indent=2, allow_nan=False).encode() + b"\n"
    if not is_local(directory):
        return publish(directory, name, 0, lambda target: target.write(text))
    sync_directory(directory.parent)
    sync_directory(directory)
    published = publish(directory, name, 0, lambda target: target.write(text))
    sync_directory(directory)
    return published


def file_hash(path: Path, stop: Stop = never) -> str:
    """Return a file's sha256 in hex; polls `stop`, since a month of games takes a minute."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BUFFER):
            if stop():
                raise Stopped("stopped while a file was hashed; run the same command to continue")
            digest.update(block)
    return digest.hexdigest()
