"""Open dumps as streams of text: detect the format, decompress, and hash the file."""

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
from pipeline.dumps.formats.positions import detect_format
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
from pipeline.storage.stores import hash_file, is_url

BLOCK_BYTES = 1 << 22
"""Bytes to read at a time."""
POLL_MILLISECONDS = 200
"""Interval at which `stop` is polled while a pipe or a terminal sends nothing."""

_COMPRESSION_OF_SUFFIX = {".zst": "zstd", ".gz": "gzip", ".bz2": "bz2", ".zip": "zip"}
STDIN = "-"
"""Name of standard input."""


class Source:
    """A dump (a path, a URL, or `-` for standard input) that is hashed while it is read.

    Remote files are streamed, not stored. Reading raises Stopped if `stop` returns true. Formats
    other than PGN are converted to it, unless `plain` is set. Evaluated positions are converted to
    lines instead (pipeline/pgn/evaluation_rows.py), and `sample` selects a share of them.
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
        """Description of the damage to the file, "" if there is none."""
        self.compression: str | None = None
        self.input = ""
        """Name of the format, "" for PGN."""
        self.is_evaluations = False
        self.version: RemoteVersion | None = None
        """Version of a remote file."""
        self._file: IO[bytes] | WebFile | ObjectFile | None = None
        self._head = b""

    @property
    def is_parquet_evaluations(self) -> bool:
        """Return whether it is a Parquet table of evaluated positions, identified by its footer.

        Such a table may be read in parts, so its whole content is not hashed.
        """
        return self.input in evaluations.INPUT_COLUMNS

    @cached_property
    def size(self) -> int | None:
        """Size in bytes of the file, which may be compressed; None if unknown."""
        if is_url(self.name):
            return fetch_version(self.name, self.stop).size
        return None if self.name == STDIN else Path(self.name).stat().st_size

    def open(self) -> IteratorStream:
        """Open the dump and return a stream of its text.

        The text is PGN, or lines of evaluated positions if `is_evaluations` is True afterwards.
        Raises DumpError, FetchError, ConfigError and Stopped.
        """
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
        name = redact_name(self.name)
        if not self._head:
            raise DumpError(f"{name} is empty: there are no games to read")
        self.compression = compression = detect_compression(self._head)
        if compression == "zip" and (is_url(self.name) or not Path(self.name).is_file()):
            raise DumpError(
                f"{name} is a zip archive, which can only be read from a file: save it first"
            )
        expected = _COMPRESSION_OF_SUFFIX.get(Path(shorten_name(self.name)).suffix)
        if expected is not None and compression != expected:
            raise DumpError(
                f"{name} has the suffix of a {expected} archive but is not one: rename it"
            )
        try:
            first = self._decompress_head()
            refuse_archives(first, compression)
            is_parquet = first.startswith(parquet.PARQUET_MAGIC)
            detected = None if self.plain or is_parquet else detect_format(first)
        except DumpError as error:
            raise DumpError(f"{name} {error}") from error
        if is_parquet:
            return self._open_parquet(name)
        if first.count(0) * 10 > len(first):
            raise DumpError(
                f"{name} is not PGN text: it contains zero bytes (convert UTF-16 to UTF-8 first)"
            )
        text: Iterator[bytes]
        if compression == "zip":
            text = self._unzip()
        elif compression:
            text = decompress(self.read, compression)
        else:
            text = iter(lambda: self.read(BLOCK_BYTES), b"")
        stream = IteratorStream(self._iterate_until_stopped(text), self)
        if detected is None:
            return stream
        self.input, convert = detected
        if convert is None:
            self.is_evaluations = True
            lines = evaluations.read_json_lines(shorten_name(self.name), stream, self.sample)
            return IteratorStream(lines, stream)
        return IteratorStream(join_games(convert(stream)), stream)

    def _decompress_head(self) -> bytes:
        """Return the beginning of the text, at most FIRST_BYTES.

        Damage ends it, and is reported when the dump is read.
        """
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
        """Yield the text of a zip archive, and hash the archive in step with it."""
        for piece, share in read_zip(self.name):
            self._hash_until(share)
            yield piece

    def _open_parquet(self, name: str) -> IteratorStream:
        """Return a stream of the rows of a Parquet table, as text; `name` is for error messages."""
        if self.plain:
            raise DumpError(
                f"{name} is Parquet, but PGN text is expected: name a PGN file, compressed or not"
            )
        if self.name == STDIN or self.compression is not None:
            raise DumpError(
                f"{name} is Parquet inside an archive or on standard input: save and unpack it "
                f"first"
            )
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
            self.input, games = parquet.convert_parquet(self.name, self._hash_until)
            return IteratorStream(join_games(games))
        self.input, file, self.hash = opened
        self.is_evaluations = True
        lines = evaluations.read_parquet(
            shorten_name(self.name), file, self.input, self.sample, self._record_share
        )
        return IteratorStream(lines)

    def _hash_until(self, share: float) -> None:
        """Hash the file up to a share of its size, in step with the library that reads it."""
        while self.bytes_read < share * (self.size or 0) and self.read(BLOCK_BYTES):
            pass

    def _record_share(self, share: float) -> None:
        """Estimate `bytes_read` from the share of the rows that were read, and poll `stop`."""
        self.bytes_read = round(share * (self.size or 0))
        self._raise_if_stopped()

    def _iterate_until_stopped(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            self._raise_if_stopped()
            yield piece

    def read(self, count: int) -> bytes:
        """Return at most `count` bytes of the file, b"" only at the end, and hash them."""
        data, self._head = self._head[:count], self._head[count:]
        if not data:
            data = self._read_file(count)
        self.hash.update(data)
        self.bytes_read += len(data)
        return data

    def _read_file(self, count: int) -> bytes:
        """Return at most `count` bytes; poll `stop` even while a pipe sends nothing."""
        assert self._file is not None
        self._raise_if_stopped()
        with suppress(AttributeError, OSError):  # remote files and buffers have no descriptor
            poll = select.poll()
            poll.register(self._file.fileno(), select.POLLIN)  # type: ignore[union-attr]
            while not poll.poll(POLL_MILLISECONDS):
                self._raise_if_stopped()
        return self._file.read(count)

    def require_version(self) -> None:
        """Raise SourceChangedError if a remote file was replaced while it was read in parts."""
        if self.version is not None and self.version.differs_from(
            fetch_version(self.name, self.stop)
        ):
            raise SourceChangedError(f"{redact_name(self.name)} {REPLACED_MESSAGE}")

    def _raise_if_stopped(self) -> None:
        if self.stop():
            name = redact_name(self.name)
            raise Stopped(f"stopped while reading {name}: run the same command to continue")

    def close(self) -> None:
        """Close the file; standard input stays open."""
        if self._file is not None and self.name != STDIN:
            self._file.close()

    def describe(self) -> dict[str, Any]:
        """Return the dump's entry in a manifest, which is final when the stream has been read."""
        entry = {
            "name": shorten_name(self.name),
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


def shorten_name(name: str) -> str:
    """Return the file name in a dump's path or URL, or `-`."""
    return parse_file_name(name) if is_url(name) else STDIN if name == STDIN else Path(name).name


def redact_name(name: str) -> str:
    """Return a dump's name for messages: the path, or the URL without its password and query."""
    return redact_url(name) if is_url(name) else name


def _open(path: Path) -> IO[bytes]:
    """Open a file for reading; raises DumpError, and ConfigError if its name is not UTF-8."""
    require_utf8(str(path))
    try:
        if path.is_dir():
            raise DumpError(
                f"{path} is a directory: name the dump files in it, such as {path}/*.pgn.zst"
            )
        # non-blocking, since opening a named pipe would otherwise wait for its writer
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
    """Replace each folder or store prefix with Parquet files by these files, sorted by name."""
    expanded = []
    for name in names:
        files = list_files(name, ".parquet")
        if not is_url(name) and name != STDIN:
            paths = Path(name).glob("**/*.parquet")  # yields nothing for a file
            files = sorted(str(path) for path in paths if path.is_file())
        expanded += files or [name]
    return expanded


def is_same_file(entry: Mapping[str, Any], path: Path) -> bool:
    """Return whether a file has the size and hash of a dump's entry in a manifest."""
    if path.stat().st_size != entry["bytes"]:
        return False
    is_evaluations = entry.get("input") in evaluations.INPUT_COLUMNS
    digest = parquet.hash_footer(path).hexdigest() if is_evaluations else hash_file(path)
    return bool(entry["sha256"] == digest)


def find_dumps(
    directory: Path, manifest: Mapping[str, Any], given: Sequence[Path] = ()
) -> list[str] | None:
    """Return the paths of a dataset's dumps, in the manifest's order.

    The manifest records names and hashes, but no paths. The dumps are sought among `given`, where a
    single dump may have another name. Without `given`, they are sought in the dataset's folder, in
    which self-play writes its dump, and in Dagster's folders. Returns None if one is not found
    there. Raises DatasetError if one is missing from `given`, and the errors of `require_dump`.
    """
    names, home = [source["name"] for source in manifest["sources"]], directory.resolve()
    if len(names) == len(given) == 1:
        path_of = {names[0]: given[0]}
    elif given:
        path_of = {path.name: path for path in given}
        if missing := [name for name in names if name not in path_of]:
            raise DatasetError(f"{directory} was also made from {missing[0]}: name that dump too")
    else:
        folders = (home, home.parent.parent / "dumps", home.parent.parent / "sample")
        # the names are untrusted: skip those that contain a folder
        paths = (folder / name for name in names if Path(name).name == name for folder in folders)
        path_of = {path.name: path for path in reversed([*paths]) if path.is_file()}
        if not path_of.keys() >= set(names):
            return None
    dumps = [str(path_of[name]) for name in names]
    for dump in dumps:
        require_dump(dump)
    return dumps


def require_dump(name: str) -> None:
    """Raise DumpError, FetchError or ConfigError if a file or URL cannot be opened."""
    if is_url(name):
        fetch_version(name)
    # opening and closing a pipe would disturb its writer
    elif name != STDIN and not Path(name).is_fifo():
        _open(Path(name)).close()


def open_text(path: Path) -> TextIO:
    """Open a text file, compressed or not, as UTF-8; raises DumpError, and OSError for damage."""
    stream: Any = Source(str(path), plain=True).open()
    return io.TextIOWrapper(io.BufferedReader(stream), "utf-8-sig", errors="replace")
