"""Read a file from the web in order, and resume after a broken connection.

urllib3's Retry counts the attempts and computes the waits, but it neither covers the body of a
response nor polls `stop`, so requests are repeated here. A resuming request sends a strong ETag in
If-Range (RFC 9110 section 13.1.5), and the response must repeat it, so bytes of two versions of a
file are never mixed. Without a strong ETag, a broken download is not resumed.
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

MAX_READ_BYTES = 1 << 18
"""Maximum number of bytes that one read of a connection returns."""
MAX_REDIRECTS = 10
MAX_ATTEMPTS = 6
"""Maximum number of failed requests in a row."""
CONNECT_SECONDS, STALL_SECONDS = 15.0, 60.0
"""Timeouts for connecting and for the next byte, in seconds."""
BACKOFF_FACTOR = 1.0
"""Backoff factor of urllib3's Retry: the waits in seconds are 0, 2, 4, 8 ... times this."""
MAX_WAIT_SECONDS = 300.0
"""Maximum wait between requests; if the server asks for more, the request fails."""

_RETRIED_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,18})-[0-9]{1,18}/([0-9]{1,18})")


@dataclass(frozen=True, kw_only=True, slots=True)
class RemoteVersion:
    """Size, ETag and time that identify a version of a remote file."""

    size: int | None = None
    """Number of bytes; None if the server does not send it."""
    etag: str = ""
    modified: str = ""
    """Time of the last change, as sent by the server."""

    @property
    def validator(self) -> str:
        """ETag if it is strong, else ""."""
        return "" if self.etag.startswith("W/") else self.etag

    @property
    def tag(self) -> str:
        """ETag or, without one, the time of the last change."""
        return self.etag or self.modified

    def differs_from(self, other: "RemoteVersion") -> bool:
        """Return whether the two are certainly different versions."""
        pairs = ((self.size, other.size), (self.tag or None, other.tag or None))
        return any(None not in pair and pair[0] != pair[1] for pair in pairs)


class _TransientError(Exception):
    """A request failed and may be retried, after `wait` seconds if the server set a delay."""

    def __init__(self, reason: str, wait: float | None = None) -> None:
        super().__init__(reason)
        self.wait = wait


def is_http_url(name: str) -> bool:
    """Return whether a name is an http or https URL."""
    return name.startswith(("https://", "http://"))


def parse_file_name(url: str) -> str:
    """Return the last part of a URL's path, decoded; raises ConfigError for an invalid URL."""
    try:
        return unquote(urlsplit(url).path.rpartition("/")[2])
    except ValueError as error:
        raise ConfigError(f"{redact_url(url)!r} is not a valid URL: {error}") from error


def redact_url(url: str) -> str:
    """Remove user, password and query from a URL, since they may be secrets."""
    return re.sub("//[^/]*@", "//", re.split("[?#]", url)[0])


class WebFile:
    """A file on the web, read in order; broken connections are resumed.

    To continue an earlier read at byte `begin`, pass its `version`. Methods raise FetchError if the
    file cannot be read, SourceChangedError if it was replaced or cannot be resumed, and Stopped.
    """

    def __init__(
        self, url: str, stop: Stop = never, *, begin: int = 0, version: RemoteVersion | None = None
    ) -> None:
        self.url, self.stop, self.position = url, stop, begin
        self.version = version or RemoteVersion()
        self._response: requests.Response | None = None
        self._session = _make_session()

    def open(self) -> RemoteVersion:
        """Send the first request and return the version of the file."""
        if not self._is_at_end():
            self._retry(self._request)
        return self.version

    def read(self, count: int) -> bytes:
        """Return up to `count` bytes as they arrive; b"" at the end of the file."""
        data: bytes = self._retry(lambda: self._receive(min(count, MAX_READ_BYTES)))
        self.position += len(data)
        return data

    def close(self) -> None:
        """Close the connection."""
        if self._response is not None:
            self._response.close()
        self._response = None

    def _is_at_end(self) -> bool:
        return self.position > 0 and self.position == self.version.size

    def _receive(self, count: int) -> bytes:
        """Return bytes of the response's body; raises _TransientError if it ends too early."""
        if self._is_at_end():
            return b""
        if self._response is None:
            self._request()
        assert self._response is not None
        data = bytes(self._response.raw.read1(count, decode_content=False))
        if not data and self.version.size:
            raise _TransientError(f"the stream ended before byte {self.version.size:,}")
        return data

    def _request(self) -> None:
        """Request the bytes from the current position on; raises _TransientError to be retried."""
        name, begin, validator = redact_url(self.url), self.position, self.version.validator
        if begin and not validator:
            raise SourceChangedError(
                f"{name} broke off at byte {begin:,} and cannot be resumed, since its server "
                "sends no strong ETag: try again, or download it by other means"
            )
        headers = {"Range": f"bytes={begin}-", "If-Range": validator} if begin else {}
        self._response = response = self._send(headers)
        status = response.status_code
        if status in _RETRIED_STATUSES:
            raise _TransientError(f"the server answered {status}", _parse_retry_after(response))
        if status not in (200, 206, 416):
            hint = ": there is no such file" if status in (404, 410) else ""
            raise FetchError(f"{name}: the server answered {status}{hint}")
        found, start = _parse_response(response)
        is_same_file = not begin or (status == 206 and found.validator == validator)
        if not is_same_file or self.version.differs_from(found):
            raise SourceChangedError(
                f"{name} was replaced by another version, or its server cannot resume it"
            )
        if start != begin or status != (206 if begin else 200):
            raise _TransientError("the server did not send the requested bytes")
        if not response.raw.chunked and response.raw.length_remaining is None:
            raise FetchError(
                f"{name}: the server sends neither a size nor an end mark, so a broken connection "
                f"would go unnoticed: download it by other means and check it"
            )
        self.version = found

    def _send(self, headers: dict[str, str]) -> "requests.Response":
        import requests

        self.close()
        timeout = (CONNECT_SECONDS, STALL_SECONDS)
        try:
            return self._session.get(self.url, headers=headers, stream=True, timeout=timeout)
        except FetchError:
            raise
        # the errors of requests and urllib3 for invalid URLs are ValueErrors
        except (requests.TooManyRedirects, requests.exceptions.SSLError, ValueError) as error:
            name = redact_url(self.url)
            raise FetchError(f"{name} cannot be opened: {_describe_error(error)}") from error

    def _retry(self, request: Callable[[], Any]) -> Any:
        """Repeat a request until it succeeds or has failed MAX_ATTEMPTS times in a row."""
        from urllib3.exceptions import HTTPError, MaxRetryError
        from urllib3.util import Retry

        name = redact_url(self.url)
        retries = Retry(
            total=MAX_ATTEMPTS - 1, backoff_factor=BACKOFF_FACTOR, backoff_max=MAX_WAIT_SECONDS
        )
        while True:
            if self.stop():
                raise Stopped("stopped; run the same command to continue")
            try:
                return request()
            # the errors of requests are OSErrors
            except (_TransientError, OSError, HTTPError) as error:
                self.close()
                reason, wait = _describe_error(error), getattr(error, "wait", None)
                if wait is not None and wait > MAX_WAIT_SECONDS:
                    raise FetchError(
                        f"{name}: {reason} and asks to wait {wait:,.0f} seconds: try again later"
                    ) from error
                try:
                    retries = retries.increment("GET", name, error=error)
                except MaxRetryError:
                    raise FetchError(
                        f"{name}: gave up at byte {self.position:,} after {MAX_ATTEMPTS} failed "
                        f"attempts in a row ({reason})"
                    ) from error
            wait_unless_stopped(retries.get_backoff_time() if wait is None else wait, self.stop)


def wait_unless_stopped(seconds: float, stop: Stop) -> None:
    """Wait `seconds`, or until `stop` returns True."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and not stop():
        time.sleep(min(left, 0.2))


def _make_session() -> "requests.Session":
    """Return a session that asks for uncompressed bodies and limits redirects."""
    import requests

    session = requests.Session()
    session.max_redirects = MAX_REDIRECTS
    session.hooks["response"].append(_refuse_unencrypted)
    agent = "fianchetto (chess datasets)"
    session.headers.update({"User-Agent": agent, "Accept-Encoding": "identity"})
    return session


def _refuse_unencrypted(response: "requests.Response", **_: object) -> None:
    """Raise FetchError for a redirect from https to another scheme, before it is followed."""
    target = urljoin(response.url, response.headers.get("Location", ""))
    was_encrypted = response.url.startswith("https:")
    if response.is_redirect and was_encrypted and not target.startswith("https:"):
        name = redact_url(response.url)
        raise FetchError(f"{name} redirects to an unencrypted URL, which is not followed")


def _parse_response(response: "requests.Response") -> tuple[RemoteVersion, int]:
    """Return the version of a response's file, and the offset of the body in it (-1: unknown)."""
    headers, start, size = response.headers, 0, response.raw.length_remaining
    if response.status_code != 200:
        part = _CONTENT_RANGE.fullmatch(headers.get("Content-Range", "").strip())
        start, size = (int(part[1]), int(part[2])) if part else (-1, None)
    etag, modified = headers.get("ETag", ""), headers.get("Last-Modified", "")
    return RemoteVersion(size=size, etag=etag, modified=modified), start


def _parse_retry_after(response: "requests.Response") -> float | None:
    """Return the seconds of the Retry-After header; None if it is missing or invalid."""
    from urllib3.exceptions import InvalidHeader
    from urllib3.util import Retry

    with suppress(ValueError, OverflowError, InvalidHeader):
        return Retry().get_retry_after(response.raw)
    return None


def _describe_error(error: BaseException) -> str:
    """Describe briefly why a request failed, without its URL, which may contain a secret."""
    if isinstance(error, _TransientError):
        return str(error)
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return getattr(error, "strerror", None) or type(error).__name__
