"""Remote dumps, read in order and never kept: `open_remote` reads the web (pipeline/storage/http.py) or an object store.

A store's driver retries, reads ahead and requests ranges. The version of an object is compared when a read fails and after the
last one, so an object that is replaced while it is read is noticed.
"""

from typing import Any, cast

from engine.progress import Stop, never
from pipeline.errors import ChangedError, FetchError
from pipeline.storage.http import RemoteVersion, WebFile, is_web, shown
from pipeline.storage.stores import one_line, place, store_errors

BLOCK = 1 << 23
"""Bytes of an object that one request asks for."""


def open_remote(name: str, stop: Stop = never, version: RemoteVersion | None = None) -> "WebFile | ObjectFile":
    """Open an address at its first byte; if `version` is given, it must still be that version.

    Raises FetchError, ChangedError, and ConfigError for an unknown scheme or a driver that is not installed.
    """
    if not is_web(name):
        return ObjectFile(name, version)
    web = WebFile(name, stop, version=version)
    web.open()
    return web


def look(name: str, stop: Stop = never) -> RemoteVersion:
    """Return the version of an address; raises what `open_remote` raises."""
    return WebFile(name, stop).look() if is_web(name) else ObjectFile(name).version


class ObjectFile:
    """An object in a store, read in order."""

    def __init__(self, name: str, version: RemoteVersion | None = None) -> None:
        self.name, self._path, self._file = name, cast("Any", place(name)), cast("Any", None)
        info = self._info()
        if info.get("type") == "directory":
            raise FetchError(f"{shown(name)} is a prefix and not an object: name one object below it")
        if info.get("size") is None:
            raise FetchError(f"{shown(name)}: its store does not report its size: copy it to this machine first")
        self.version = version or _version(info)
        self._check_version(info)

    def read(self, count: int) -> bytes:
        """Return up to `count` bytes, none at the end."""
        try:
            if self._file is None:
                self._file = self._path.fs.open(self._path.path, "rb", block_size=BLOCK, cache_type="readahead")
            data: bytes = self._file.read(count)
        except store_errors() as error:
            self._check_version(self._info())
            raise FetchError(f"{shown(self.name)}: given up at byte {self.tell():,} ({one_line(error)})") from error
        if self.tell() == self.version.size:
            self._check_version(self._info())
        elif not data:
            raise FetchError(f"{shown(self.name)}: it ended at byte {self.tell():,} of {self.version.size or 0:,}")
        return data

    def _info(self) -> dict[str, Any]:
        """Return the driver's description of the object."""
        try:
            info: dict[str, Any] = self._path.fs.info(self._path.path)
            return info
        except FileNotFoundError as error:
            raise FetchError(f"{shown(self.name)} does not exist") from error
        except store_errors() as error:
            raise FetchError(f"{shown(self.name)} cannot be read: {one_line(error)}") from error

    def _check_version(self, info: dict[str, Any]) -> None:
        if self.version.differs(_version(info)):
            raise ChangedError(f"{shown(self.name)} was replaced by another version")

    def tell(self) -> int:
        """Return the byte that the next read begins at."""
        return 0 if self._file is None else int(self._file.tell())

    def close(self) -> None:
        """Close the object."""
        if self._file is not None:
            self._file.close()


def _version(info: dict[str, Any]) -> RemoteVersion:
    """Return an object's version from a driver's description; each driver has its own keys."""
    keys = ("ETag", "etag", "generation", "md5Hash", "LastModified", "updated", "mtime", "created")
    return RemoteVersion(size=info.get("size"), etag=next((str(info[key]) for key in keys if info.get(key)), ""))
