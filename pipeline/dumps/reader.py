"""Dumps as streams: open, decompress, cut into chunks of whole games, in bounded memory.

A chunk holds about `chunk_bytes` of text, so memory is bounded by that and by LONGEST_GAME whatever the dump's size.
A damaged archive gives every whole game before the damage and notes the damage in its source.

Axes: G games of a chunk.
"""

import bz2
import hashlib
import io
import os
import pickle
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TextIO

import numpy as np
import pyarrow as pa
import zstandard
from numpy.typing import NDArray

from engine.progress import Stop, never
from pipeline.dumps.formats import parquet
from pipeline.dumps.formats.recognise import HEAD, begin, recognise
from pipeline.dumps.formats.text import Pieces
from pipeline.dumps.zstd_stream import Raw, laid_down, many_frames, unpacked
from pipeline.errors import DumpError
from pipeline.pgn.tags import LONGEST_GAME, Splitter, split
from pipeline.storage.http import Facts, file_name, shown
from pipeline.storage.objects import Remote, look, open_remote
from pipeline.storage.stores import is_url

BLOCK = 1 << 22
"""Bytes asked of the decompressor at a time."""

_MAGIC = {b"\x28\xb5\x2f\xfd": "zstd", b"\x1f\x8b": "gzip", b"BZh": "bz2"}
_SKIPPABLE = b"\x2a\x4d\x18"
"""What follows the first byte, 0x50 to 0x5f, of an archive that begins with a skippable frame (RFC 8878, 3.1.2), as pzstd
writes them."""
_SUFFIXES = {".zst": "zstd", ".gz": "gzip", ".bz2": "bz2"}
_BOM = b"\xef\xbb\xbf"
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
    text: bytes | memoryview
    starts: NDArray[np.int64]
    """[G] first byte of each game in the text."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Let who can send the text beside the rest do so: pipeline.executors.shared_memory, and Ray."""
        text = pickle.PickleBuffer(self.text) if protocol >= 5 else bytes(self.text)
        return Chunk, (self.index, self.source, self.first_game, self.offset, text, self.starts)


class Source:
    """One dump: a path, an address or `-` for standard input, its hash and how far it was read.

    An address is read as it comes and never kept; `stop` is heard while it is waited for. Inputs beside PGN are turned into
    it, unless `plain` asks for the text as it is.
    """

    def __init__(self, name: str, stop: Stop = never, *, plain: bool = False) -> None:
        self.name, self.stop, self.plain = name, stop, plain
        self.hash = hashlib.sha256()
        self.bytes_read = 0
        self.text_bytes = 0
        self.damage = ""
        self.compression: str | None = None
        self.input = ""  # what it is, where it is no PGN
        self.facts: Facts | None = None  # what the server of an address says of it
        self._file: IO[bytes] | Remote | None = None
        self._head = b""
        self._raw: Raw | None = None
        self.closed = False  # pyarrow asks

    @property
    def size(self) -> int | None:
        """Bytes of the file as it lies, None for standard input and where a server does not say."""
        if is_url(self.name):
            return look(self.name, self.stop).size
        return None if self.name == STDIN else Path(self.name).stat().st_size

    def open(self) -> Any:
        """Open the dump and give a stream of its text, as PGN whatever it holds; raises DumpError, FetchError."""
        self._file = sys.stdin.buffer if self.name == STDIN else reopen(self)
        while len(self._head) < HEAD and (more := self._file.read(HEAD - len(self._head))):
            self._head += more
        if not self._head:
            raise DumpError(f"{plain_name(self.name)} is empty: there are no games to read")
        compression = next((kind for magic, kind in _MAGIC.items() if self._head.startswith(magic)), None)
        if self._head[1:4] == _SKIPPABLE and self._head[0] >> 4 == 5:
            compression = "zstd"
        self.compression = compression
        claimed = _SUFFIXES.get(Path(short_name(self.name)).suffix)
        if claimed is not None and compression != claimed:
            raise DumpError(f"{plain_name(self.name)} is named like a {claimed} archive but does not begin like one")
        return self._text(compression)

    def _text(self, compression: str | None) -> Any:
        """Return the stream of text: PGN as it is, other inputs turned into it (pipeline/dumps/formats)."""
        first, name = begin(self._head, compression), plain_name(self.name)
        if first.startswith(parquet.MAGIC):
            if self.plain:
                raise DumpError(f"{name} is Parquet, where PGN text is read: name a PGN file, compressed or not")
            if self.name == STDIN or is_url(self.name) or compression is not None:
                raise DumpError(f"{name} is Parquet, which is read from a file of its own: save and unpack it first")
            self.input, pieces = parquet.pgn(self.name, self._pass)
            return Pieces(pieces)
        stream: Any
        if compression is None:
            stream = pa.PythonFile(self, mode="r")
        elif compression == "zstd" and many_frames(self._head):
            self._raw = Raw(self.read)
            stream = Pieces(unpacked(self._raw, to_the_last=self.name == STDIN), self)
        else:
            stream = pa.CompressedInputStream(pa.PythonFile(self, mode="r"), compression)
        found = None if self.plain else recognise(first)
        if found is None:
            return stream
        self.input, convert = found
        return Pieces(convert(name, stream), stream)

    @property
    def decoded(self) -> int:
        """Raw bytes that were decompressed, or are about to be: damage that has been met is not long before."""
        return self.bytes_read if self._raw is None else self._raw.at

    def _pass(self, share: float) -> None:
        """Hash a file that something else reads, up to a share of it."""
        while self.bytes_read < share * (self.size or 0) and self.read(BLOCK):
            pass

    def read(self, count: int = -1) -> bytes:
        """Read raw bytes as pyarrow asks for them, hashing on the way."""
        assert self._file is not None
        data = self._head[:count] if count >= 0 else self._head
        self._head = self._head[len(data) :]
        if count < 0 or len(data) < count:
            data += self._file.read(count - len(data) if count >= 0 else -1)
        self.hash.update(data)
        self.bytes_read += len(data)
        return data

    def readable(self) -> bool:
        """Tell pyarrow that this can be read."""
        return True

    def close(self) -> None:
        """Close the file; standard input stays open."""
        self.closed = True
        if self._file is not None and self._file is not sys.stdin.buffer:
            self._file.close()

    def describe(self) -> dict[str, Any]:
        """Say what was read, for the manifest; complete only when the stream was read to its end."""
        said = {
            "name": short_name(self.name),
            "bytes": self.bytes_read,
            "sha256": self.hash.hexdigest(),
            "text_bytes": self.text_bytes,
            "damage": self.damage,
            **({"input": self.input} if self.input else {}),
        }
        return said if self.facts is None else said | {"version": self.facts.version}


def short_name(name: str) -> str:
    """Return a dump's name without its place: of an address no secret of its query, either."""
    return file_name(name) if is_url(name) else STDIN if name == STDIN else Path(name).name


def plain_name(name: str) -> str:
    """Return a dump's name as a person may read it."""
    return shown(name) if is_url(name) else name


def reopen(source: Source) -> "IO[bytes] | Remote":
    """Open a dump's raw bytes at their beginning; an address must still be of the version that it was."""
    if not is_url(source.name):
        return _open(Path(source.name))
    remote = open_remote(source.name, source.stop, source.facts)
    source.facts = remote.facts
    return remote


def _open(path: Path) -> IO[bytes]:
    """Open a file for reading, with a clear line when it is none."""
    try:
        if path.is_dir():
            raise DumpError(f"{path} is a directory: name the dump files in it, such as {path}/*.pgn.zst")
        return path.open("rb")
    except FileNotFoundError as error:
        raise DumpError(f"{path} does not exist") from error
    except PermissionError as error:
        raise DumpError(f"{path} may not be read by this user: check its permissions") from error
    except OSError as error:
        raise DumpError(f"{path} cannot be opened: {os.strerror(error.errno or 0)}") from error


def require(name: str) -> None:
    """Raise DumpError or FetchError where there is no such file to open; standard input is always there."""
    if is_url(name):
        look(name)
    elif name != STDIN:
        _open(Path(name)).close()


def open_text(path: Path) -> TextIO:
    """Open a text file, compressed as a dump may be: openings, positions to evaluate.

    Raises DumpError; OSError, while it is read, where the archive is damaged.
    """
    stream: Any = Source(str(path), plain=True).open()
    return io.TextIOWrapper(io.BufferedReader(stream), "utf-8-sig", errors="replace")


def salvaged(source: Source, given: int, damage_near: int) -> Iterator[bytes]:
    """Decompress a damaged dump from its start, in small pieces near the damage; yield the text behind `given` bytes.

    `damage_near`: the raw bytes that had been read when the other decoder failed.
    """
    begin: dict[str, Callable[[], Any]] = {
        "zstd": lambda: zstandard.ZstdDecompressor().decompressobj(),
        "gzip": lambda: zlib.decompressobj(31),
        "bz2": bz2.BZ2Decompressor,
    }
    compression = source.compression or ""
    decoder = begin[compression]()
    with closing(reopen(source)) as file:
        while raw := file.read(64 if file.tell() > damage_near - (1 << 18) else 1 << 12):
            while raw:
                try:
                    text = decoder.decompress(raw)
                except (OSError, EOFError, zlib.error, zstandard.ZstdError):
                    return
                raw = b""
                if decoder.eof:  # archives may be several in a row
                    raw, decoder = decoder.unused_data, begin[compression]()
                if len(text) > given:
                    yield text[given:]
                given = max(given - len(text), 0)


class _Window:
    """A buffer that the stream is read into: the games not yet handed on lie at its front."""

    def __init__(self, stream: Any, source: Source, chunk_bytes: int) -> None:
        self.stream, self.source = stream, source
        self.text = np.empty(chunk_bytes + 2 * LONGEST_GAME + 3 * BLOCK, dtype=np.uint8)
        self.zeros = bytes(BLOCK)  # laid under each read, so that a failing one shows how far it came
        self.filled = self.scanned = 0
        self.seen = False  # whether any game has begun
        self.salvaging = False  # whether the stream is of what a damaged archive still holds
        self.splitter = Splitter()
        self.starts = np.empty(0, dtype=np.int64)

    def read_block(self) -> bool:
        """Read up to BLOCK more bytes; give False at the end. Damage is noted in the source, and is an end."""
        space: Any = self.text.data[self.filled : self.filled + BLOCK]
        space[:] = self.zeros
        try:
            count = self.stream.readinto(space)
        except OSError as error:
            self.source.damage = str(error)
            if self.source.input:  # what was made of whole rows is whole
                count = 0
            elif self.source.compression is not None and self.source.name != STDIN:
                # The decoder drops what it made of its last piece; another one reads up to the very damage.
                self.broken = self.stream  # letting it go would close the source
                self.stream = Pieces(salvaged(self.source, self.source.text_bytes, self.source.decoded))
                self.salvaging = True
                count = self.stream.readinto(space)
            else:  # it has laid down some of what was good and does not say how much; PGN holds no zero bytes
                count = laid_down(space)
        if self.source.text_bytes == 0 and count:
            if 0 in space[: min(count, 4096)]:
                raise DumpError(f"{plain_name(self.source.name)} is not PGN text: it holds zero bytes")
            if bytes(space[:3]) == _BOM:
                self.text[self.filled : self.filled + 3] = ord("\n")  # offsets stay true
        self.source.text_bytes += count
        self.filled += count
        return count > 0 and (not self.source.damage or self.salvaging)

    def find_games(self, final: bool) -> None:
        """Find the games that begin in what was read, up to the last whole line."""
        end = self.filled
        if not final:
            unseen = self.text[self.scanned : self.filled].tobytes()
            unseen = unseen.removesuffix(b"\r")  # its LF may be to come
            end = self.scanned + max(unseen.rfind(b"\n"), unseen.rfind(b"\r")) + 1
            if end == self.scanned and self.filled - self.scanned > LONGEST_GAME:
                if not self.seen:
                    raise DumpError(
                        f"{plain_name(self.source.name)} is not PGN text: no line break in {LONGEST_GAME >> 20} MiB"
                    )
                end = self.filled  # the line is cut, as the game that it belongs to will be
        found = np.empty((end - self.scanned) // 2 + 2, dtype=np.int64)
        count = split(self.text, self.scanned, end, self.splitter.state, found)
        self.starts = np.concatenate([self.starts, found[:count]])
        self.scanned = end
        self.seen = self.seen or count > 0

    @property
    def full(self) -> bool:
        """Return whether another block would not fit: then even an open game is handed on, cut."""
        return self.filled + BLOCK > len(self.text)

    def forget(self) -> int:
        """Drop what was scanned while no game is open (blank lines, notes between games) and give its bytes."""
        dropped = self.scanned
        self._drop(dropped)
        return dropped

    def _drop(self, end: int) -> None:
        rest = self.filled - end
        self.text[:rest] = self.text[end : self.filled].copy()
        self.splitter.state[2] -= end
        self.filled, self.scanned = rest, self.scanned - end

    def take(self, end: int, games: int) -> tuple[bytes, NDArray[np.int64]]:
        """Take the text up to `end` and its first `games` games off the front."""
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
        if source.damage and not source.input and not more and len(window.starts):
            # The last game may be cut short: it goes, and nothing before it does.
            window.filled = window.scanned = int(window.starts[-1])
            window.starts = window.starts[:-1]
        while len(window.starts):
            first = int(window.starts[0])
            later = int(np.searchsorted(window.starts, first + chunk_bytes))
            if later < len(window.starts):
                end, games = int(window.starts[later]), later
            elif not more or window.full:
                end, games = window.scanned, len(window.starts)
            else:
                break
            text, starts = window.take(end, games)
            yield Chunk(index, number, game, offset + first, text, starts)
            offset, index, game = offset + end, index + 1, game + games
        if not len(window.starts):
            offset += window.forget()
    while source.read(BLOCK):  # what lies behind damage is hashed too: the manifest names the file as it is
        pass
    source.close()


def chunks(
    sources: list[Source], chunk_bytes: int, on_read: Callable[[int], None] = lambda count: None
) -> Iterator[Chunk]:
    """Yield the chunks of all sources in order; `on_read` hears of raw bytes read so far.

    Raises DumpError for a source that cannot be read, before anything of it is given. Damage ends a source and is noted
    in its `damage`.
    """
    index = game = done = 0
    for number, source in enumerate(sources):
        for chunk in _source_chunks(source, number, chunk_bytes):
            on_read(done + source.bytes_read)
            yield Chunk(index, number, game, chunk.offset, chunk.text, chunk.starts)
            index, game = index + 1, game + len(chunk.starts)
        done += source.bytes_read
