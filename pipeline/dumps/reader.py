"""Dumps as streams: open, decompress, cut into chunks of whole games, in bounded memory.

A chunk holds about `chunk_bytes` of text and at most MOST_GAMES games, so memory is bounded by these and by LONGEST_GAME,
whatever the dump. A damaged archive gives every whole game before the damage, which its source describes.

Axes: G games of a chunk.
"""

import hashlib
import io
import os
import select
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, TextIO

import numpy as np
from numpy.typing import NDArray

from engine.progress import Stop, never
from pipeline.dumps.archives import TrailingBytesError, compression_of, decompress
from pipeline.dumps.formats import evaluations, parquet
from pipeline.dumps.formats.positions import recognise
from pipeline.dumps.formats.text import FIRST, HEAD, PIECE, Pieces, gather
from pipeline.errors import DumpError, Stopped
from pipeline.pgn.tags import LONGEST_GAME, Splitter, split
from pipeline.storage.http import RemoteVersion, WebFile, file_name, shown
from pipeline.storage.objects import ObjectFile, RangeFile, list_files, look, open_remote
from pipeline.storage.preflight import require_utf8
from pipeline.storage.stores import file_hash, is_url

BLOCK = 1 << 22
"""Bytes of text that are split at a time."""
MOST_GAMES = 1 << 18
"""Most games of a chunk: a game costs some 600 bytes besides its text, and a bomb of `*` has one in three bytes."""
QUIET_BYTES = 1 << 22
"""Bytes of text without a chunk (blank lines, a bomb) from which on `stop` is polled; after each chunk, its taker polls."""
QUIET_MILLISECONDS = 200
"""How often `stop` is polled while a pipe or a terminal gives nothing."""

_SUFFIXES = {".zst": "zstd", ".gz": "gzip", ".bz2": "bz2"}
STDIN = "-"


@dataclass(frozen=True, slots=True)
class Chunk:
    """Whole games of a dump."""

    index: int
    """Number of the chunk in the dataset, from 0."""
    source: int
    """Number of the source it came from, from 0."""
    first_game: int
    """Number of its first game in the dataset, dropped ones counted."""
    offset: int
    """Byte of the decompressed source that the text begins at."""
    text: bytes
    starts: NDArray[np.int64]
    """[G] first byte of each game in the text."""
    is_evaluations: bool = False
    """Whether the games are lines of evaluated positions (pipeline/pgn/evaluation_rows.py)."""


class Source:
    """One dump: a path, an address or `-` for standard input, with its hash and how far it was read.

    Remote files are streamed, not stored. Reading raises Stopped when `stop` asks for it while no chunk comes. Inputs other
    than PGN are converted to it, unless `plain` asks for the text as it is; evaluated positions become lines, of which
    `sample` takes a share.
    """

    def __init__(
        self, name: str, stop: Stop = never, *, plain: bool = False, sample: evaluations.Sample = evaluations.ALL
    ) -> None:
        self.name, self.stop, self.plain, self.sample = name, stop, plain, sample
        self.hash = hashlib.sha256()
        self.bytes_read = 0
        self.text_bytes = 0
        self.quiet_bytes = 0
        """Bytes of text since the last chunk."""
        self.damage = ""
        self.compression: str | None = None
        self.input = ""
        """The format, where it is not PGN."""
        self.is_evaluations = False
        self.version: RemoteVersion | None = None
        """Version of a remote file."""
        self._file: IO[bytes] | WebFile | ObjectFile | None = None
        self._head = b""

    @property
    def is_parquet_evaluations(self) -> bool:
        """Return whether only parts of the file are read; it is then recognised by its footer, not by all of its bytes."""
        return self.input in evaluations.COLUMNS

    @property
    def size(self) -> int | None:
        """Bytes of the file, compressed; None for standard input and where a server does not say."""
        if is_url(self.name):
            return look(self.name, self.stop).size
        return None if self.name == STDIN else Path(self.name).stat().st_size

    def open(self) -> Pieces:
        """Open the dump and return a stream of its text as PGN; raises DumpError, FetchError."""
        if self.name == STDIN:
            self._file = getattr(sys.stdin.buffer, "raw", sys.stdin.buffer)
        elif is_url(self.name):
            self._file = open_remote(self.name, self.stop, self.version)
            self.version = self._file.version
        else:
            self._file = _open(Path(self.name))
        while len(self._head) < HEAD and (more := self._read_file(HEAD - len(self._head))):
            self._head += more
        name = display_name(self.name)
        if not self._head:
            raise DumpError(f"{name} is empty: there are no games to read")
        self.compression = compression = compression_of(self._head)
        expected = _SUFFIXES.get(Path(short_name(self.name)).suffix)
        if expected is not None and compression != expected:
            raise DumpError(f"{name} is named like a {expected} archive but does not begin like one")
        first = _first_text(self._head, compression)
        if first.startswith(parquet.MAGIC):
            return self._open_parquet(name)
        if first.count(0) * 10 > len(first):
            raise DumpError(f"{name} is not PGN text: it begins with zero bytes (convert UTF-16 to UTF-8 first)")
        plain = iter(lambda: self.read(BLOCK), b"")
        stream = Pieces(self._poll_while_quiet(decompress(self.read, compression) if compression else plain), self)
        found = None if self.plain else recognise(first)
        if found is None:
            return stream
        self.input, convert = found
        if convert is None:
            self.is_evaluations = True
            return Pieces(evaluations.read_json_lines(short_name(self.name), stream, self.sample), stream)
        return Pieces(gather(convert(name, stream)), stream)

    def _open_parquet(self, name: str) -> Pieces:
        """Return a stream of a table's text: evaluated positions from anywhere, other tables from a file on this machine."""
        if self.plain:
            raise DumpError(f"{name} is Parquet, where PGN text is read: name a PGN file, compressed or not")
        if self.name == STDIN or self.compression is not None:
            raise DumpError(f"{name} is Parquet, which is read from a file of its own: save and unpack it first")
        opened = parquet.open_evaluations(name, self._ranges() if is_url(self.name) else self.name)
        if opened is None and is_url(self.name):
            raise DumpError(
                f"{name} is Parquet, of which only evaluated positions are read from an address: save it first"
            )
        if opened is None:
            self.input, games = parquet.convert_parquet(self.name, self._hash_share)
            return Pieces(gather(games))
        self.input, file, self.hash = opened
        self.is_evaluations = True
        return Pieces(evaluations.read_parquet(short_name(self.name), file, self.input, self.sample, self._note_share))

    def _ranges(self) -> RangeFile:
        """Return the remote file for reading at any place."""
        assert self._file is not None
        self._file.close()
        return RangeFile(self.name, self.version or RemoteVersion(), self.stop)

    def _note_share(self, share: float) -> None:
        """Note the share of a table that was read; raises Stopped."""
        self.bytes_read = round(share * (self.size or 0))
        if self.stop():
            self._raise_if_stopped()

    def _poll_while_quiet(self, pieces: Iterator[bytes]) -> Iterator[memoryview]:
        """Yield the pieces, long ones in parts; raises Stopped where `stop` asks for it while no chunk comes."""
        for piece in pieces:
            for at in range(0, len(piece), PIECE):
                part = memoryview(piece)[at : at + PIECE]
                self.quiet_bytes += len(part)
                if self.quiet_bytes > QUIET_BYTES:
                    self._raise_if_stopped()
                yield part

    def _hash_share(self, share: float) -> None:
        """Hash a file that something else reads, up to a share of its size."""
        while self.bytes_read < share * (self.size or 0) and self.read(BLOCK):
            pass

    def read(self, count: int) -> bytes:
        """Return up to `count` raw bytes, none at the end, and add them to the hash."""
        data, self._head = self._head[:count], self._head[count:]
        if not data:
            data = self._read_file(count)
        self.hash.update(data)
        self.bytes_read += len(data)
        return data

    def _read_file(self, count: int) -> bytes:
        """Return up to `count` bytes of the file; raises Stopped, also while a pipe gives nothing."""
        assert self._file is not None
        if (number := _file_number(self._file)) is not None:
            poll = select.poll()
            poll.register(number, select.POLLIN)
            while not poll.poll(QUIET_MILLISECONDS):
                self._raise_if_stopped()
        return self._file.read(count)

    def _raise_if_stopped(self) -> None:
        """Raise Stopped where `stop` asks for it."""
        if self.stop():
            raise Stopped(f"stopped while reading {display_name(self.name)}: run the same command to continue")

    def close(self) -> None:
        """Close the file; standard input stays open."""
        if self._file is not None and self.name != STDIN:
            self._file.close()

    def describe(self) -> dict[str, Any]:
        """Return the source's entry in the manifest; complete only when the stream was read to its end."""
        entry = {
            "name": short_name(self.name),
            "bytes": self.bytes_read,
            "sha256": self.hash.hexdigest(),
            "text_bytes": self.text_bytes,
            "damage": self.damage,
            **({"input": self.input} if self.input else {}),
        }
        return entry if self.version is None else entry | {"version": self.version.name}


def _first_text(head: bytes, compression: str | None) -> bytes:
    """Decompress the beginning of an archive; damage is reported when the rest is read."""
    if compression is None:
        return head[:FIRST]
    stream = Pieces(decompress(io.BytesIO(head).read, compression))
    try:
        return stream.read(FIRST) or b""
    except OSError:
        return b""


def _file_number(file: Any) -> int | None:
    """Return a file's descriptor, or None for a remote file or a buffer."""
    try:
        return int(file.fileno())
    except (AttributeError, OSError):
        return None


def short_name(name: str) -> str:
    """Return a dump's name without its folder; of an address without its query, which may hold a secret."""
    return file_name(name) if is_url(name) else STDIN if name == STDIN else Path(name).name


def display_name(name: str) -> str:
    """Return a dump's name as it may be shown: an address without password and query."""
    return shown(name) if is_url(name) else name


def _open(path: Path) -> IO[bytes]:
    """Open a file for reading; raises DumpError, ConfigError."""
    require_utf8(str(path))
    try:
        if path.is_dir():
            raise DumpError(f"{path} is a directory: name the dump files in it, such as {path}/*.pgn.zst")
        # so that a named pipe is polled, and `stop` with it, while nothing writes to it
        return open(path, "rb", buffering=0, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))
    except FileNotFoundError as error:
        raise DumpError(f"{path} does not exist") from error
    except PermissionError as error:
        raise DumpError(f"{path} may not be read by this user: check its permissions") from error
    except OSError as error:
        raise DumpError(f"{path} cannot be opened: {os.strerror(error.errno or 0)}") from error


def expand(names: Sequence[str]) -> list[str]:
    """Return the inputs with the Parquet files of each folder in its place, in the order of their names."""
    found = []
    for name in names:
        is_folder = not is_url(name) and name != STDIN and Path(name).is_dir()
        inside = sorted(map(str, Path(name).glob("**/*.parquet"))) if is_folder else list_files(name, ".parquet")
        found += inside or [name]
    return found


def is_same_file(entry: Mapping[str, Any], path: Path) -> bool:
    """Return whether a file has the size and hash of a source's entry in a manifest."""
    if path.stat().st_size != entry["bytes"]:
        return False
    by_footer = entry.get("input") in evaluations.COLUMNS
    digest = parquet.hash_footer(path).hexdigest() if by_footer else file_hash(path)
    return bool(entry["sha256"] == digest)


def require(name: str) -> None:
    """Raise DumpError or FetchError if a dump cannot be opened; a pipe's writer must not see it opened and closed."""
    if is_url(name):
        look(name)
    elif name != STDIN and not Path(name).is_fifo():
        _open(Path(name)).close()


def open_text(path: Path) -> TextIO:
    """Open a text file, compressed as a dump may be: openings, positions to evaluate.

    Raises DumpError; OSError, while it is read, where the archive is damaged.
    """
    stream: Any = Source(str(path), plain=True).open()
    return io.TextIOWrapper(io.BufferedReader(stream), "utf-8-sig", errors="replace")


class _Window:
    """A buffer that the stream is read into; the games not yet returned lie at its front."""

    def __init__(self, stream: Pieces, source: Source, chunk_bytes: int) -> None:
        self.stream, self.source = stream, source
        self.text = np.empty(chunk_bytes + 2 * LONGEST_GAME + 3 * BLOCK, dtype=np.uint8)
        self.filled = self.scanned = 0
        self.has_games = False
        self.is_cut = False
        """Whether damage ended the text, perhaps in the middle of a game."""
        self.splitter = Splitter()
        self.starts = np.empty(0, dtype=np.int64)

    def read_block(self) -> bool:
        """Read up to BLOCK more bytes; return False at the end. Damage is an end, and noted in the source."""
        try:
            count = self.stream.readinto(self.text.data[self.filled : self.filled + BLOCK])
        except OSError as error:
            self.source.damage, count = str(error), 0
            self.is_cut = not self.source.input and not isinstance(error, TrailingBytesError)
        self.source.text_bytes += count
        self.filled += count
        return count > 0

    def find_games(self, final: bool) -> None:
        """Find the games that begin in what was read, up to the last whole line."""
        end = self.filled
        if not final:
            unseen = self.text[self.scanned : self.filled].tobytes()
            unseen = unseen.removesuffix(b"\r")  # its LF may follow
            end = self.scanned + max(unseen.rfind(b"\n"), unseen.rfind(b"\r")) + 1
            if end == self.scanned and self.filled - self.scanned > LONGEST_GAME:
                if not self.has_games:
                    raise DumpError(
                        f"{display_name(self.source.name)} is not PGN text: no line break in {LONGEST_GAME >> 20} MiB"
                    )
                end = self.filled  # the line is cut, as the game that it belongs to will be
        if self.source.is_evaluations:
            newlines = np.flatnonzero(self.text[self.scanned : end] == ord("\n"))
            found = self.scanned + np.concatenate([[0], newlines[:-1] + 1])[: len(newlines)]
            count = len(found)
        else:
            found = np.empty((end - self.scanned) // 2 + 2, dtype=np.int64)
            count = split(self.text, self.scanned, end, self.splitter.state, found)
        self.starts = np.concatenate([self.starts, found[:count]])
        self.scanned = end
        self.has_games = self.has_games or count > 0

    @property
    def full(self) -> bool:
        """Return whether another block would not fit: then even an open game is returned, cut."""
        return self.filled + BLOCK > len(self.text)

    def drop_last_game(self) -> None:
        """Drop the last game and its text."""
        self.filled = self.scanned = int(self.starts[-1])
        self.starts = self.starts[:-1]

    def drop_scanned(self) -> int:
        """Drop the text that was scanned while no game is open (blank lines, remarks) and return its length."""
        dropped = self.scanned
        self._drop(dropped)
        return dropped

    def _drop(self, end: int) -> None:
        rest = self.filled - end
        self.text[:rest] = self.text[end : self.filled].copy()
        self.splitter.state[2] -= end
        self.filled, self.scanned = rest, self.scanned - end

    def take(self, end: int, games: int) -> tuple[bytes, NDArray[np.int64]]:
        """Return the text up to `end` and its first `games` games, and drop them."""
        first = int(self.starts[0])
        text, starts = self.text[first:end].tobytes(), self.starts[:games] - first
        self.starts = self.starts[games:] - end
        self._drop(end)
        return text, starts


def _source_chunks(source: Source, number: int, chunk_bytes: int) -> Iterator[Chunk]:
    """Yield the chunks of one source, indexed and numbered from 0."""
    window = _Window(source.open(), source, chunk_bytes)
    offset = index = game = 0
    more = True
    while more:
        more = window.read_block()
        window.find_games(final=not more)
        if window.is_cut and len(window.starts):
            window.drop_last_game()
        while len(window.starts):
            first = int(window.starts[0])
            later = min(int(np.searchsorted(window.starts, first + chunk_bytes)), MOST_GAMES)
            if later < len(window.starts):
                end, games = int(window.starts[later]), later
            elif not more or window.full:
                end, games = window.scanned, len(window.starts)
            else:
                break
            text, starts = window.take(end, games)
            yield Chunk(index, number, game, offset + first, text, starts, source.is_evaluations)
            offset, index, game = offset + end, index + 1, game + games
        if not len(window.starts):
            offset += window.drop_scanned()
    if source.is_parquet_evaluations:
        source.bytes_read = source.size or 0  # recognised by its footer
    else:
        while source.read(BLOCK):  # the bytes behind damage are hashed too: the manifest has the hash of the file
            pass
    source.close()


def chunks(
    sources: list[Source], chunk_bytes: int, on_read: Callable[[int], None] = lambda count: None
) -> Iterator[Chunk]:
    """Yield the chunks of all sources in order; `on_read` is called with the raw bytes read so far.

    Raises DumpError for a source that cannot be read, before its first chunk, and Stopped. Damage ends a source and is noted
    in its `damage`.
    """
    index = game = done = 0
    for number, source in enumerate(sources):
        for chunk in _source_chunks(source, number, chunk_bytes):
            source.quiet_bytes = 0
            on_read(done + source.bytes_read)
            yield replace(chunk, index=index, first_game=game)
            index, game = index + 1, game + len(chunk.starts)
        done += source.bytes_read
