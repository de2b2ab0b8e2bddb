"""Open dumps as streams of text: detect the format, decompress, hash."""

import errno
import hashlib
import io
import os
import select
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import IO, Any, TextIO

from engine.progress import Stop, never
from pipeline.dumps.archives import decompress, detect_compression, read_zip, refuse_archives
from pipeline.dumps.formats import evaluations, parquet
from pipeline.dumps.formats.positions import recognize
from pipeline.dumps.formats.text import FIRST_BYTES, HEAD_BYTES, IteratorStream, join_games
from pipeline.errors import DatasetError, DumpError, SourceChangedError, Stopped
from pipeline.storage.http import RemoteVersion, WebFile, parse_file_name, redact_url
from pipeline.storage.objects import (
    REPLACED_MESSAGE,
    ObjectFile,
    RangeFile,
    fetch_version,
    list_files,
    open_remote,
)
from pipeline.storage.preflight import require_utf8
from pipeline.storage.stores import file_hash, is_url

BLOCK = 1 << 22
"""Bytes to read at a time."""
QUIET_MILLISECONDS = 200
"""Interval in milliseconds at which `stop` is polled while a pipe or a terminal is silent."""

_SUFFIXES = {".zst": "zstd", ".gz": "gzip", ".bz2": "bz2", ".zip": "zip"}
STDIN = "-"


class Source:
    """One dump and its hash: a path, a URL or `-` for standard input.

    Remote files are streamed, not stored. Reading raises Stopped if `stop` returns true. Other
    formats are converted to PGN unless `plain` is set. Evaluated positions become lines, and
    `sample` selects a share of them.
    """

    def __init__(
        self,
        name: str,
        stop: Stop = never,
        *,
        plain: bool = False,
        sample: evaluations.Sample = evaluations.WHOLE_INPUT,
    ) -> None:
        self.name, self.stop, self.plain, self.sample = name, stop, plain, sample
        self.hash = hashlib.sha256()
        self.bytes_read = self.text_bytes = 0
        self.damage = ""
        self.compression: str | None = None
        self.input = ""
        """The format, "" for PGN."""
        self.is_evaluations = False
        self.version: RemoteVersion | None = None
        """Version of a remote file."""
        self._file: IO[bytes] | WebFile | ObjectFile | None = None
        self._head = b""

    @property
    def is_parquet_evaluations(self) -> bool:
        """Return whether only parts of the file are read; then only its footer is hashed."""
        return self.input in evaluations.COLUMNS

    @cached_property
    def size(self) -> int | None:
        """Size of the (compressed) file in bytes, None if unknown."""
        if is_url(self.name):
            return fetch_version(self.name, self.stop).size
        return None if self.name == STDIN else Path(self.name).stat().st_size

    def open(self) -> IteratorStream:
        """Open the dump and return a stream of its text as PGN; raises DumpError, FetchError."""
        if self.name == STDIN:
            self._file = getattr(sys.stdin.buffer, "raw", sys.stdin.buffer)
        elif is_url(self.name):
            self._file = open_remote(self.name, self.stop)
            self.version = self._file.version
        else:
            self._file = _open(Path(self.name))
        while len(self._head) < HEAD_BYTES and (
            more := self._read_file(HEAD_BYTES - len(self._head))
        ):
            self._head += more
        name = display_name(self.name)
        if not self._head:
            raise DumpError(f"{name} is empty: there are no games to read")
        self.compression = compression = detect_compression(self._head)
        if compression == "zip" and (is_url(self.name) or not Path(self.name).is_file()):
            raise DumpError(
                f"{name} is a zip archive, which can only be read from a file: save it first"
            )
        expected = _SUFFIXES.get(Path(short_name(self.name)).suffix)
        if expected is not None and compression != expected:
            raise DumpError(
                f"{name} has the suffix of a {expected} archive but is not one: rename it"
            )
        try:
            first = self._first_text()
            refuse_archives(first, compression)
            found = None if self.plain or first.startswith(parquet.MAGIC) else recognize(first)
        except DumpError as error:
            raise DumpError(f"{name} {error}") from error
        if first.startswith(parquet.MAGIC):
            return self._open_parquet(name)
        if first.count(0) * 10 > len(first):
            raise DumpError(
                f"{name} is not PGN text: it begins with zero bytes (convert UTF-16 to UTF-8 first)"
            )
        text: Iterator[bytes]
        if compression == "zip":
            text = self._unzip()
        elif compression:
            text = decompress(self.read, compression)
        else:
            text = iter(lambda: self.read(BLOCK), b"")
        stream = IteratorStream(self._until_stopped(text), self)
        if found is None:
            return stream
        self.input, convert = found
        if convert is None:
            self.is_evaluations = True
            lines = evaluations.read_json_lines(short_name(self.name), stream, self.sample)
            return IteratorStream(lines, stream)
        return IteratorStream(join_games(convert(stream)), stream)

    def _first_text(self) -> bytes:
        """Return the beginning of the text; damage is reported when the rest is read."""
        if self.compression is None:
            return self._head[:FIRST_BYTES]
        pieces: Iterator[bytes]
        if self.compression == "zip":
            pieces = (piece for piece, _ in read_zip(self.name))
        else:
            pieces = decompress(io.BytesIO(self._head).read, self.compression)
        try:
            return IteratorStream(pieces).read(FIRST_BYTES) or b""
        except OSError:
            return b""

    def _unzip(self) -> Iterator[bytes]:
        """Yield the text of a zip archive; the archive's own bytes are hashed separately."""
        for piece, share in read_zip(self.name):
            self._hash_share(share)
            yield piece

    def _open_parquet(self, name: str) -> IteratorStream:
        """Return a stream of a table's text; only evaluated positions may be remote."""
        problem = ""
        if self.plain:
            problem = "but PGN text is expected: name a PGN file, compressed or not"
        elif self.name == STDIN or self.compression is not None:
            problem = "inside an archive or on standard input: save and unpack it first"
        if problem:
            raise DumpError(f"{name} is Parquet, {problem}")
        source: Any = self.name
        if is_url(self.name):
            self.close()
            source = RangeFile(self.name, self.version or RemoteVersion(), self.stop)
        opened = parquet.open_evaluations(name, source)
        if opened is None and is_url(self.name):
            raise DumpError(
                f"{name} is Parquet, and only evaluated positions can be read from a URL: "
                "download it first"
            )
        if opened is None:
            self.input, games = parquet.convert_parquet(self.name, self._hash_share)
            return IteratorStream(join_games(games))
        self.input, file, self.hash = opened
        self.is_evaluations = True
        short, note = short_name(self.name), self._note_share
        return IteratorStream(evaluations.read_parquet(short, file, self.input, self.sample, note))

    def _hash_share(self, share: float) -> None:
        """Hash a file that another reader reads, up to a share of its size."""
        while self.bytes_read < share * (self.size or 0) and self.read(BLOCK):
            pass

    def _note_share(self, share: float) -> None:
        self.bytes_read = round(share * (self.size or 0))
        self._raise_if_stopped()

    def _until_stopped(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            self._raise_if_stopped()
            yield piece

    def read(self, count: int) -> bytes:
        """Return up to `count` raw bytes, none at the end, and add them to the hash."""
        data, self._head = self._head[:count], self._head[count:]
        if not data:
            data = self._read_file(count)
        self.hash.update(data)
        self.bytes_read += len(data)
        return data

    def _read_file(self, count: int) -> bytes:
        """Return up to `count` bytes of the file; raises Stopped, even while a pipe is silent."""
        assert self._file is not None
        self._raise_if_stopped()
        with suppress(AttributeError, OSError):  # a remote file or a buffer has no descriptor
            poll = select.poll()
            poll.register(self._file.fileno(), select.POLLIN)  # type: ignore[union-attr]
            while not poll.poll(QUIET_MILLISECONDS):
                self._raise_if_stopped()
        return self._file.read(count)

    def require_version(self) -> None:
        """Raise SourceChangedError if a remote file was replaced while it was read in parts."""
        if self.version is not None and self.version.differs_from(
            fetch_version(self.name, self.stop)
        ):
            raise SourceChangedError(f"{display_name(self.name)} {REPLACED_MESSAGE}")

    def _raise_if_stopped(self) -> None:
        if self.stop():
            where = display_name(self.name)
            raise Stopped(f"stopped while reading {where}: run the same command to continue")

    def close(self) -> None:
        """Close the file; standard input stays open."""
        if self._file is not None and self.name != STDIN:
            self._file.close()

    def describe(self) -> dict[str, Any]:
        """Return the manifest entry of the source; complete once the stream was read to the end."""
        entry = {
            "name": short_name(self.name),
            "bytes": self.bytes_read,
            "sha256": self.hash.hexdigest(),
            "text_bytes": self.text_bytes,
            "damage": self.damage,
        }
        if self.input:
            entry["input"] = self.input
        if self.version is not None:
            entry["version"] = self.version.tag
        return entry


def short_name(name: str) -> str:
    """Return the last part of a dump's path or URL, without the URL's query."""
    return parse_file_name(name) if is_url(name) else STDIN if name == STDIN else Path(name).name


def display_name(name: str) -> str:
    """Return a dump's name for display: a URL without its password and query."""
    return redact_url(name) if is_url(name) else name


def _open(path: Path) -> IO[bytes]:
    """Open a file for reading; raises DumpError, ConfigError."""
    require_utf8(str(path))
    try:
        if path.is_dir():
            raise DumpError(
                f"{path} is a directory: name the dump files in it, such as {path}/*.pgn.zst"
            )
        # non-blocking, so `stop` is polled while nothing writes to a named pipe
        return open(
            path, "rb", buffering=0, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)
        )
    except OSError as error:
        problems = {
            errno.ENOENT: "does not exist",
            errno.EACCES: "is not readable by this user: check its permissions",
        }
        problem = problems.get(error.errno or 0, f"cannot be opened: {error.strerror}")
        raise DumpError(f"{path} {problem}") from error


def expand_folders(names: Sequence[str]) -> list[str]:
    """Return the inputs, with each folder replaced by its Parquet files, sorted by name."""
    found = []
    for name in names:
        inside = list_files(name, ".parquet")
        if not is_url(name) and name != STDIN:
            below = Path(name).glob("**/*.parquet")  # yields nothing for a file
            inside = sorted(str(path) for path in below if path.is_file())
        found += inside or [name]
    return found


def is_same_file(entry: Mapping[str, Any], path: Path) -> bool:
    """Return whether a file has the size and hash in a manifest's source entry."""
    if path.stat().st_size != entry["bytes"]:
        return False
    by_footer = entry.get("input") in evaluations.COLUMNS
    digest = parquet.hash_footer(path).hexdigest() if by_footer else file_hash(path)
    return bool(entry["sha256"] == digest)


def find_dumps(
    directory: Path, manifest: Mapping[str, Any], given: Sequence[Path] = ()
) -> list[str] | None:
    """Find the dumps of a dataset, in the manifest's order, among `given` or in Dagster's folders.

    The manifest records their names and hashes, but no paths. The dump of self-play is in the
    dataset itself. A single dump may have been renamed. Returns None if one is not found; raises
    DatasetError if it is missing from `given`.
    """
    names, home = [source["name"] for source in manifest["sources"]], directory.resolve()
    if len(names) == len(given) == 1:
        found = {names[0]: given[0]}
    elif given:
        found = {path.name: path for path in given}
        if missing := [name for name in names if name not in found]:
            raise DatasetError(f"{directory} was also made from {missing[0]}: name that dump too")
    else:
        folders = (home, home.parent.parent / "dumps", home.parent.parent / "sample")
        # the names are untrusted: those with a folder in them are skipped
        paths = (folder / name for name in names if Path(name).name == name for folder in folders)
        found = {path.name: path for path in reversed([*paths]) if path.is_file()}
        if not found.keys() >= set(names):
            return None
    dumps = [str(found[name]) for name in names]
    for dump in dumps:
        require_dump(dump)
    return dumps


def require_dump(name: str) -> None:
    """Raise DumpError or FetchError if a dump cannot be opened."""
    if is_url(name):
        fetch_version(name)
    # do not open and close a pipe, which its writer would notice
    elif name != STDIN and not Path(name).is_fifo():
        _open(Path(name)).close()


def open_text(path: Path) -> TextIO:
    """Open a text file, compressed or not; raises DumpError, and OSError for damage."""
    stream: Any = Source(str(path), plain=True).open()
    return io.TextIOWrapper(io.BufferedReader(stream), "utf-8-sig", errors="replace")
