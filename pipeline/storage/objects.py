"""Read remote files without storing them.

`open_remote` opens a web file (pipeline/storage/http.py) or an object to be read in order, and a
RangeFile reads at any offset. A store's driver handles retries, read-ahead and ranges. An
ObjectFile compares the version after a failed read and after the last read, to detect that the
object was replaced; the user of a RangeFile compares it at the end (pipeline/dumps/source.py).
"""

import io
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import lru_cache
from typing import Any, cast

from engine.progress import Stop, never
from pipeline.errors import FetchError, SourceChangedError
from pipeline.storage.http import RemoteVersion, WebFile, is_http_url, redact_url
from pipeline.storage.stores import is_url, list_store_errors, parse_path, shorten_error

REQUEST_BYTES = 1 << 23
"""Bytes of an object that one request reads."""
REPLACED_MESSAGE = "was replaced by another version while it was read: run the command again"
MAX_CACHED_READS = 3
"""Number of recent reads that a RangeFile caches, since pyarrow reads a column twice if its
dictionary is checked first."""
VERSION_KEYS = (
    *("ETag", "etag", "blob_id", "generation", "md5Hash"),
    *("LastModified", "updated", "mtime", "created"),
)
"""Keys under which drivers report the version or time of an object, in order of preference."""


def open_remote(name: str, stop: Stop = never) -> "WebFile | ObjectFile":
    """Open a URL for reading from the start.

    Raises FetchError, SourceChangedError, and ConfigError for an unknown scheme or missing driver.
    """
    if not is_http_url(name):
        return ObjectFile(name)
    web = WebFile(name, stop)
    web.open()
    return web


def fetch_version(name: str, stop: Stop = never) -> RemoteVersion:
    """Return the version of a remote file; raises the same errors as `open_remote`."""
    if not is_http_url(name):
        return _fetch_object_version(name)
    with closing(WebFile(name, stop)) as web:
        return web.open()


def list_files(name: str, suffix: str) -> list[str]:
    """Return the URLs of the files with a suffix below a prefix of a store; [] for other names."""
    if not is_url(name) or is_http_url(name):
        return []
    path = cast("Any", parse_path(name))
    with _convert_errors(name):
        keys = path.fs.find(path.path) if path.fs.isdir(path.path) else []
    scheme = name.partition("://")[0]
    return sorted(f"{scheme}://{key.lstrip('/')}" for key in keys if key.endswith(suffix))


@contextmanager
def _convert_errors(name: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise FetchError(f"{redact_url(name)} does not exist") from error
    except list_store_errors() as error:
        raise FetchError(f"{redact_url(name)} cannot be read: {shorten_error(error)}") from error


def _fetch_object_version(name: str) -> RemoteVersion:
    path = cast("Any", parse_path(name))
    with _convert_errors(name):
        info: dict[str, Any] = path.fs.info(path.path)
    if info.get("type") == "directory" or info.get("size") is None:
        raise FetchError(
            f"{redact_url(name)} is a prefix and not an object, or its store does not report its "
            "size: name one object"
        )
    etag = next((str(info[key]) for key in VERSION_KEYS if info.get(key)), "")
    return RemoteVersion(size=info["size"], etag=etag)


class ObjectFile:
    """An object in a store, read in order."""

    def __init__(self, name: str) -> None:
        self.name, self.version = name, _fetch_object_version(name)
        path = cast("Any", parse_path(name))
        with _convert_errors(name):
            self._file = path.fs.open(
                path.path, "rb", block_size=REQUEST_BYTES, cache_type="readahead"
            )

    def read(self, count: int) -> bytes:
        """Return up to `count` bytes; b"" at the end. Raises FetchError, SourceChangedError."""
        try:
            with _convert_errors(self.name):
                data: bytes = self._file.read(count)
        except FetchError:
            self._require_unchanged()
            raise
        if self._file.tell() == self.version.size:
            self._require_unchanged()
        elif not data:
            raise FetchError(
                f"{redact_url(self.name)} ended early, at byte {self._file.tell():,}: try again"
            )
        return data

    def _require_unchanged(self) -> None:
        if self.version.differs_from(_fetch_object_version(self.name)):
            raise SourceChangedError(f"{redact_url(self.name)} {REPLACED_MESSAGE}")

    def close(self) -> None:
        """Close the object."""
        self._file.close()


class RangeFile(io.RawIOBase):
    """A seekable remote file; recent reads are cached. Reading raises FetchError and Stopped."""

    def __init__(self, name: str, version: RemoteVersion, stop: Stop = never) -> None:
        """Open the given version of a web file or of an object.

        Raises FetchError if its server cannot send parts of that version.
        """
        if version.size is None or (is_http_url(name) and not version.validator):
            raise FetchError(
                f"{redact_url(name)} cannot be read in parts, since its server does not send a "
                "size and a strong ETag: download it"
            )
        self.name, self.version, self.stop, self.position = name, version, stop, 0
        self._size: int = version.size
        self._read_range = lru_cache(MAX_CACHED_READS)(self._request)
        self._object: Any = None
        if not is_http_url(name):
            path = cast("Any", parse_path(name))
            with _convert_errors(name):
                self._object = path.fs.open(path.path, "rb", cache_type="none")

    def readable(self) -> bool:
        """Return True, which pyarrow requires."""
        return True

    def seekable(self) -> bool:
        """Return True, which pyarrow requires."""
        return True

    def tell(self) -> int:
        """Return the offset of the next read."""
        return self.position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to an offset from the start, the current position or the end."""
        self.position = offset + (0, self.position, self._size)[whence]
        return self.position

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer` and return the number of bytes, which is smaller at the end of the file."""
        wanted = min(len(buffer), self._size - self.position)
        data = self._read_range(self.position, wanted) if wanted > 0 else b""
        buffer[: len(data)] = data
        self.position += len(data)
        return len(data)

    def _request(self, begin: int, count: int) -> bytes:
        if self._object is not None:
            with _convert_errors(self.name):
                self._object.seek(begin)
                return bytes(self._object.read(count))
        data = b""
        with closing(WebFile(self.name, self.stop, begin=begin, version=self.version)) as web:
            while len(data) < count and (piece := web.read(count - len(data))):
                data += piece
        return data
