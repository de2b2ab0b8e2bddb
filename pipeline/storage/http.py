"""Files of the web, read in order and through breaks: what `fetch` downloads and `ingest` streams come this way.

    request -> bytes -> a break, a stall, "come back later" -> wait -> request from that byte on -> bytes -> the end

A request that goes on names the version it wants (If-Range), so a file that was replaced meanwhile is noticed and never
joined to the old one. Waits double, and a server that names one (Retry-After) is waited for as long.
"""

import email.utils
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

from engine.progress import Stop, never
from pipeline.errors import ChangedError, ConfigError, FetchError, Stopped

if TYPE_CHECKING:
    import requests

BLOCK = 1 << 18
"""Most bytes that are taken off a connection at a time."""

REDIRECTS = 10
"""Redirects that are followed, one after another."""

_LATER = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Answers that may be different in a while."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Patience:
    """How long what does not come is waited for."""

    attempts: int = 6
    """Requests in a row that may bring nothing before the file is given up."""
    connect_seconds: float = 15.0
    """Seconds until a connection must stand."""
    stall_seconds: float = 60.0
    """Seconds without a byte after which a connection is given up."""
    first_wait: float = 1.0
    """Seconds before the second request; each later wait is twice as long."""
    longest_wait: float = 300.0
    """Seconds of the longest wait; a server that asks for a longer one is not asked again."""

    def __post_init__(self) -> None:
        """Check what the types do not say."""
        if not 1 <= self.attempts <= 1000:
            raise ConfigError(f"attempts is from 1 to 1000, not {self.attempts}")
        if self.connect_seconds <= 0 or self.stall_seconds <= 0:
            raise ConfigError("connect_seconds and stall_seconds are above 0")
        if not 0 <= self.first_wait <= self.longest_wait:
            raise ConfigError("first_wait is from 0 to longest_wait")

    def wait(self, failures: int) -> float:
        """Give the seconds to wait after so many failures in a row."""
        return min(self.first_wait * 2.0 ** min(failures - 1, 30), self.longest_wait)


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What a server says of a file, by which one version of it is told from another."""

    size: int | None = None
    """Bytes, None where it is not said."""
    etag: str = ""
    """The server's name for this version, "" where it has none."""
    modified: str = ""
    """When it was last changed, as the server writes it."""

    @property
    def version(self) -> str:
        """What names this version of the file: the ETag, or when it was changed, or "" ."""
        return self.etag or self.modified

    @property
    def validator(self) -> str:
        """What If-Range may hold: a strong ETag, or the time of change, or "" ."""
        return self.modified if self.etag.startswith("W/") else self.version

    def differs(self, other: "Facts") -> bool:
        """Tell whether this is of another version, by the best that both have."""
        if self.etag and other.etag:
            return self.etag.removeprefix("W/") != other.etag.removeprefix("W/")
        if self.modified and other.modified and self.modified != other.modified:
            return True
        return None not in (self.size, other.size) and self.size != other.size


class _Broken(Exception):  # noqa: N818 - caught here, always
    """A request that may do better later."""

    def __init__(self, reason: str, wait: float | None = None) -> None:
        super().__init__(reason)
        self.wait = wait


def rest(seconds: float, stop: Stop) -> None:
    """Wait, and raise Stopped as soon as it is asked for."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if stop():
            raise Stopped("stopped while waiting for the server; run the same command to continue")
        time.sleep(min(left, 0.2))


def file_name(url: str) -> str:
    """Give the last part of a URL's path, without the query, which may hold a secret."""
    return unquote(_split(url).path.rpartition("/")[2])


def shown(url: str) -> str:
    """Give a URL as it may be shown: no user, password or query."""
    parts = _split(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _split(url: str) -> SplitResult:
    """Take an address apart; raises ConfigError where it is none."""
    try:
        return urlsplit(url)
    except ValueError as error:
        raise ConfigError(f"{url.partition('?')[0]!r} is no address: {error}") from error


class WebFile:
    """A file of the web from byte `begin` on; one that was `begun` before must still be the same version.

    Raises FetchError where it cannot be had, ChangedError where it is another version than it was, Stopped.
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
        self.url, self.patience, self.stop = url, patience or Patience(), stop
        self.position = begin
        """Byte of the file that the next read begins at."""
        self.facts = begun or Facts()
        self.breaks = 0
        """Requests so far that broke off or were put off."""
        self._known = begun is not None
        self._failures = self._skip = 0
        self._body: requests.Response | None = None
        self._session = _session()

    def look(self) -> Facts:
        """Ask what the file is, for the price of its first byte."""
        self._persist(lambda: self._ask("bytes=0-0"))
        self.close()
        return self.facts

    def open(self) -> Facts:
        """Begin to read, and say what the file is."""
        if not self._ended():
            self._persist(self._ask)
        return self.facts

    def read(self, count: int) -> bytes:
        """Read up to `count` bytes as they come; nothing means the end."""
        while True:
            data: bytes = self._persist(lambda: self._take(min(count, BLOCK)))
            if not data:
                return b""
            if self._skip:  # the server begins at 0 again, whatever was asked
                data, self._skip = data[self._skip :], max(0, self._skip - len(data))
            if data:
                self._failures = 0
                self.position += len(data)
                return data

    @property
    def whole(self) -> bool:
        """Whether the server, asked for a part, has begun at the first byte."""
        return self._skip > 0

    def tell(self) -> int:
        """Give the byte that the next read begins at."""
        return self.position

    def close(self) -> None:
        """Give up the connection."""
        if self._body is not None:
            self._body.close()
        self._body = None

    def _take(self, count: int) -> bytes:
        """Take what has come; raises _Broken where the stream ends before the file."""
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
        """Make one request, from where the reading is, and look at its answer."""
        headers = {"Range": wanted or f"bytes={self.position}-"} if wanted or self.position else {}
        if self.position and self._known and self.facts.validator:
            headers["If-Range"] = self.facts.validator
        patience = (self.patience.connect_seconds, self.patience.stall_seconds)
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
        """Make a request, or take its bytes, until it does or patience is at its end."""
        import requests
        import urllib3

        wrong = (requests.exceptions.InvalidURL, requests.exceptions.MissingSchema, requests.exceptions.InvalidSchema)
        while True:
            if self.stop():
                raise Stopped("stopped; run the same command to continue")
            try:
                return request()
            except wrong as error:
                raise FetchError(f"{shown(self.url)} leads nowhere: {type(error).__name__}") from error
            except (_Broken, OSError, urllib3.exceptions.HTTPError) as error:  # requests' own are OSErrors
                if "CERTIFICATE_VERIFY_FAILED" in str(error):
                    raise FetchError(f"{shown(self.url)}: the server's certificate is not to be trusted") from error
                self._pause(error)

    def _pause(self, error: Exception) -> None:
        """Wait for the next try, or give up."""
        self.close()
        self._failures += 1
        self.breaks += 1
        reason = _reason(error)
        if self._failures >= self.patience.attempts:
            tries = f"{self._failures} tries in a row" if self._failures > 1 else "the first try"
            raise FetchError(
                f"{shown(self.url)}: given up at byte {self.position:,} after {tries} ({reason})"
            ) from error
        wait = self.patience.wait(self._failures)
        asked = error.wait if isinstance(error, _Broken) else None
        if asked is not None and asked > self.patience.longest_wait:
            raise FetchError(
                f"{shown(self.url)}: {reason} and asks for {asked:,.0f} seconds: come back then"
            ) from error
        rest(wait if asked is None else asked, self.stop)


def _session() -> "requests.Session":
    """Make a session that asks for bytes as they lie; proxies and certificates come from the environment."""
    import requests

    session = requests.Session()
    session.headers.update({"User-Agent": "fianchetto (chess datasets)", "Accept-Encoding": "identity"})
    return session


def _said(status: int, headers: Mapping[str, str]) -> tuple[Facts, int]:
    """Read what an answer says of its file, and the byte that its body begins at."""
    size, start = headers.get("Content-Length", ""), 0
    if status != 200:
        span = re.fullmatch(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)", headers.get("Content-Range", "").strip())
        start, size = (int(span[1] or -1), span[2]) if span else (-1, "")
    elif "Transfer-Encoding" in headers:
        size = ""
    known = int(size) if size.isdecimal() else None
    return Facts(size=known, etag=headers.get("ETag", ""), modified=headers.get("Last-Modified", "")), start


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Read how many seconds a server asks to be left alone, None where it does not say."""
    text = headers.get("Retry-After", "").strip()
    if text.isdecimal():
        return float(text)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except ValueError:
        return None


def _reason(error: BaseException) -> str:
    """Say why a request failed in few words, none of which are the URL's."""
    if isinstance(error, _Broken):
        return str(error)
    names = {type(error).__name__}
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
        names.add(type(error).__name__)
    if any("Timeout" in name for name in names):
        return "nothing came in time"
    return getattr(error, "strerror", None) or "the connection broke"
