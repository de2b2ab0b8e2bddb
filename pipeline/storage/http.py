"""Files on the web, read in order and through broken connections, for `fetch` and for `ingest` of
an address.

    request -> bytes -> a break, a stall, "come back later" -> wait -> request from that byte on ->
    bytes -> the end

Bytes of two versions of a file are never joined. A request that continues names a strong validator
(If-Range, RFC 9110 section 13.1.5), a strong ETag, and the answer must repeat it. Where the server
has none, the file is read again from byte 0, and the bytes that were returned before are compared
by their hash. A body whose end looks like a broken connection is refused. Needs urllib3 2, for
`read1`.
"""

import email.utils
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

BLOCK = 1 << 18
"""Maximum number of bytes that one read of a connection returns."""
REDIRECTS = 10
"""Maximum number of redirects in a row that are followed."""
ATTEMPTS = 6
"""Requests in a row that may bring nothing before the file is given up."""
CONNECT_SECONDS = 15.0
STALL_SECONDS = 60.0
"""Seconds without a byte after which a connection is given up."""
FIRST_WAIT = 1.0
"""Seconds before the second request; each later wait is twice as long."""
LONGEST_WAIT = 300.0
"""Longest wait in seconds; a server that asks for a longer one is not asked again."""

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
    """Return a word that may be no valid URL without what would be user, password and query, for
    messages.
    """
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
        self._failures = 0
        self._use_ranges = True
        self._skip, self._skipped = 0, hashlib.sha256()
        self._body: requests.Response | None = None
        self._session = _session()

    def look(self) -> RemoteVersion:
        """Request the file's first byte and return the file's version."""
        self._retry(lambda: self._request(look=True))
        self.close()
        return self.version

    def open(self) -> RemoteVersion:
        """Send the first request, and return the file's version."""
        if not self._is_at_end():
            self._retry(self._request)
        return self.version

    def read(self, count: int) -> bytes:
        """Return up to `count` bytes as they come, none at the end of the file."""
        data: bytes
        while data := self._retry(lambda: self._receive(min(count, BLOCK))):
            if self._skip:
                data = self._drop_repeated(data)
            if data:
                self._failures = 0
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
        """Return the bytes after the position; raises ChangedError if those before it are not what
        was read before.
        """
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
            self._request()
        assert self._body is not None
        data = bytes(self._body.raw.read1(count, decode_content=False))
        if not data and (self._skip or self.version.size):
            raise _BrokenError(
                f"the stream ended at byte {self.position:,} of {self.version.size or 0:,}"
            )
        return data

    def _request(self, look: bool = False) -> None:
        """Send one request and check its answer; raises _BrokenError if another one may succeed."""
        name, validator = shown(self.url), self.version.validator
        resumes = self._use_ranges and validator != "" and self.position > 0
        first = self.position if resumes else 0
        headers = {"Range": "bytes=0-0"} if look else {}
        if resumes:
            headers = {"Range": f"bytes={first}-", "If-Range": validator}
        self._body = answer = self._answer(headers)
        status = answer.status_code
        if status in _RETRIED:
            raise _BrokenError(f"the server answered {status}", _retry_after(answer.headers))
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
                f"would go unnoticed: "
                "download it by other means and check it"
            )
        if resumes and status == 206 and found.validator != validator:
            self._use_ranges = False
            raise _BrokenError("the server did not prove that the part is of the same version")
        if not self.position:
            self.version = found
        self._skip, self._skipped = (
            self.position - (first if status == 206 else 0),
            hashlib.sha256(),
        )

    def _answer(self, headers: Mapping[str, str]) -> "requests.Response":
        """Return the answer at the end of the redirects, each of which is checked before it is
        followed.
        """
        import requests

        self.close()
        url, timeout = self.url, (CONNECT_SECONDS, STALL_SECONDS)
        for _ in range(REDIRECTS + 1):
            try:
                answer = self._session.get(
                    url, headers=headers, stream=True, timeout=timeout, allow_redirects=False
                )
                target = self._session.get_redirect_target(answer)
                if target is None:
                    return answer
                answer.close()
                following = urljoin(url, requests.utils.requote_uri(target))
                encrypted = [urlsplit(one).scheme == "https" for one in (url, following)]
            # requests' and urllib3's errors about invalid addresses are ValueErrors too
            except ValueError as error:
                raise FetchError(
                    f"{shown(self.url)} leads nowhere: {type(error).__name__}"
                ) from error
            if encrypted == [True, False]:
                raise FetchError(
                    f"{shown(self.url)} leads to an address without encryption: it is not followed"
                )
            url = following
        raise FetchError(f"{shown(self.url)} leads nowhere: over {REDIRECTS} redirects")

    def _retry(self, request: Callable[[], Any]) -> Any:
        """Repeat a request, with waits that double, until it succeeds or the attempts are used
        up.
        """
        import urllib3

        while True:
            if self.stop():
                raise Stopped("stopped; run the same command to continue")
            try:
                return request()
            # requests' errors are OSErrors
            except (_BrokenError, OSError, urllib3.exceptions.HTTPError) as error:
                self.close()
                self.breaks += 1
                self._failures += 1
                asked = getattr(error, "wait", None)
                if final := self._final_error(error, asked or 0.0):
                    raise final from error
            usual = min(FIRST_WAIT * 2.0 ** min(self._failures - 1, 30), LONGEST_WAIT)
            rest(usual if asked is None else asked, self.stop)

    def _final_error(self, error: Exception, wait: float) -> FetchError | None:
        """Return the error that ends the reading, None to try again."""
        name, failures = shown(self.url), self._failures
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            return FetchError(f"{name}: the server's certificate cannot be verified")
        if wait > LONGEST_WAIT:
            return FetchError(
                f"{name}: {_reason(error)} and asks for {wait:,.0f} seconds: try again then"
            )
        if failures >= ATTEMPTS:
            tries = f"{failures} tries in a row" if failures > 1 else "the first try"
            return FetchError(
                f"{name}: given up at byte {self.position:,} after {tries} ({_reason(error)})"
            )
        return None


def rest(seconds: float, stop: Stop) -> None:
    """Wait, and raise Stopped as soon as `stop` returns true."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if stop():
            raise Stopped("stopped while waiting for the server; run the same command to continue")
        time.sleep(min(left, 0.2))


def _session() -> "requests.Session":
    """Return a session that asks for uncompressed transfer; proxies and certificates come from the
    environment.
    """
    import requests

    session = requests.Session()
    session.headers.update(
        {"User-Agent": "fianchetto (chess datasets)", "Accept-Encoding": "identity"}
    )
    return session


def _parse(status: int, headers: Mapping[str, str]) -> tuple[RemoteVersion, int, bool]:
    """Return a response's version of the file, the first byte of its body, and whether the body's
    end is marked.
    """
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


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of Retry-After, None if the server sends none."""
    text = headers.get("Retry-After", "").strip()
    if _SIZE.fullmatch(text):
        return float(text)
    with suppress(ValueError, OverflowError):
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    return None


def _reason(error: BaseException) -> str:
    """Return in a few words why a request failed; the URL, which may hold a secret, is not in
    them.
    """
    if isinstance(error, _BrokenError):
        return str(error)
    names = {type(error).__name__}
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
        names.add(type(error).__name__)
    if any("Timeout" in name for name in names):
        return "nothing came in time"
    return getattr(error, "strerror", None) or "the connection broke"
