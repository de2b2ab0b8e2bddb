"""Remote dumps, read in order and never kept: `open_remote` reads the web
(pipeline/storage/http.py) or an object store.

A store's driver retries, reads ahead and requests ranges. The version of an object is compared when
a read fails and after the last one, so an object that is replaced while it is read is noticed.
"""

import io
from typing import Any, cast

from engine.progress import Stop, never
from pipeline.errors import ChangedError, FetchError
from pipeline.storage.http import RemoteVersion, WebFile, is_web, shown
from pipeline.storage.stores import is_url, one_line, place, store_errors

BLOCK = 1 << 23
"""Bytes of an object that one request asks for."""
RECENT = 3
"""Reads of a RangeFile that are kept."""


def open_remote(
    name: str, stop: Stop = never, version: RemoteVersion | None = None
) -> "WebFile | ObjectFile":
    """Open an address at its first byte; if `version` is given, it must still be that version.

    Raises FetchError, ChangedError, and ConfigError for an unknown scheme or a driver that is not
    installed.
    """
    if not is_web(name):
        return ObjectFile(name, version)
    web = WebFile(name, stop, version=version)
    web.open()
    return web


def look(name: str, stop: Stop = never) -> RemoteVersion:
    """Return the version of an address; raises what `open_remote` raises."""
    return WebFile(name, stop).look() if is_web(name) else ObjectFile(name).version


def list_files(name: str, suffix: str) -> list[str]:
    """Return a store's files below a prefix with this suffix, sorted; none elsewhere."""
    if not is_url(name) or is_web(name):
        return []
    path = cast("Any", place(name))
    try:
        below = path.fs.find(path.path) if path.fs.isdir(path.path) else []
    except store_errors() as error:
        raise FetchError(f"{shown(name)} cannot be listed: {one_line(error)}") from error
    scheme = name.partition("://")[0]
    return sorted(f"{scheme}://{found.lstrip('/')}" for found in below if found.endswith(suffix))


class RangeFile(io.RawIOBase):
    """A seekable remote file, one request per read. Raises FetchError and Stopped."""

    def __init__(self, name: str, version: RemoteVersion, stop: Stop = never) -> None:
        """Open this version of a file on the web or of an object in a store."""
        if version.size is None or (is_web(name) and not version.validator):
            raise FetchError(
                f"{shown(name)}: its server sends no size and strong ETag, so parts cannot be "
                f"read: download it"
            )
        self.name, self.version, self.stop, self.position = name, version, stop, 0
        self._object = None if is_web(name) else self._open_object()
        self._recent: dict[tuple[int, int], bytes] = {}
        """The last reads: a column of a table is read twice where its dictionary is checked
        first."""

    def _open_object(self) -> Any:
        path = cast("Any", place(self.name))
        return path.fs.open(path.path, "rb", cache_type="none")

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the byte that the next read begins at."""
        return self.position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a byte, counted from the start, the position or the end."""
        self.position = offset + (0, self.position, self.version.size or 0)[whence]
        return self.position

    def readinto(self, space: Any) -> int:
        """Fill `space`, less at the end of the file, and return how far."""
        wanted = min(len(space), (self.version.size or 0) - self.position)
        data = self._read(wanted) if wanted > 0 else b""
        space[: len(data)] = data
        self.position += len(data)
        return len(data)

    def _read(self, count: int) -> bytes:
        place = (self.position, count)
        if place not in self._recent:
            self._recent = {
                **dict(list(self._recent.items())[1 - RECENT :]),
                place: self._request(count),
            }
        return self._recent[place]

    def _request(self, count: int) -> bytes:
        if self._object is not None:
            try:
                self._object.seek(self.position)
                return bytes(self._object.read(count))
            except store_errors() as error:
                raise FetchError(
                    f"{shown(self.name)}: given up at byte {self.position:,} ({one_line(error)})"
                ) from error
        web, data = (
            WebFile(self.name, self.stop, begin=self.position, version=self.version),
            bytearray(),
        )
        while len(data) < count and (piece := web.read(count - len(data))):
            data += piece
        web.close()
        return bytes(data)


class ObjectFile:
    """An object in a store, read in order."""

    def __init__(self, name: str, version: RemoteVersion | None = None) -> None:
        self.name, self._path, self._file = name, cast("Any", place(name)), cast("Any", None)
        info = self._info()
        if info.get("type") == "directory":
            raise FetchError(
                f"{shown(name)} is a prefix and not an object: name one object below it"
            )
        if info.get("size") is None:
            raise FetchError(
                f"{shown(name)}: its store does not report its size: copy it to this machine first"
            )
        self.version = version or _version(info)
        self._check_version(info)

    def read(self, count: int) -> bytes:
        """Return up to `count` bytes, none at the end."""
        try:
            if self._file is None:
                self._file = self._path.fs.open(
                    self._path.path, "rb", block_size=BLOCK, cache_type="readahead"
                )
            data: bytes = self._file.read(count)
        except store_errors() as error:
            self._check_version(self._info())
            raise FetchError(
                f"{shown(self.name)}: given up at byte {self.tell():,} ({one_line(error)})"
            ) from error
        if self.tell() == self.version.size:
            self._check_version(self._info())
        elif not data:
            raise FetchError(
                f"{shown(self.name)}: it ended at byte {self.tell():,} of "
                f"{self.version.size or 0:,}"
            )
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
    keys = (
        "ETag",
        "etag",
        "blob_id",
        "generation",
        "md5Hash",
        "LastModified",
        "updated",
        "mtime",
        "created",
    )
    return RemoteVersion(
        size=info.get("size"), etag=next((str(info[key]) for key in keys if info.get(key)), "")
    )
