"""Dumps that lie elsewhere, read in order and never kept: `open_remote` gives bytes of the web or of an object store.

Of a store the next block is asked for while one is used; the version of the object is asked for with each, so an object
that is replaced meanwhile is noticed. The web is read by `pipeline.storage.http`.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from engine.progress import Stop, never
from pipeline.errors import ChangedError, FetchError
from pipeline.storage.http import Facts, Patience, WebFile, rest, shown
from pipeline.storage.stores import drivers, store_errors

BLOCK = 1 << 23
"""Bytes of an object that are asked for at a time."""


class Remote(Protocol):
    """A file elsewhere: its facts, and its bytes in order."""

    facts: Facts

    def read(self, count: int) -> bytes:
        """Read up to `count` bytes; nothing means the end."""
        ...

    def tell(self) -> int:
        """Give the byte that the next read begins at."""
        ...

    def close(self) -> None:
        """Let go of the file."""
        ...


def open_remote(name: str, stop: Stop = never, begun: Facts | None = None, patience: Patience | None = None) -> Remote:
    """Open an address at its first byte; one that was `begun` before must still be of the same version.

    Raises FetchError, ChangedError, ConfigError (a scheme that nobody knows, or a driver that is not installed).
    """
    if name.startswith(("https://", "http://")):
        web = WebFile(name, patience, stop, begun=begun)
        web.open()
        return web
    return ObjectFile(name, patience, stop, begun)


def read_part(name: str, begin: int, count: int, stop: Stop = never) -> bytes | None:
    """Read `count` bytes of an address from `begin` on, fewer at its end; None of a server that begins at 0 whatever is asked.

    Raises what `open_remote` raises.
    """
    if not name.startswith(("https://", "http://")):
        file = ObjectFile(name, stop=stop)
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
    """Ask what lies at an address; raises as `open_remote` does."""
    if name.startswith(("https://", "http://")):
        return WebFile(name, stop=stop).look()
    file = ObjectFile(name, stop=stop)
    file.close()
    return file.facts


class ObjectFile:
    """An object of a store that fsspec has a driver for, a block ahead."""

    def __init__(
        self, name: str, patience: Patience | None = None, stop: Stop = never, begun: Facts | None = None
    ) -> None:
        from fsspec.core import url_to_fs

        self.name, self.patience, self.stop = name, patience or Patience(attempts=4), stop
        self.position = 0
        self._left, self._asked = b"", 0
        self._ahead: Future[bytes] | None = None
        self._reader = ThreadPoolExecutor(1, "remote")
        with drivers(name.partition("://")[0]):
            self.fs, self.path = url_to_fs(name, use_listings_cache=False)
        info = self._persist(lambda: self.fs.info(self.path))
        if info.get("type") == "directory":
            raise FetchError(f"{shown(name)} is no object, but a prefix of others: name one")
        self.facts = _facts(info)
        if self.facts.size is None:
            raise FetchError(f"{shown(name)}: its store does not say how large it is, so it cannot be read in parts")
        if begun is not None and begun.differs(self.facts):
            raise ChangedError(f"{shown(name)} was replaced by another version")
        self._file: Any = None

    def read(self, count: int) -> bytes:
        """Read up to `count` bytes; nothing means the end."""
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
        """Read the bytes from `begin` to before `end`, wherever the reading in order is."""
        last = min(end, self.facts.size or 0)
        data: bytes = self._persist(lambda: self._block(min(begin, last), last))
        return data

    def _ask(self) -> None:
        """Ask for the next block."""
        begin = self._asked
        self._asked = min(begin + BLOCK, self.facts.size or 0)
        end = self._asked
        self._ahead = self._reader.submit(self._persist, lambda: self._block(begin, end))

    def _block(self, begin: int, end: int) -> bytes:
        """Get the bytes from `begin` to `end` with one request."""
        if begin == end:
            return b""
        if self._file is None:
            self._file = self.fs.open(self.path, "rb", cache_type="none")
        try:
            self._file.seek(begin)
            data: bytes = self._file.read(end - begin)
        except store_errors():  # among them what a store says of another version, in words of its own
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

    def _persist(self, request: Any) -> Any:
        """Do a request, and again after a wait; raises FetchError where that does not help."""
        failures = 0
        while True:
            try:
                return request()
            except FileNotFoundError as error:
                raise FetchError(f"{shown(self.name)} does not exist") from error
            except PermissionError as error:
                raise FetchError(f"{shown(self.name)} may not be read: {_said(error)}") from error
            except store_errors() as error:
                failures += 1
                if failures >= self.patience.attempts or "Credentials" in type(error).__name__:
                    raise FetchError(
                        f"{shown(self.name)}: given up at byte {self.position:,} ({_said(error)})"
                    ) from error
                rest(self.patience.wait(failures), self.stop)

    def tell(self) -> int:
        """Give the byte that the next read begins at."""
        return self.position

    def close(self) -> None:
        """Let go of the object; a block under way is waited for."""
        self._reader.shutdown(cancel_futures=True)
        if self._file is not None:
            self._file.close()


def _facts(info: dict[str, Any]) -> Facts:
    """Read what a driver says of an object; each has words of its own."""
    named = next((str(info[key]) for key in ("ETag", "etag", "generation", "md5Hash") if info.get(key)), "")
    changed = next((str(info[key]) for key in ("LastModified", "updated", "mtime", "created") if info.get(key)), "")
    return Facts(size=info.get("size"), etag=named, modified=changed)


def _said(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
