"""Download Lichess's months or any URL, and verify the files before they get their names.

    2013-01 -> name, URL, published sha256 -> NAME.part -> sha256 -> NAME
                                              NAME.part.json: URL, version

A download that was stopped, killed or disconnected resumes from `NAME.part` if the server still has
the same version. The file is renamed when it is on disk and has the expected hash, if any.
"""

import os
import re
import shutil
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from filelock import FileLock
from pydantic import Field

from engine.json_files import parse_json
from engine.progress import Progress, Stop, Tick, never, silent
from engine.temporaries import sync_directory
from model.settings import settings
from pipeline.errors import ConfigError, FetchError, SourceChangedError
from pipeline.storage.http import (
    MAX_READ_BYTES,
    RemoteVersion,
    WebFile,
    is_http_url,
    parse_file_name,
    redact_url,
)
from pipeline.storage.stores import hash_file, hold_lock, publish_json

LICHESS = "https://database.lichess.org/standard"
"""URL of Lichess's monthly dumps."""
HASHES_FILE = "sha256sums.txt"
"""Name of the list of published files, with a hash and a name on each line."""
MAX_HASHES_BYTES = 1 << 22
"""Maximum number of bytes to read from HASHES_FILE."""
MONTH_PREFIX = "lichess_db_standard_rated_"
"""Start of the file name of a month, before `2013-01`."""
_MONTH_PATTERN = re.compile("([0-9]{4})-(0[1-9]|1[0-2])")
_FIRST_MONTH = 2013 * 12
"""January 2013, counted in months."""
MAX_STARTS = 3
"""Maximum number of attempts at a download, since the file may change on the server."""


@settings(ConfigError)
class FetchConfig:
    """Settings of a fetch: server and expected hash."""

    base: Annotated[str, Field(pattern="^https?://")] = LICHESS
    """URL of the folder with the monthly dumps and their `sha256sums.txt`: Lichess or a mirror."""
    sha256: Annotated[str, Field(pattern="^([0-9a-f]{64})?$")] = ""
    """Expected SHA-256 of the file, if a single URL is fetched; "" accepts any."""


def parse_month(name: str) -> str:
    """Return the month in a name such as `lichess_db_standard_rated_2013-01`, else ""."""
    month = name.removeprefix(MONTH_PREFIX)
    return month if month != name and _MONTH_PATTERN.fullmatch(month) else ""


def parse_months(text: str) -> list[str]:
    """Return the months of `2013-01` or of the range `2013-01..2013-06`; raises ConfigError."""
    first, dots, last = text.partition("..")
    found = [_MONTH_PATTERN.fullmatch(month) for month in (first, last if dots else first)]
    ends = [int(match[1]) * 12 + int(match[2]) - 1 for match in found if match]
    now = datetime.now(UTC)
    this_month = now.year * 12 + now.month - 1
    if len(ends) < 2 or not _FIRST_MONTH <= ends[0] <= ends[1] <= this_month:
        newest = ", ".join(_format_month(this_month - back) for back in (1, 2, 3))
        raise ConfigError(
            f"{redact_url(text)!r} is not a month from 2013-01 on, an ascending range of months "
            f"such as 2013-01..2013-06, or a URL; the newest months are {newest}"
        )
    return [_format_month(month) for month in range(ends[0], ends[1] + 1)]


def _format_month(month: int) -> str:
    return f"{month // 12}-{month % 12 + 1:02}"


def _fetch_hashes(base: str, stop: Stop) -> dict[str, str]:
    """Download the SHA-256 of each published file, by file name; raises FetchError."""
    url, text, found = f"{base}/{HASHES_FILE}", b"", dict[str, str]()
    with closing(WebFile(url, stop)) as file:
        while len(text) < MAX_HASHES_BYTES and (data := file.read(MAX_READ_BYTES)):
            text += data
    for line in text.decode("utf-8", "replace").splitlines():
        if not (match := re.fullmatch(r"([0-9a-fA-F]{64}) [ *](\S+)", line.strip())):
            problem = f"is not a list of hashes: it has the line {line[:80]!r}"
            raise FetchError(f"{redact_url(url)} {problem}")
        found[match[2].rpartition("/")[2]] = match[1].lower()
    return found


def fetch(
    targets: Sequence[str],
    out: Path,
    config: FetchConfig | None = None,
    *,
    progress: Progress = silent,
    stop: Stop = never,
) -> dict[str, Any]:
    """Download months, ranges of months and URLs into the folder `out`; return what was done.

    `files` of the result has, for each file name, its size and hash, whether the hash was compared
    with a published or given one, and whether the file was downloaded now. Raises ConfigError,
    FetchError and Stopped.
    """
    files = _resolve_targets(targets, out, config or FetchConfig(), stop)
    meter = _Meter(progress)
    try:
        out.mkdir(parents=True, exist_ok=True)
        done = {file.path.name: file.fetch(meter) for file in files}
    except OSError as error:
        raise FetchError(
            f"{error.strerror or error} ({out}): the bytes received are kept; run the same command "
            f"to continue"
        ) from error
    return {"out": str(out), "fetched": meter.fetched, "files": done}


def _resolve_targets(
    targets: Sequence[str], out: Path, config: FetchConfig, stop: Stop
) -> list["_Download"]:
    if not targets:
        raise ConfigError(
            "name a month such as 2013-01, a range such as 2013-01..2013-06, or a URL"
        )
    base, urls = config.base.rstrip("/"), list[str]()
    for target in targets:
        months = [] if is_http_url(target) else parse_months(target)
        urls += [f"{base}/{MONTH_PREFIX}{month}.pgn.zst" for month in months] or [target]
    if config.sha256 and (len(urls) > 1 or not is_http_url(targets[0])):
        raise ConfigError(
            "sha256 can only be given with a single URL: the hashes of months are published"
        )
    published = [url for url in urls if url.startswith(f"{base}/") and not config.sha256]
    hashes = _fetch_hashes(base, stop) if published else {}
    files: dict[str, _Download] = {}
    for url in urls:
        name = parse_file_name(url)
        if not (name.isprintable() and re.fullmatch(r"[^./\\][^/\\]{,199}", name)):
            raise ConfigError(f"{redact_url(url)} does not end in a file name")
        if url in published and name not in hashes:
            newest = ", ".join(sorted(hashes, reverse=True)[:3]) or "nothing"
            raise FetchError(f"{base} does not publish {name}; the newest files are {newest}")
        file = _Download(url, out / name, config.sha256 or hashes.get(name, ""), stop)
        if files.setdefault(name, file).url != url:
            raise ConfigError(f"two of the URLs end in {name}: fetch them into different folders")
    return list(files.values())


class _Meter:
    """Reports progress in bytes; the total covers only the files started so far."""

    def __init__(self, progress: Progress) -> None:
        self.progress, self.fetched, self.start_time = progress, 0, time.monotonic()
        self.total: int | None = None

    def add(self, count: int) -> None:
        self.fetched += count
        rate = self.fetched / max(time.monotonic() - self.start_time, 1e-9) / 1e6
        self.progress(Tick(self.fetched, self.total, "B", {"MB/s": rate}))


class _Download:
    """A file to download, and the part of it that is on disk."""

    def __init__(self, url: str, path: Path, sha256: str, stop: Stop) -> None:
        """Describe the file; `sha256` is the expected hash, "" for any."""
        self.url, self.path, self.sha256, self.stop = url, path, sha256, stop
        self.part = path.with_name(f"{path.name}.part")
        self.state = path.with_name(f"{path.name}.part.json")
        """File with the URL, the expected hash and the version of the partial download."""

    def fetch(self, meter: _Meter) -> dict[str, Any]:
        """Download the file, under a lock, unless it exists; return its entry in the result."""
        lock = FileLock(self.path.with_name(f".{self.path.name}.lock"))
        with hold_lock(lock, FetchError(f"another fetch is writing {self.path}: wait for it")):
            exists = self.path.exists()
            sha256 = hash_file(self.path, self.stop) if exists else self._download(meter)
            if self._load_version() is not None and not self.part.exists():
                self.state.unlink()  # the last fetch was killed right after the rename
        if self.sha256 not in ("", sha256):
            raise FetchError(
                f"{self.path} exists and differs from the published file: move it away"
            )
        entry = {"bytes": self.path.stat().st_size, "sha256": sha256}
        return entry | {"verified": bool(self.sha256), "fetched": not exists}

    def _download(self, meter: _Meter) -> str:
        """Download the missing bytes, or all of them if the partial download cannot be continued.

        Returns the file's SHA-256.
        """
        if not self.state.exists() and self.part.exists():
            raise FetchError(f"{self.part} was not written by this program: move it away")
        for attempt in range(MAX_STARTS):
            version = self._load_version()
            if version is None:
                self.part.unlink(missing_ok=True)
            kept = self.part.stat().st_size if self.part.exists() else 0
            try:
                self._receive(WebFile(self.url, self.stop, begin=kept, version=version), meter)
            except SourceChangedError:
                self._discard()
                if attempt == MAX_STARTS - 1:
                    raise
                continue
            sha256 = hash_file(self.part, self.stop)
            if self.sha256 in ("", sha256):
                self.part.replace(self.path)
                sync_directory(self.path.parent)
                break
            self._discard()
            if not kept:
                raise FetchError(
                    f"{redact_url(self.url)} has the SHA-256 {sha256}, not the published "
                    f"{self.sha256}: the download was deleted, try again"
                )
        return sha256

    def _discard(self) -> None:
        self.part.unlink(missing_ok=True)
        self.state.unlink(missing_ok=True)

    def _load_version(self) -> RemoteVersion | None:
        """Return the version of the partial download; None if missing or of another URL or hash."""
        try:
            state = parse_json(self.state.read_bytes())
            version = RemoteVersion(**state["version"])
        except (OSError, ValueError, TypeError, KeyError):
            return None
        is_same = (state.get("url"), state.get("sha256")) == (self.url, self.sha256)
        return version if is_same else None

    def _receive(self, web: WebFile, meter: _Meter) -> None:
        """Append the missing bytes to the partial download."""
        version = web.open()
        missing = None if version.size is None else version.size - web.position
        if (free := shutil.disk_usage(self.path.parent).free) < (missing or 0):
            raise FetchError(
                f"{self.path.parent} has only {free:,} bytes free, but {missing:,} more are needed "
                f"for {self.path.name}: free some space"
            )
        meter.total = None if missing is None else meter.fetched + missing
        state = {"url": self.url, "sha256": self.sha256, "version": asdict(version)}
        publish_json(self.path.parent, self.state.name, state)
        with closing(web), self.part.open("ab") as part:
            while data := web.read(MAX_READ_BYTES):
                part.write(data)
                meter.add(len(data))
            part.flush()
            os.fsync(part.fileno())
