"""Files of the web, read in order and through broken connections, for `fetch` and for an `ingest` of an address.

    request -> bytes -> a break, a stall, "come back later" -> wait -> request from that byte on -> bytes -> the end

A request that continues names the version it wants (If-Range), so a file that was replaced meanwhile is noticed and its parts
are never joined to the old one's. Waits double (pipeline/storage/retry.py); one that the server names (Retry-After) is kept.
"""

import email.utils
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

from engine.progress import Stop, never
from pipeline.errors import ChangedError, ConfigError, FetchError
from pipeline.storage.retry import Patience, Retry

if TYPE_CHECKING:
    import requests

BLOCK = 1 << 18
"""Bytes that one read of a connection takes at most."""

REDIRECTS = 10
"""Redirects in a row that are followed."""

_LATER = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses that may be different after a while."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What a server says of a file: what distinguishes its versions."""

    size: int | None = None
    """Bytes, None where the server does not say."""
    etag: str = ""
    """The server's name for this version, "" where it has none."""
    modified: str = ""
    """When it was last changed, as the server writes it."""

    @property
    def version(self) -> str:
        """The name of this version: the ETag, else the time of the last change, else ""."""
        return self.etag or self.modified

    @property
    def validator(self) -> str:
        """The value for If-Range: a strong ETag, else the time of the last change, else ""."""
        return self.modified if self.etag.startswith("W/") else self.version

    def differs(self, other: "Facts") -> bool:
        """Return whether this is another version, by the best field that both have."""
        if self.etag and other.etag:
            return self.etag.removeprefix("W/") != other.etag.removeprefix("W/")
        if self.modified and other.modified and self.modified != other.modified:
            return True
        return None not in (self.size, other.size) and self.size != other.size


class _Broken(Exception):  # noqa: N818 - always caught here
    """A request that may succeed later; `wait` is the seconds that the server asks for."""

    def __init__(self, reason: str, wait: float | None = None) -> None:
        super().__init__(reason)
        self.wait = wait


def file_name(url: str) -> str:
    """Return the last part of a URL's path, without the query, which may hold a secret."""
    return unquote(_split(url).path.rpartition("/")[2])


def shown(url: str) -> str:
    """Return a URL as it may be shown: without user, password and query."""
    parts = _split(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _split(url: str) -> SplitResult:
    """Return the parts of a URL; raises ConfigError where it is none."""
    try:
        return urlsplit(url)
    except ValueError as error:
        raise ConfigError(f"{url.partition('?')[0]!r} is no address: {error}") from error


class WebFile:
    """A file of the web from byte `begin` on; where `begun` is given, the file must still be that version.

    Its methods raise FetchError where the file cannot be had, ChangedError where it is another version than it was, Stopped.
    """

    def __init__(
        self,
        url: str,
        patience: Patience | None = None,
        stop: Stop = never,
        *,
        begin: int = 0,
        begun: Facts | None = None,
    ) -> None:
        self.url = url
        self._retry = Retry(patience or Patience(), stop)
        self.position = begin
        """Byte of the file that the next read begins at."""
        self.facts = begun or Facts()
        self.breaks = 0
        """Requests so far that broke off or were put off."""
        self._known = begun is not None
        self._skip = 0
        self._body: requests.Response | None = None
        self._session = _session()

    def look(self) -> Facts:
        """Return what the server says of the file, by a request for its first byte."""
        self._persist(lambda: self._ask("bytes=0-0"))
        self.close()
        return self.facts

    def open(self) -> Facts:
        """Begin to read, and return what the server says of the file."""
        if not self._ended():
            self._persist(self._ask)
        return self.facts

    def read(self, count: int) -> bytes:
        """Return up to `count` bytes as they come, none at the end."""
        while True:
            data: bytes = self._persist(lambda: self._take(min(count, BLOCK)))
            if not data:
                return b""
            if self._skip:  # the server begins at 0 again, whatever was asked
                data, self._skip = data[self._skip :], max(0, self._skip - len(data))
            if data:
                self._retry.failures = 0
                self.position += len(data)
                return data

    @property
    def whole(self) -> bool:
        """Whether the server, asked for a part, sends the whole file."""
        return self._skip > 0

    def tell(self) -> int:
        """Return the byte that the next read begins at."""
        return self.position

    def close(self) -> None:
        """Close the connection."""
        if self._body is not None:
            self._body.close()
        self._body = None

    def _take(self, count: int) -> bytes:
        """Return what has come; raises _Broken where the stream ends before the file."""
        if self._body is None and not self._ended():
            self._ask()
        if self._ended() or self._body is None:
            return b""
        data = bytes(self._body.raw.read1(count, decode_content=False))
        if not data and self.facts.size is not None:
            raise _Broken(f"the stream ended at byte {self.position:,} of {self.facts.size:,}")
        return data

    def _ended(self) -> bool:
        return self._known and self.position == self.facts.size

    def _ask(self, wanted: str = "") -> None:
        """Make one request, from the position on, and check its answer."""
        headers = {"Range": wanted or f"bytes={self.position}-"} if wanted or self.position else {}
        if self.position and self._known and self.facts.validator:
            headers["If-Range"] = self.facts.validator
        patience = (self._retry.patience.connect_seconds, self._retry.patience.stall_seconds)
        self._body = answer = self._answer(headers, patience)
        if answer.status_code in _LATER:
            raise _Broken(f"the server answered {answer.status_code}", _retry_after(answer.headers))
        if answer.status_code not in (200, 206, 416):
            hint = ": there is no such file" if answer.status_code in (404, 410) else ""
            raise FetchError(f"{shown(self.url)}: the server answers {answer.status_code} {answer.reason}{hint}")
        found, start = _said(answer.status_code, answer.headers)
        if answer.status_code == 206 and start != (0 if wanted else self.position):
            raise _Broken("the server sent other bytes than were asked for")
        if answer.status_code == 416:
            if found.size is None or found.size > self.position:
                raise FetchError(f"{shown(self.url)}: the server does not give it from byte {self.position:,} on")
            if found.size < self.position:
                raise ChangedError(f"{shown(self.url)} is shorter than it was")
        elif self._known and self.facts.differs(found):
            raise ChangedError(f"{shown(self.url)} was replaced by another version")
        named = found if found.version else replace(self.facts, size=found.size)
        self.facts = replace(named, size=self.facts.size if found.size is None else found.size)
        self._known = True
        self._skip = self.position if answer.status_code == 200 else 0

    def _answer(self, headers: Mapping[str, str], patience: tuple[float, float]) -> "requests.Response":
        """Return the answer at the end of the redirects, each of which is looked at before it is followed."""
        import requests

        url = self.url
        for _ in range(REDIRECTS + 1):
            answer = self._session.get(url, headers=headers, stream=True, timeout=patience, allow_redirects=False)
            target = self._session.get_redirect_target(answer)
            if target is None:
                return answer
            answer.close()
            following = urljoin(url, requests.utils.requote_uri(target))
            if _split(url).scheme == "https" and _split(following).scheme != "https":
                raise FetchError(f"{shown(self.url)} leads to an address without encryption: it is not followed")
            url = following
        raise FetchError(f"{shown(self.url)} leads nowhere: TooManyRedirects, over {REDIRECTS} of them")

    def _persist(self, request: Callable[[], Any]) -> Any:
        """Make a request, or take its bytes, again until it succeeds or patience is at its end."""
        import urllib3

        transient = (_Broken, OSError, urllib3.exceptions.HTTPError)  # requests' own errors are OSErrors
        return self._retry.run(request, lambda: transient, self._refused)

    def _refused(self, error: Exception, last: bool) -> FetchError | None:
        """Return what is raised for a request that failed for good, None for one that may succeed later."""
        import requests

        name, failures, longest = shown(self.url), self._retry.failures, self._retry.patience.longest_wait
        wrong = (requests.exceptions.InvalidURL, requests.exceptions.MissingSchema, requests.exceptions.InvalidSchema)
        if isinstance(error, wrong):
            return FetchError(f"{name} leads nowhere: {type(error).__name__}")
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            return FetchError(f"{name}: the server's certificate is not to be trusted")
        self.close()
        self.breaks += 1
        if last:
            tries = f"{failures} tries in a row" if failures > 1 else "the first try"
            return FetchError(f"{name}: given up at byte {self.position:,} after {tries} ({_reason(error)})")
        asked = getattr(error, "wait", None)
        if asked is not None and asked > longest:
            return FetchError(f"{name}: {_reason(error)} and asks for {asked:,.0f} seconds: come back then")
        return None


def _session() -> "requests.Session":
    """Return a session that asks for uncompressed transfer; proxies and certificates come from the environment."""
    import requests

    session = requests.Session()
    session.headers.update({"User-Agent": "fianchetto (chess datasets)", "Accept-Encoding": "identity"})
    return session


def _said(status: int, headers: Mapping[str, str]) -> tuple[Facts, int]:
    """Return what an answer says of its file, and the byte that its body begins at."""
    size, start = headers.get("Content-Length", ""), 0
    if status != 200:
        span = re.fullmatch(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)", headers.get("Content-Range", "").strip())
        start, size = (int(span[1] or -1), span[2]) if span else (-1, "")
    elif "Transfer-Encoding" in headers:
        size = ""
    known = int(size) if size.isdecimal() else None
    return Facts(size=known, etag=headers.get("ETag", ""), modified=headers.get("Last-Modified", "")), start


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of Retry-After, None where the server does not say."""
    text = headers.get("Retry-After", "").strip()
    if text.isdecimal():
        return float(text)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except ValueError:
        return None


def _reason(error: BaseException) -> str:
    """Return in few words why a request failed; the URL, which may hold a secret, is not in them."""
    if isinstance(error, _Broken):
        return str(error)
    names = {type(error).__name__}
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
        names.add(type(error).__name__)
    if any("Timeout" in name for name in names):
        return "nothing came in time"
    return getattr(error, "strerror", None) or "the connection broke"
