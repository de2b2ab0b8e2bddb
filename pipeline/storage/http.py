"""A file on the web, read in order and resumed at a byte after a broken connection.

Bytes of two versions of a file are never joined. A request that resumes names a strong ETag in
If-Range (RFC 9110 section 13.1.5), and the answer must repeat it. Without a strong ETag the file is
read again from byte 0, and the bytes that were returned before are compared by their hash. A body
whose end looks like a broken connection is refused.
"""

import hashlib
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

from engine.progress import Stop, never
from pipeline.errors import ChangedError, ConfigError, FetchError, Stopped

if TYPE_CHECKING:
    import requests
    from urllib3.util import Retry

BLOCK = 1 << 18
"""Maximum number of bytes that one read of a connection returns."""
REDIRECTS = 10
ATTEMPTS = 6
"""Requests in a row that may fail before the file is given up."""
CONNECT_SECONDS, STALL_SECONDS = 15.0, 60.0
"""Timeouts of a connection, and of a wait for a byte."""
BACKOFF = 1.0
"""Factor of the waits between requests, as in urllib3's Retry: 0, 2, 4, 8 ... times as long."""
MAX_WAIT = 300.0
"""Longest wait in seconds; if a server asks for a longer one, the file is given up."""

_RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})
_HINTS = dict.fromkeys((404, 410), ": there is no such file")
_SIZE = re.compile(r"[0-9]{1,18}")
_SPAN = re.compile(r"bytes (?:([0-9]{1,18})-[0-9]{1,18}|\*)/([0-9]{1,18}|\*)")


@dataclass(frozen=True, kw_only=True, slots=True)
class RemoteVersion:
    """The properties that differ between versions of a remote file."""

    size: int | None = None
    """Bytes; None if the server does not send it."""
    etag: str = ""
    modified: str = ""
    """Time of the last change, as the server writes it."""

    @property
    def validator(self) -> str:
        """The ETag if it is strong, else ""."""
        return "" if self.etag.startswith("W/") else self.etag

    @property
    def name(self) -> str:
        """The ETag, else the time of the last change, else ""."""
        return self.etag or self.modified

    def differs(self, other: "RemoteVersion") -> bool:
        """Return whether this is certainly another version."""
        if None not in (self.size, other.size) and self.size != other.size:
            return True
        if self.etag and other.etag:
            return self.etag.removeprefix("W/") != other.etag.removeprefix("W/")
        return bool(self.modified and other.modified) and self.modified != other.modified


class _BrokenError(Exception):
    """A request failed that may succeed later, after `wait` seconds if the server gave them."""

    def __init__(self, reason: str, wait: float | None = None) -> None:
        super().__init__(reason)
        self.wait = wait


def is_web(name: str) -> bool:
    """Return whether this is an address on the web."""
    return name.startswith(("https://", "http://"))


def file_name(url: str) -> str:
    """Return the last part of a URL's path, without the query, which may hold a secret."""
    return unquote(_split(url).path.rpartition("/")[2])


def shown(url: str) -> str:
    """Return a URL without user, password and query, for messages."""
    parts = _split(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError as error:
        raise ConfigError(f"{hide_secrets(url)!r} is not a valid address: {error}") from error


def hide_secrets(word: str) -> str:
    """Return a word, perhaps no valid URL, without user, password and query."""
    return re.sub("//[^/]*@", "//", word.partition("?")[0])


class WebFile:
    """A file on the web.

    To continue an earlier read at byte `begin`, give its `version` and a `digest` that has hashed
    the bytes before. Methods raise FetchError if the file cannot be read, ChangedError if it was
    replaced, and Stopped.
    """

    def __init__(
        self,
        url: str,
        stop: Stop = never,
        *,
        begin: int = 0,
        version: RemoteVersion | None = None,
        digest: Any = None,
    ) -> None:
        self.url, self.stop, self.position = url, stop, begin
        self.version = version or RemoteVersion()
        """The version that is read, known from the first answer on."""
        self.digest = digest or hashlib.sha256()
        """sha256 of the bytes before the position."""
        self.breaks = 0
        """Requests that failed or were postponed so far."""
        self._retries = _new_retries()
        self._use_ranges = True
        self._skip, self._skipped = 0, hashlib.sha256()
        self._body: requests.Response | None = None
        self._session = _session()

    def look(self) -> RemoteVersion:
        """Request the file's first byte and return the file's version."""
        self._retry(lambda: self._request({"Range": "bytes=0-0"}))
        self.close()
        return self.version

    def open(self) -> RemoteVersion:
        """Send the first request, and return the file's version."""
        if not self._is_at_end():
            self._retry(self._resume)
        return self.version

    def read(self, count: int) -> bytes:
        """Return up to `count` bytes as they come, none at the end of the file."""
        data: bytes
        while data := self._retry(lambda: self._receive(min(count, BLOCK))):
            if self._skip:
                data = self._drop_repeated(data)
            if data:
                self._retries = _new_retries()
                self.digest.update(data)
                self.position += len(data)
                return data
        return b""

    def tell(self) -> int:
        """Return the byte that the next read begins at."""
        return self.position

    def close(self) -> None:
        """Close the connection."""
        if self._body is not None:
            self._body.close()
        self._body = None

    def _is_at_end(self) -> bool:
        return self.position > 0 and self.position == self.version.size

    def _drop_repeated(self, data: bytes) -> bytes:
        """Return the bytes after the position; raises ChangedError if those before it differ."""
        repeated, data = data[: self._skip], data[self._skip :]
        self._skip -= len(repeated)
        self._skipped.update(repeated)
        if not self._skip and self._skipped.digest() != self.digest.digest():
            raise ChangedError(f"{shown(self.url)} was replaced by another version")
        return data

    def _receive(self, count: int) -> bytes:
        """Return bytes of the body; raises _BrokenError if it ends before the file."""
        if self._is_at_end():
            return b""
        if self._body is None:
            self._resume()
        assert self._body is not None
        data = bytes(self._body.raw.read1(count, decode_content=False))
        if not data and (self._skip or self.version.size):
            raise _BrokenError(
                f"the stream ended at byte {self.position:,} of {self.version.size or 0:,}"
            )
        return data

    def _resume(self) -> None:
        """Request the bytes from the position on if their version can be proven, else all bytes."""
        validator = self.version.validator
        if not (self._use_ranges and validator and self.position):
            self._request({})
            return
        found = self._request({"Range": f"bytes={self.position}-", "If-Range": validator})
        if found is not None and found.validator != validator:
            self._use_ranges = False
            raise _BrokenError("the server did not prove that the part is of the same version")

    def _request(self, headers: Mapping[str, str]) -> RemoteVersion | None:
        """Send one request and check its answer; return the version if it is a part of the file.

        Raises _BrokenError if another request may succeed.
        """
        name = shown(self.url)
        first = self.position if "If-Range" in headers else 0
        self._body = answer = self._answer(headers)
        status = answer.status_code
        if status in _RETRIED:
            raise _BrokenError(f"the server answered {status}", _retry_after(answer))
        if status not in (200, 206, 416):
            raise FetchError(f"{name}: the server answers {status}{_HINTS.get(status, '')}")
        found, start, has_end = _parse(status, answer.headers)
        if self.version.differs(found):
            raise ChangedError(f"{name} was replaced by another version")
        if status == 416:
            raise FetchError(f"{name}: the server does not send it from byte {first:,} on")
        if status == 206 and (start != first or not headers):
            raise _BrokenError("the server sent other bytes than were requested")
        if not has_end:
            raise FetchError(
                f"{name}: the server marks neither its size nor its end, so a broken connection "
                f"would go unnoticed: download it by other means and check it"
            )
        if not self.position:
            self.version = found
        self._skip = self.position - (first if status == 206 else 0)
        self._skipped = hashlib.sha256()
        return found if status == 206 else None

    def _answer(self, headers: Mapping[str, str]) -> "requests.Response":
        """Return the answer at the end of the redirects."""
        import requests

        self.close()
        name, timeout = shown(self.url), (CONNECT_SECONDS, STALL_SECONDS)
        try:
            return self._session.get(self.url, headers=headers, stream=True, timeout=timeout)
        except requests.TooManyRedirects as error:
            raise FetchError(f"{name} leads nowhere: over {REDIRECTS} redirects") from error
        except FetchError:
            raise
        # requests' and urllib3's errors about invalid addresses are ValueErrors too
        except ValueError as error:
            raise FetchError(f"{name} leads nowhere: {type(error).__name__}") from error

    def _retry(self, request: Callable[[], Any]) -> Any:
        """Repeat a request until it succeeds or the attempts are used up."""
        from urllib3.exceptions import HTTPError

        while True:
            if self.stop():
                raise Stopped("stopped; run the same command to continue")
            try:
                return request()
            # requests' errors are OSErrors
            except (_BrokenError, OSError, HTTPError) as error:
                self.close()
                self.breaks += 1
                wait = self._next_wait(error)
            rest(wait, self.stop)

    def _next_wait(self, error: Exception) -> float:
        """Return the seconds to wait before the next request; raises FetchError after the last."""
        from urllib3.exceptions import MaxRetryError

        name, asked = shown(self.url), getattr(error, "wait", None)
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            raise FetchError(f"{name}: the server's certificate cannot be verified") from error
        if asked is not None and asked > MAX_WAIT:
            raise FetchError(
                f"{name}: {_reason(error)} and asks for {asked:,.0f} seconds: try again then"
            ) from error
        try:
            self._retries = self._retries.increment("GET", name, error=error)
        except MaxRetryError:
            tries = len(self._retries.history) + 1
            raise FetchError(
                f"{name}: given up at byte {self.position:,} after {tries} tries in a row "
                f"({_reason(error)})"
            ) from error
        return self._retries.get_backoff_time() if asked is None else float(asked)


def rest(seconds: float, stop: Stop) -> None:
    """Wait, and raise Stopped as soon as `stop` returns true."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if stop():
            raise Stopped("stopped while waiting for the server; run the same command to continue")
        time.sleep(min(left, 0.2))


def _new_retries() -> "Retry":
    from urllib3.util import Retry

    return Retry(total=ATTEMPTS - 1, backoff_factor=BACKOFF, backoff_max=MAX_WAIT)


def _session() -> "requests.Session":
    """Return a session for uncompressed bodies, with the environment's proxies and certificates."""
    import requests

    class Session(requests.Session):
        def get_redirect_target(self, resp: requests.Response) -> str | None:
            target = super().get_redirect_target(resp)
            schemes = [urlsplit(one).scheme for one in (resp.url, urljoin(resp.url, target or ""))]
            if schemes[0] == "https" != schemes[1]:
                raise FetchError(
                    f"{shown(resp.url)} leads to an address without encryption: it is not followed"
                )
            return target

    session = Session()
    session.max_redirects = REDIRECTS
    session.headers.update(
        {"User-Agent": "fianchetto (chess datasets)", "Accept-Encoding": "identity"}
    )
    return session


def _parse(status: int, headers: Mapping[str, str]) -> tuple[RemoteVersion, int, bool]:
    """Return an answer's version, its first byte, and whether the body's end is marked."""
    length, start = headers.get("Content-Length", ""), 0
    chunked = "chunked" in headers.get("Transfer-Encoding", "").lower()
    has_end = chunked or _SIZE.fullmatch(length) is not None
    if status != 200:
        span = _SPAN.fullmatch(headers.get("Content-Range", "").strip())
        start, length = (int(span[1] or -1), span[2]) if span else (-1, "")
    elif chunked:
        length = ""
    size = int(length) if _SIZE.fullmatch(length) else None
    version = RemoteVersion(
        size=size, etag=headers.get("ETag", ""), modified=headers.get("Last-Modified", "")
    )
    return version, start, has_end


def _retry_after(answer: "requests.Response") -> float | None:
    """Return the seconds of Retry-After, None if the server sends no valid ones."""
    from urllib3.exceptions import InvalidHeader

    with suppress(ValueError, OverflowError, InvalidHeader):
        return _new_retries().get_retry_after(answer.raw)
    return None


def _reason(error: BaseException) -> str:
    """Return in a few words why a request failed, without the URL, which may hold a secret."""
    if isinstance(error, _BrokenError):
        return str(error)
    names = {type(error).__name__}
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
        names.add(type(error).__name__)
    if any("Timeout" in name for name in names):
        return "nothing came in time"
    return getattr(error, "strerror", None) or "the connection broke"
