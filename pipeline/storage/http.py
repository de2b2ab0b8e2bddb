"""Read a file from the web in order, and resume after a broken connection.

urllib3's Retry counts the attempts and computes the waits, but it neither covers the body of a
response nor polls `stop`, so the requests are repeated here. A resuming request sends a strong ETag
in If-Range (RFC 9110 section 13.1.5), and the response must repeat it, so bytes of two versions of
a file are never mixed. Without a strong ETag, a broken download is not resumed.
"""

import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urljoin, urlsplit

from engine.progress import Stop, never
from pipeline.errors import ConfigError, FetchError, SourceChangedError, Stopped

if TYPE_CHECKING:
    import requests

BLOCK = 1 << 18
"""Maximum number of bytes that one read of a connection returns."""
REDIRECTS = 10
ATTEMPTS = 6
"""Maximum consecutive failed requests before giving up."""
CONNECT_SECONDS, STALL_SECONDS = 15.0, 60.0
"""Timeouts for connecting and for the next byte, in seconds."""
BACKOFF = 1.0
"""Backoff factor between requests, as in urllib3's Retry: waits of 0, 2, 4, 8 ... times this."""
MAX_WAIT = 300.0
"""Maximum wait in seconds; if the server asks for more, the request fails."""

_RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})
_PART = re.compile(r"bytes ([0-9]{1,18})-[0-9]{1,18}/([0-9]{1,18})")


@dataclass(frozen=True, kw_only=True, slots=True)
class RemoteVersion:
    """Properties that identify a version of a remote file."""

    size: int | None = None
    """Bytes; None if the server does not send it."""
    etag: str = ""
    modified: str = ""
    """Time of the last change, as sent by the server."""

    @property
    def validator(self) -> str:
        """ETag if it is strong, else ""."""
        return "" if self.etag.startswith("W/") else self.etag

    @property
    def name(self) -> str:
        """ETag, else the time of the last change."""
        return self.etag or self.modified

    def differs(self, other: "RemoteVersion") -> bool:
        """Return whether this is certainly a different version."""
        pairs = ((self.size, other.size), (self.name or None, other.name or None))
        return any(None not in pair and pair[0] != pair[1] for pair in pairs)


class _BrokenError(Exception):
    """A failed request that may be retried, after `wait` seconds if the server set a delay."""

    def __init__(self, reason: str, wait: float | None = None) -> None:
        super().__init__(reason)
        self.wait = wait


def is_web(name: str) -> bool:
    """Return whether a name is an http or https URL."""
    return name.startswith(("https://", "http://"))


def file_name(url: str) -> str:
    """Return the last part of a URL's path; raises ConfigError."""
    try:
        return unquote(urlsplit(url).path.rpartition("/")[2])
    except ValueError as error:
        raise ConfigError(f"{redact_url(url)!r} is not a valid URL: {error}") from error


def redact_url(url: str) -> str:
    """Return a URL without user, password and query, which may be secrets."""
    return re.sub("//[^/]*@", "//", re.split("[?#]", url)[0])


class WebFile:
    """A file on the web.

    To continue an earlier read at byte `begin`, give its `version`. Methods raise FetchError if the
    file cannot be read, SourceChangedError if it was replaced or cannot be resumed, and Stopped.
    """

    def __init__(
        self, url: str, stop: Stop = never, *, begin: int = 0, version: RemoteVersion | None = None
    ) -> None:
        self.url, self.stop, self.position = url, stop, begin
        self.version = version or RemoteVersion()
        self._body: requests.Response | None = None
        self._session = _session()

    def open(self) -> RemoteVersion:
        """Send the first request and return the version of the file."""
        if not self._is_at_end():
            self._retry(self._request)
        return self.version

    def read(self, count: int) -> bytes:
        """Return up to `count` bytes as they arrive, none at the end of the file."""
        data: bytes = self._retry(lambda: self._receive(min(count, BLOCK)))
        self.position += len(data)
        return data

    def close(self) -> None:
        """Close the connection."""
        if self._body is not None:
            self._body.close()
        self._body = None

    def _is_at_end(self) -> bool:
        return self.position > 0 and self.position == self.version.size

    def _receive(self, count: int) -> bytes:
        """Return bytes of the body; raises _BrokenError if it ends too early."""
        if self._is_at_end():
            return b""
        if self._body is None:
            self._request()
        assert self._body is not None
        data = bytes(self._body.raw.read1(count, decode_content=False))
        if not data and self.version.size:
            raise _BrokenError(f"the stream ended before byte {self.version.size:,}")
        return data

    def _request(self) -> None:
        """Request the bytes from the current position on; raises _BrokenError to try again."""
        name, begin, validator = redact_url(self.url), self.position, self.version.validator
        if begin and not validator:
            raise SourceChangedError(
                f"{name} broke off at byte {begin:,} and cannot be resumed, since its server "
                "sends no strong ETag: try again, or download it by other means"
            )
        headers = {"Range": f"bytes={begin}-", "If-Range": validator} if begin else {}
        self._body = answer = self._answer(headers)
        status = answer.status_code
        if status in _RETRIED:
            raise _BrokenError(f"the server answered {status}", _retry_after(answer))
        if status not in (200, 206, 416):
            hint = ": there is no such file" if status in (404, 410) else ""
            raise FetchError(f"{name}: the server answered {status}{hint}")
        found, start = _describe(answer)
        is_proven = not begin or (status == 206 and found.validator == validator)
        if not is_proven or self.version.differs(found):
            raise SourceChangedError(
                f"{name} was replaced by another version, or its server cannot resume it"
            )
        if start != begin or status != (206 if begin else 200):
            raise _BrokenError("the server did not send the requested bytes")
        if not answer.raw.chunked and answer.raw.length_remaining is None:
            raise FetchError(
                f"{name}: the server sends no size and no end mark, so a broken connection "
                f"would go unnoticed: download it by other means and check it"
            )
        self.version = found

    def _answer(self, headers: dict[str, str]) -> "requests.Response":
        """Return the response after all redirects."""
        import requests

        self.close()
        timeout = (CONNECT_SECONDS, STALL_SECONDS)
        try:
            return self._session.get(self.url, headers=headers, stream=True, timeout=timeout)
        except FetchError:
            raise
        # requests' and urllib3's errors about invalid addresses are ValueErrors
        except (requests.TooManyRedirects, requests.exceptions.SSLError, ValueError) as error:
            name = redact_url(self.url)
            raise FetchError(f"{name} cannot be opened: {_reason(error)}") from error

    def _retry(self, request: Callable[[], Any]) -> Any:
        """Repeat a request until it succeeds or the attempts are used up."""
        from urllib3.exceptions import HTTPError, MaxRetryError
        from urllib3.util import Retry

        name = redact_url(self.url)
        retries = Retry(total=ATTEMPTS - 1, backoff_factor=BACKOFF, backoff_max=MAX_WAIT)
        while True:
            if self.stop():
                raise Stopped("stopped; run the same command to continue")
            try:
                return request()
            # requests' errors are OSErrors
            except (_BrokenError, OSError, HTTPError) as error:
                self.close()
                reason, wait = _reason(error), getattr(error, "wait", None)
                if wait is not None and wait > MAX_WAIT:
                    raise FetchError(
                        f"{name}: {reason} and asks to wait {wait:,.0f} seconds: try again later"
                    ) from error
                try:
                    retries = retries.increment("GET", name, error=error)
                except MaxRetryError:
                    raise FetchError(
                        f"{name}: gave up at byte {self.position:,} after {ATTEMPTS} failed "
                        f"attempts in a row ({reason})"
                    ) from error
            wait_unless_stopped(retries.get_backoff_time() if wait is None else wait, self.stop)


def wait_unless_stopped(seconds: float, stop: Stop) -> None:
    """Wait `seconds`; return early if `stop` returns true."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and not stop():
        time.sleep(min(left, 0.2))


def _session() -> "requests.Session":
    """Return a session without compression that uses the environment's proxies and certificates."""
    import requests

    session = requests.Session()
    session.max_redirects = REDIRECTS
    session.hooks["response"].append(_refuse_unencrypted)
    agent = "fianchetto (chess datasets)"
    session.headers.update({"User-Agent": agent, "Accept-Encoding": "identity"})
    return session


def _refuse_unencrypted(answer: "requests.Response", **_: object) -> None:
    """Raise FetchError for a redirect from https to another scheme, before it is followed."""
    target = urljoin(answer.url, answer.headers.get("Location", ""))
    if answer.is_redirect and answer.url.startswith("https:") and not target.startswith("https:"):
        name = redact_url(answer.url)
        raise FetchError(f"{name} redirects to an unencrypted URL, which is not followed")


def _describe(answer: "requests.Response") -> tuple[RemoteVersion, int]:
    """Return the version of a response's file and the offset of its body, -1 if unknown."""
    headers, start, size = answer.headers, 0, answer.raw.length_remaining
    if answer.status_code != 200:
        part = _PART.fullmatch(headers.get("Content-Range", "").strip())
        start, size = (int(part[1]), int(part[2])) if part else (-1, None)
    etag, modified = headers.get("ETag", ""), headers.get("Last-Modified", "")
    return RemoteVersion(size=size, etag=etag, modified=modified), start


def _retry_after(answer: "requests.Response") -> float | None:
    """Return the seconds in Retry-After, None if it is missing or invalid."""
    from urllib3.exceptions import InvalidHeader
    from urllib3.util import Retry

    with suppress(ValueError, OverflowError, InvalidHeader):
        return Retry().get_retry_after(answer.raw)
    return None


def _reason(error: BaseException) -> str:
    """Describe briefly why a request failed, without the URL, which may contain a secret."""
    if isinstance(error, _BrokenError):
        return str(error)
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return getattr(error, "strerror", None) or type(error).__name__
