"""Remote dumps, read in order and never kept: `open_remote` reads the web (pipeline/storage/http.py) or an object store.

Of a store the next block is requested while one is used. A failed read and the last one compare the object's version, so an
object that is replaced meanwhile is noticed.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from engine.progress import Stop, never
from pipeline.errors import ChangedError, FetchError
from pipeline.storage.http import Facts, WebFile, shown
from pipeline.storage.retry import Retry
from pipeline.storage.stores import REQUESTS, drivers, is_credentials, one_line, store_errors

BLOCK = 1 << 23
"""Bytes of an object that one request asks for."""


class Remote(Protocol):
    """A remote file: what its server says of it, and its bytes in order."""

    facts: Facts

    def read(self, count: int) -> bytes:
        """Return up to `count` bytes, none at the end."""
        ...

    def tell(self) -> int:
        """Return the byte that the next read begins at."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


def open_remote(name: str, stop: Stop = never, begun: Facts | None = None) -> Remote:
    """Open an address at its first byte; where `begun` is given, it must still be that version.

    Raises FetchError, ChangedError, ConfigError (an unknown scheme, or a driver that is not installed).
    """
    if name.startswith(("https://", "http://")):
        web = WebFile(name, stop=stop, begun=begun)
        web.open()
        return web
    return ObjectFile(name, stop, begun)


def read_part(name: str, begin: int, count: int, stop: Stop = never) -> bytes | None:
    """Return `count` bytes of an address from `begin` on, fewer at its end; None where the server sends no parts.

    Raises what `open_remote` raises.
    """
    if not name.startswith(("https://", "http://")):
        file = ObjectFile(name, stop)
        try:
            return file.part(begin, begin + count)
        finally:
            file.close()
    web = WebFile(name, stop=stop, begin=begin)
    try:
        web.open()
        if web.whole:
            return None
        data = bytearray()
        while len(data) < count and (block := web.read(count - len(data))):
            data += block
        return bytes(data)
    finally:
        web.close()


def look(name: str, stop: Stop = never) -> Facts:
    """Return what the server says of an address; raises as `open_remote` does."""
    if name.startswith(("https://", "http://")):
        return WebFile(name, stop=stop).look()
    file = ObjectFile(name, stop)
    file.close()
    return file.facts


class ObjectFile:
    """An object of a store that fsspec has a driver for, read one block ahead."""

    def __init__(self, name: str, stop: Stop, begun: Facts | None = None) -> None:
        from fsspec.core import url_to_fs

        self.name, self.stop = name, stop
        self.position = 0
        self._left, self._asked = b"", 0
        self._ahead: Future[bytes] | None = None
        self._reader = ThreadPoolExecutor(1, "remote")
        with drivers(name.partition("://")[0]):
            self.fs, self.path = url_to_fs(name, use_listings_cache=False)
        info = self._persist(lambda: self.fs.info(self.path))
        if info.get("type") == "directory":
            raise FetchError(f"{shown(name)} is a prefix and not an object: name one object below it")
        self.facts = _facts(info)
        if self.facts.size is None:
            raise FetchError(f"{shown(name)}: its store does not say how large it is: copy it to this machine first")
        if begun is not None and begun.differs(self.facts):
            raise ChangedError(f"{shown(name)} was replaced by another version")
        self._file: Any = None

    def read(self, count: int) -> bytes:
        """Return up to `count` bytes, none at the end."""
        if not self._left:
            if self._ahead is None:
                self._ask()
            assert self._ahead is not None
            self._left = self._ahead.result()
            self._ask()
        data, self._left = self._left[:count], self._left[count:]
        self.position += len(data)
        return data

    def part(self, begin: int, end: int) -> bytes:
        """Return the bytes from `begin` to before `end`; the position of `read` stays."""
        last = min(end, self.facts.size or 0)
        data: bytes = self._persist(lambda: self._block(min(begin, last), last))
        return data

    def _ask(self) -> None:
        """Request the next block, on the thread that reads ahead."""
        begin = self._asked
        self._asked = min(begin + BLOCK, self.facts.size or 0)
        end = self._asked
        self._ahead = self._reader.submit(self._persist, lambda: self._block(begin, end))

    def _block(self, begin: int, end: int) -> bytes:
        """Return the bytes from `begin` to before `end`, by one request."""
        if begin == end:
            return b""
        if self._file is None:
            self._file = self.fs.open(self.path, "rb", cache_type="none")
        try:
            self._file.seek(begin)
            data: bytes = self._file.read(end - begin)
        except store_errors():  # a store's own error for another version is among them
            self._compare()
            raise
        if len(data) != end - begin:
            raise OSError(f"{len(data):,} bytes came of {end - begin:,}")
        if end == self.facts.size:
            self._compare()
        return data

    def _compare(self) -> None:
        """Raise ChangedError where the object is another version by now."""
        if self.facts.differs(_facts(self.fs.info(self.path))):
            raise ChangedError(f"{shown(self.name)} was replaced while it was read")

    def _persist(self, request: Callable[[], Any]) -> Any:
        """Make a request, again until it succeeds or patience is at its end."""
        return Retry(REQUESTS, self.stop).run(request, store_errors, self._refused)

    def _refused(self, error: Exception, last: bool) -> FetchError | None:
        """Return what is raised for a request that failed for good, None for one that may succeed later."""
        if isinstance(error, FileNotFoundError):
            return FetchError(f"{shown(self.name)} does not exist")
        if isinstance(error, PermissionError):
            return FetchError(f"{shown(self.name)} may not be read: {one_line(error)}")
        if last or is_credentials(error):
            return FetchError(f"{shown(self.name)}: given up at byte {self.position:,} ({one_line(error)})")
        return None

    def tell(self) -> int:
        """Return the byte that the next read begins at."""
        return self.position

    def close(self) -> None:
        """Close the object; waits for a block under way."""
        self._reader.shutdown(cancel_futures=True)
        if self._file is not None:
            self._file.close()


def _facts(info: dict[str, Any]) -> Facts:
    """Return what a driver says of an object; each driver has its own keys."""
    named = next((str(info[key]) for key in ("ETag", "etag", "generation", "md5Hash") if info.get(key)), "")
    changed = next((str(info[key]) for key in ("LastModified", "updated", "mtime", "created") if info.get(key)), "")
    return Facts(size=info.get("size"), etag=named, modified=changed)
