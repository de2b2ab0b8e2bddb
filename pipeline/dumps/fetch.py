"""Dumps of the web onto this disk: months of Lichess, or any URL, whole and verified or not at all.

    2013-01 -> name, URL, published sha256 -> NAME.part (+ NAME.part.json: which version it is of) -> sha256 -> NAME
                                                        (+ NAME.part.sums: a checksum of each piece)

What came of a file stays in `NAME.part`, so a fetch that was stopped, killed or cut off goes on from there, if the server
still has the same version. No byte of it is trusted for its place alone: a power cut leaves zeros where the system had not
written yet, so pieces are compared with their checksums, and what follows the first that differs is fetched again. The name
appears by rename, when the file is on disk and its hash is the published one. A `NAME.part` of another program is left.
"""

import hashlib
import io
import os
import re
import shutil
import time
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock

from engine.json_files import parse_json
from engine.progress import Progress, Stop, Tick, never, silent
from pipeline.errors import ChangedError, ConfigError, FetchError, Stopped
from pipeline.storage.http import BLOCK, Patience, RemoteVersion, WebFile, file_name, is_web, shown
from pipeline.storage.stores import file_hash, locked, publish_json, sync_directory

LICHESS = "https://database.lichess.org/standard"
"""Where Lichess publishes the games of each month."""
SUMS = "sha256sums.txt"
"""The list of what is published there: a hash and a name a line."""
STEM = "lichess_db_standard_rated_"
_MONTH = re.compile("([0-9]{4})-(0[1-9]|1[0-2])")
_FIRST = 2013 * 12


@dataclass(frozen=True, slots=True)
class Wanted:
    """A file that is asked for."""

    name: str
    """Name that it gets."""
    url: str
    sha256: str
    """SHA-256 that a file named by its URL must have; empty for any."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FetchConfig(Patience):
    """Where months come from, and how patiently."""

    base: str = LICHESS
    """Address of the folder with the months' files and `sha256sums.txt`: Lichess's, or a mirror's."""
    sha256: str = ""
    """Hash that a file named by a URL must have; "" for any."""

    def __post_init__(self) -> None:
        """Check what the types do not say."""
        Patience.__post_init__(self)
        if not is_web(self.base):
            raise ConfigError(f"base is an address that begins with https:// or http://, not {self.base!r}")
        if self.sha256 and not re.fullmatch("[0-9a-f]{64}", self.sha256):
            raise ConfigError("sha256 is 64 hexadecimal digits, small letters")


def month_of(key: str) -> str:
    """Return the month of `lichess_db_standard_rated_2013-01`, "" for anything else."""
    month = key.removeprefix(STEM)
    return month if month != key and _MONTH.fullmatch(month) else ""


def months(word: str) -> list[str]:
    """Return the months of `2013-01` or `2013-01..2013-06`; raises ConfigError."""
    first, dots, last = word.partition("..")
    ends = []
    for text in (first, last if dots else first):
        if not (found := _MONTH.fullmatch(text)):
            raise ConfigError(f"{word!r} is no month (2013-01), no span of months (2013-01..2013-06) and no URL")
        ends.append(int(found[1]) * 12 + int(found[2]) - 1)
    begin, end = ends
    now = datetime.now(UTC)
    if not _FIRST <= begin <= end < now.year * 12 + now.month:
        raise ConfigError(f"{word!r}: months are from 2013-01 on, the earlier one first, and not to come")
    return [f"{month // 12}-{month % 12 + 1:02}" for month in range(begin, end + 1)]


def published(config: FetchConfig, stop: Stop = never) -> dict[str, str]:
    """Read the list of published files: sha256 by name; raises FetchError where it is none."""
    url = f"{config.base.rstrip('/')}/{SUMS}"
    file, text = WebFile(url, config, stop), b""
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


def published_months(config: FetchConfig, stop: Stop = never) -> list[str]:
    """Return the months that are published, the earliest first."""
    names = published(config, stop)
    return sorted(month for name in names if (month := month_of(name.removesuffix(".pgn.zst"))))


def wanted(words: Sequence[str], config: FetchConfig, stop: Stop = never) -> list[Wanted]:
    """Turn months, spans of months and URLs into files; the list of hashes is read where one is published."""
    if not words:
        raise ConfigError("name a month such as 2013-01, a span such as 2013-01..2013-06, or a URL")
    base = config.base.rstrip("/")
    urls = []
    for word in words:
        urls += [word] if is_web(word) else [f"{base}/{STEM}{month}.pgn.zst" for month in months(word)]
    if config.sha256 and (len(urls) > 1 or not is_web(words[0])):
        raise ConfigError("sha256 is for one file that is named by its URL: the hashes of months are published")
    listed = [url for url in urls if url.startswith(f"{base}/") and not config.sha256]
    hashes = published(config, stop) if listed else {}
    files: dict[str, Wanted] = {}
    for url in urls:
        name = file_name(url)
        if not name or name.startswith(".") or not name.isprintable() or set(name) & set("/\\") or len(name) > 200:
            raise ConfigError(f"{shown(url)} does not end in a file's name")
        if url in listed and name not in hashes:
            spans = sorted(hashes) or ["nothing"]
            raise FetchError(f"{base} does not publish {name}: it has {spans[0]} to {spans[-1]}")
        if files.setdefault(name, Wanted(name, url, config.sha256 or hashes.get(name, ""))).url != url:
            raise ConfigError(f"two of the URLs end in {name}: fetch them into different folders")
    return list(files.values())


def fetch(
    words: Sequence[str],
    out: Path,
    config: FetchConfig | None = None,
    *,
    dry_run: bool = False,
    progress: Progress = silent,
    stop: Stop = never,
) -> dict[str, Any]:
    """Fetch months, spans of months and URLs into `out`, one after another, and say what became of each file.

    With `dry_run` nothing is written, and what it would take is said. Raises ConfigError, FetchError, Stopped.
    """
    config = config or FetchConfig()
    files = wanted(words, config, stop)
    plan = [_planned(file, out, config, stop) for file in files]
    left = sum(entry["to_fetch"] or 0 for entry in plan)
    result: dict[str, Any] = {"out": str(out), "to_fetch": left, "free": _free(out)}
    if dry_run:
        return result | {"files": {file.name: entry for file, entry in zip(files, plan, strict=True)}}
    if left > result["free"]:
        raise FetchError(f"{out} has {result['free']:,} bytes free, and {left:,} are to be fetched: nothing was begun")
    meter = _Meter(progress, None if any(entry["to_fetch"] is None for entry in plan) else left)
    try:
        out.mkdir(parents=True, exist_ok=True)
        done = {file.name: _fetch(file, out, config, meter, stop) for file in files}
    except OSError as error:
        raise FetchError(f"{error.strerror or error} ({out}): what came is kept, run again to continue") from error
    return {"out": str(out), "fetched": meter.fetched, "files": done}


def _free(out: Path) -> int:
    """Return the free bytes of the disk that a folder lies on, or will."""
    while not out.exists():
        out = out.absolute().parent
    return shutil.disk_usage(out).free


def _planned(file: Wanted, out: Path, config: FetchConfig, stop: Stop) -> dict[str, Any]:
    """Say what a file would take: its bytes, what is here of it, and what is to be fetched (None: not known)."""
    final = out / file.name
    if final.exists():
        return {"bytes": final.stat().st_size, "here": "whole, its hash not compared", "to_fetch": 0}
    web = WebFile(file.url, config, stop)
    size = web.look().size
    begun, part = _begun(file, out), _parts(file, out)[0]
    came = min(_size(part), size or _size(part)) if begun is not None and not begun.differs(web.version) else 0
    here = f"{came:,} bytes" if came else "nothing"
    return {"bytes": size, "here": here, "to_fetch": None if size is None else max(size - came, 0)}


class _Meter:
    """Counts the bytes of all files into one progress."""

    def __init__(self, progress: Progress, total: int | None) -> None:
        self.progress, self.total, self.fetched, self.began = progress, total, 0, time.monotonic()

    def add(self, count: int, breaks: int) -> None:
        """Count bytes that came, of a file whose connection broke so many times."""
        self.fetched += count
        rate = self.fetched / max(time.monotonic() - self.began, 1e-9) / 1e6
        self.progress(Tick(self.fetched, self.total, "B", {"MB/s": rate, "breaks": breaks}))


def _fetch(file: Wanted, out: Path, config: FetchConfig, meter: _Meter, stop: Stop) -> dict[str, Any]:
    """Fetch one file, unless it is here; no other fetch writes it meanwhile."""
    final = out / file.name
    with locked(FileLock(out / f".{file.name}.lock"), FetchError(f"another fetch is writing {final}: wait for it")):
        if not final.exists():
            return _complete(file, out, config, meter, stop)
        digest = file_hash(final)
    if file.sha256 and digest != file.sha256:
        raise FetchError(
            f"{final} is here and is not what is published (its sha256 differs): remove it, or move it away"
        )
    return _described(final, digest, file, fetched=False)


def _described(final: Path, digest: str, file: Wanted, *, fetched: bool) -> dict[str, Any]:
    verified = bool(file.sha256)
    return {"bytes": final.stat().st_size, "sha256": digest, "verified": verified, "fetched": fetched}


def _complete(file: Wanted, out: Path, config: FetchConfig, meter: _Meter, stop: Stop) -> dict[str, Any]:
    """Fetch what is missing of a file, and begin again where what is here turns out to be of another version."""
    part, state, sums = _parts(file, out)
    if not state.exists() and (part.exists() or sums.exists()):
        raise FetchError(f"{part} is here and is not of this program: move it away, or fetch into another folder")
    for attempt in range(3):
        version = _begun(file, out)
        came = 0 if version is None else _trusted(part, sums, version.size)
        if not came:
            part.unlink(missing_ok=True)
            version = None
        digest = hashlib.sha256()
        for block in _blocks(part, came):
            digest.update(block)
        try:
            web = WebFile(file.url, config, stop, begin=came, version=version, digest=digest)
            sha256 = _stream(file, out, web, meter, stop)
        except ChangedError:
            if attempt == 2:
                raise
            part.unlink(missing_ok=True)
            continue
        if not file.sha256 or sha256 == file.sha256:
            part.replace(out / file.name)
            sync_directory(out)
            sums.unlink(missing_ok=True)
            state.unlink(missing_ok=True)
            return _described(out / file.name, sha256, file, fetched=True)
        part.unlink()
        if not came:  # the part may have been damaged, but this came in one piece
            break
    sums.unlink(missing_ok=True)
    state.unlink(missing_ok=True)
    raise FetchError(f"{shown(file.url)} has the sha256 {sha256}, and {file.sha256} is published: it was not kept")


def _parts(file: Wanted, out: Path) -> tuple[Path, Path, Path]:
    """Return the paths of an unfinished file, of what says which version it is of, and of its pieces' checksums."""
    return out / f"{file.name}.part", out / f"{file.name}.part.json", out / f"{file.name}.part.sums"


def _size(path: Path) -> int:
    """Return a file's bytes, 0 where there is none."""
    return path.stat().st_size if path.exists() else 0


def _trusted(part: Path, sums: Path, size: int | None) -> int:
    """Return how many bytes of an unfinished file are what came, by its pieces' checksums; the rest is cut off."""
    good, ends = 0, bytearray()
    if part.exists() and sums.exists():
        with part.open("rb") as file:
            for line in sums.read_bytes().split(b"\n")[:-1]:  # a piece is noted before it is written, a line at a time
                found = re.fullmatch(rb"(\d{1,15}) ([0-9a-f]{8})", line)
                length = int(found[1]) if found else 0
                data = file.read(length) if 0 < length <= BLOCK else b""
                if found is None or len(data) != length or not data or zlib.crc32(data) != int(found[2], 16):
                    break
                good, ends = good + length, ends + line + b"\n"
    if size is not None and good > size:
        good = 0
    if good:
        os.truncate(part, good)
        sums.write_bytes(ends)
    return good


def _begun(file: Wanted, out: Path) -> RemoteVersion | None:
    """Return the version of an unfinished file; None if it was not begun for this URL and hash."""
    state = _parts(file, out)[1]
    try:
        said = parse_json(state.read_bytes())
        version = RemoteVersion(**said["version"])
    except (OSError, ValueError, TypeError, KeyError):
        return None
    if said.get("url") != file.url or said.get("sha256") != file.sha256:
        return None
    return version


def _stream(file: Wanted, out: Path, web: WebFile, meter: _Meter, stop: Stop) -> str:
    """Append what is missing to the unfinished file, and return the sha256 of the whole."""
    part, state, sums = _parts(file, out)
    version = web.open()
    publish_json(out, state.name, {"url": file.url, "sha256": file.sha256, "version": asdict(version)})
    with part.open("ab", buffering=0) as target, sums.open("ab" if web.position else "wb", buffering=0) as noted:
        try:
            while data := web.read(BLOCK):
                noted.write(b"%d %08x\n" % (len(data), zlib.crc32(data)))
                _write(target, data)
                meter.add(len(data), web.breaks)
                if stop():
                    raise Stopped(f"stopped; what came is kept in {part}: run the same command to continue")
        finally:
            web.close()
        os.fsync(target.fileno())
    return str(web.digest.hexdigest())


def _write(target: io.FileIO, data: bytes) -> None:
    """Write all of it."""
    left = memoryview(data)
    while left:
        left = left[target.write(left) :]


def _blocks(path: Path, count: int) -> Iterable[bytes]:
    """Yield the first `count` bytes of a file in blocks."""
    if not count:
        return
    with path.open("rb") as file:
        while count and (block := file.read(min(count, 1 << 20))):
            count -= len(block)
            yield block
