"""Downloads of dumps: months of Lichess, or any URL, whole and verified or not at all.

    2013-01 -> name, URL, published sha256 -> NAME.part -> sha256 -> NAME
                                              NAME.part.json: URL, version, bytes that are on disk

A fetch that was stopped, killed or cut off resumes from `NAME.part` if the server still has the
same version. After a power cut the part may hold zeros where the system had not written yet, so it
is synchronised at intervals, and what came after the last one is fetched again. The file gets its
name when it is on disk and has the published hash.
"""

import hashlib
import os
import re
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from filelock import FileLock

from engine.json_files import parse_json
from engine.progress import Progress, Stop, Tick, never, silent
from pipeline.errors import ChangedError, ConfigError, FetchError
from pipeline.storage.http import (
    BLOCK,
    RemoteVersion,
    WebFile,
    file_name,
    hide_secrets,
    is_web,
    shown,
)
from pipeline.storage.stores import file_hash, locked, publish_json, sync_directory

LICHESS = "https://database.lichess.org/standard"
"""Where Lichess publishes the games of each month."""
HASHES = "sha256sums.txt"
"""The list of published files: a hash and a name on each line."""
STEM = "lichess_db_standard_rated_"
_MONTH = re.compile("([0-9]{4})-(0[1-9]|1[0-2])")
_FIRST = 2013 * 12
SYNC_BYTES = 1 << 26
"""Bytes after which the unfinished file is synchronised; a killed fetch loses at most as many."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FetchConfig:
    """Where files come from, and what they must be."""

    base: str = LICHESS
    """Address of the folder with the months' files and `sha256sums.txt`: Lichess's, or a
    mirror's."""
    sha256: str = ""
    """SHA-256 that a file named by its URL must have; "" for any."""

    def __post_init__(self) -> None:
        """Validate the configuration."""
        if not is_web(self.base):
            raise ConfigError(
                f"base is an address that begins with https:// or http://, not {self.base!r}"
            )
        if self.sha256 and not re.fullmatch("[0-9a-f]{64}", self.sha256):
            raise ConfigError("sha256 is 64 hexadecimal digits in lower case")


def month_of(key: str) -> str:
    """Return the month of `lichess_db_standard_rated_2013-01`, "" for anything else."""
    month = key.removeprefix(STEM)
    return month if month != key and _MONTH.fullmatch(month) else ""


def parse_months(word: str) -> list[str]:
    """Return the months of `2013-01` or `2013-01..2013-06`; raises ConfigError."""
    first, dots, last = word.partition("..")
    ends = []
    for text in (first, last if dots else first):
        if not (found := _MONTH.fullmatch(text)):
            raise ConfigError(
                f"{hide_secrets(word)!r} is no month (2013-01), no range of months "
                f"(2013-01..2013-06) and no URL; the newest months are {_list_newest()}"
            )
        ends.append(int(found[1]) * 12 + int(found[2]) - 1)
    begin, end = ends
    now = datetime.now(UTC)
    if not _FIRST <= begin <= end < now.year * 12 + now.month:
        raise ConfigError(
            f"{word!r}: the first month is 2013-01, a range ascends, and months to come are not "
            f"published; the newest months are {_list_newest()}"
        )
    return [f"{month // 12}-{month % 12 + 1:02}" for month in range(begin, end + 1)]


def _list_newest() -> str:
    """Return the last three months that are over, the newest first."""
    now = datetime.now(UTC)
    months = [now.year * 12 + now.month - 1 - back for back in (1, 2, 3)]
    return ", ".join(f"{month // 12}-{month % 12 + 1:02}" for month in months)


def load_hashes(config: FetchConfig, stop: Stop = never) -> dict[str, str]:
    """Return the sha256 of each published file by its name; raises FetchError."""
    url = f"{config.base.rstrip('/')}/{HASHES}"
    file, text = WebFile(url, stop), b""
    while data := file.read(1 << 20):
        text += data
        if len(text) > 1 << 22:
            raise FetchError(f"{shown(url)} is no list of hashes: it is over 4 MiB")
    file.close()
    found = {}
    for line in text.decode("utf-8", "replace").splitlines():
        if not (match := re.fullmatch(r"([0-9a-fA-F]{64}) [ *](\S+)", line.strip())):
            raise FetchError(f"{shown(url)} is no list of hashes: it has the line {line[:80]!r}")
        found[match[2].rpartition("/")[2]] = match[1].lower()
    return found


def fetch(
    words: Sequence[str],
    out: Path,
    config: FetchConfig | None = None,
    *,
    progress: Progress = silent,
    stop: Stop = never,
) -> dict[str, Any]:
    """Fetch months, ranges of months and URLs into `out`, one after another, and return what became
    of each file.

    Raises ConfigError, FetchError, Stopped.
    """
    files = resolve_files(words, out, config or FetchConfig(), stop)
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


def resolve_files(
    words: Sequence[str], out: Path, config: FetchConfig, stop: Stop = never
) -> list["_Download"]:
    """Return the files of months, ranges of months and URLs, with their published hashes."""
    if not words:
        raise ConfigError(
            "name a month such as 2013-01, a range such as 2013-01..2013-06, or a URL"
        )
    base = config.base.rstrip("/")
    urls = []
    for word in words:
        urls += (
            [word]
            if is_web(word)
            else [f"{base}/{STEM}{month}.pgn.zst" for month in parse_months(word)]
        )
    if config.sha256 and (len(urls) > 1 or not is_web(words[0])):
        raise ConfigError(
            "sha256 is for one file that is named by its URL: the hashes of months are published"
        )
    listed = [url for url in urls if url.startswith(f"{base}/") and not config.sha256]
    hashes = load_hashes(config, stop) if listed else {}
    files: dict[str, _Download] = {}
    for url in urls:
        name = file_name(url)
        if (
            not name
            or name.startswith(".")
            or not name.isprintable()
            or set(name) & set("/\\")
            or len(name) > 200
        ):
            raise ConfigError(f"{shown(url)} does not end in a file's name")
        if url in listed and name not in hashes:
            newest = ", ".join(sorted(hashes, reverse=True)[:3]) or "nothing"
            raise FetchError(f"{base} does not publish {name}; the newest files are {newest}")
        file = _Download(url, out / name, config.sha256 or hashes.get(name, ""), stop)
        if files.setdefault(name, file).url != url:
            raise ConfigError(f"two of the URLs end in {name}: fetch them into different folders")
    return list(files.values())


class _Meter:
    """Counts the bytes of all files into one progress, whose total is that of the files that were
    begun.
    """

    def __init__(self, progress: Progress) -> None:
        self.progress, self.fetched, self.began = progress, 0, time.monotonic()
        self.total: int | None = None

    def add(self, count: int, breaks: int) -> None:
        """Count bytes of a file whose connection broke so many times."""
        self.fetched += count
        rate = self.fetched / max(time.monotonic() - self.began, 1e-9) / 1e6
        self.progress(Tick(self.fetched, self.total, "B", {"MB/s": rate, "breaks": breaks}))


@dataclass(frozen=True, slots=True)
class _Download:
    """A file to fetch, and the part of it that is on disk."""

    url: str
    path: Path
    sha256: str
    """SHA-256 that it must have; "" for any."""
    stop: Stop

    @property
    def part(self) -> Path:
        """The unfinished file."""
        return self.path.with_name(f"{self.path.name}.part")

    @property
    def state(self) -> Path:
        """The file with the URL and version of the unfinished file."""
        return self.path.with_name(f"{self.path.name}.part.json")

    def fetch(self, meter: _Meter) -> dict[str, Any]:
        """Fetch the file if it is not here, under a lock, and return its entry in the result."""
        lock = FileLock(self.path.with_name(f".{self.path.name}.lock"))
        with locked(lock, FetchError(f"another fetch is writing {self.path}: wait for it")):
            is_here = self.path.exists()
            sha256 = file_hash(self.path) if is_here else self._complete(meter)
            if self._load_state() is not None and not self.part.exists():
                self.state.unlink()  # killed after the file got its name
        if self.sha256 and sha256 != self.sha256:
            raise FetchError(
                f"{self.path} is here and differs from the published file (by its sha256): move it "
                f"away"
            )
        size = self.path.stat().st_size
        return {
            "bytes": size,
            "sha256": sha256,
            "verified": bool(self.sha256),
            "fetched": not is_here,
        }

    def _complete(self, meter: _Meter) -> str:
        """Fetch what is missing, from the beginning if the server has another version, and return
        the sha256.
        """
        if not self.state.exists() and self.part.exists():
            raise FetchError(
                f"{self.part} belongs to another program: move it away, or fetch into another "
                f"folder"
            )
        for attempt in range(3):
            version, synced = self._load_state() or (None, 0)
            kept, digest = 0, hashlib.sha256()
            if synced and self.part.exists():
                kept = min(synced, self.part.stat().st_size)
                with self.part.open("rb+") as part:
                    part.truncate(kept)
                    digest = hashlib.file_digest(part, "sha256")
            if not kept:
                self.part.unlink(missing_ok=True)
                version = None
            web = WebFile(self.url, self.stop, begin=kept, version=version, digest=digest)
            try:
                sha256 = self._receive(web, meter)
            except ChangedError:
                if attempt == 2:
                    raise
                self.part.unlink(missing_ok=True)
                continue
            is_right = not self.sha256 or sha256 == self.sha256
            if is_right:
                self.part.replace(self.path)
                sync_directory(self.path.parent)
            self.part.unlink(missing_ok=True)
            if is_right or not kept:  # a part may have been damaged
                break
        self.state.unlink()
        if not is_right:
            raise FetchError(
                f"{shown(self.url)} has the sha256 {sha256}, not the published {self.sha256}: it "
                f"was not kept"
            )
        return sha256

    def _load_state(self) -> tuple[RemoteVersion, int] | None:
        """Return the unfinished file's version and its bytes on disk; None if it is not of this URL
        and hash.
        """
        try:
            state = parse_json(self.state.read_bytes())
            version, synced = RemoteVersion(**state["version"]), int(state["synced"])
        except (OSError, ValueError, TypeError, KeyError):
            return None
        if version.size is not None and synced > version.size:
            return None
        return (
            (version, synced)
            if (state.get("url"), state.get("sha256")) == (self.url, self.sha256)
            else None
        )

    def _publish_state(self, version: RemoteVersion, synced: int) -> None:
        state = {
            "url": self.url,
            "sha256": self.sha256,
            "version": asdict(version),
            "synced": synced,
        }
        publish_json(self.path.parent, self.state.name, state)

    def _sync(self, part: IO[bytes], version: RemoteVersion) -> int:
        """Bring the unfinished file to the disk, and record its length, which is returned."""
        part.flush()
        os.fsync(part.fileno())
        self._publish_state(version, part.tell())
        return part.tell()

    def _receive(self, web: WebFile, meter: _Meter) -> str:
        """Append what is missing to the unfinished file, and return the sha256 of the whole."""
        version = web.open()
        left = None if version.size is None else version.size - web.position
        if (free := shutil.disk_usage(self.path.parent).free) < (left or 0):
            raise FetchError(
                f"{self.path.parent} has {free:,} bytes free, and {left:,} are left to fetch of "
                f"{self.path.name}"
            )
        meter.total = None if left is None else meter.fetched + left
        self._publish_state(version, web.position)
        with self.part.open("ab") as part:
            synced = part.tell()
            try:
                while data := web.read(BLOCK):
                    part.write(data)
                    meter.add(len(data), web.breaks)
                    if part.tell() - synced >= SYNC_BYTES:
                        synced = self._sync(part, version)
            finally:
                web.close()
                self._sync(part, version)
        return str(web.digest.hexdigest())
