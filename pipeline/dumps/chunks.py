"""Cut the text of dumps into chunks of whole games, in bounded memory.

A chunk holds about `chunk_bytes` of text and at most MAX_GAMES games. These limits and
MAX_GAME_BYTES bound the memory for any dump. A damaged archive ends with the last whole game that
was read, and the damage is noted in its Source.

Axes: G games of a chunk.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pipeline.dumps.archives import TrailingBytesError
from pipeline.dumps.formats.text import IteratorStream
from pipeline.dumps.source import BLOCK, Source, display_name
from pipeline.errors import DumpError
from pipeline.pgn.split import MAX_GAME_BYTES, Splitter, split

MAX_GAMES = 1 << 18
"""Maximum number of games in a chunk. A game takes about 600 bytes besides its text, and hostile
text of `*` lines has a game in every three bytes."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Whole games of a dump."""

    index: int
    """Number of the chunk in the dataset, from 0."""
    source: int
    """Number of its source, from 0."""
    first_game: int
    """Number of its first game in the dataset, counting dropped games."""
    offset: int
    """Offset of the text in the decompressed source, in bytes."""
    text: bytes
    starts: NDArray[np.int64]
    """[G] first byte of each game in the text."""
    is_evaluations: bool = False
    """Whether the games are lines of evaluated positions (pipeline/pgn/evaluation_rows.py)."""


class _Window:
    """A buffer of text from the stream, starting with the first game not yet returned."""

    def __init__(self, stream: IteratorStream, source: Source, chunk_bytes: int) -> None:
        self.stream, self.source = stream, source
        self.text = np.empty(chunk_bytes + 2 * MAX_GAME_BYTES + 3 * BLOCK, dtype=np.uint8)
        # Chunks are read-only arrays. With a read-only view here, kernels compile only once.
        self.read_only = self.text.view()
        self.read_only.flags.writeable = False
        self.filled = self.scanned = 0
        self.has_games = False
        self.is_cut = False
        """Whether damage ended the text, possibly in the middle of a game."""
        self.splitter = Splitter()
        self.starts = np.empty(0, dtype=np.int64)

    def read_block(self) -> bool:
        """Read up to BLOCK more bytes; return False at the end or at damage, which is recorded."""
        try:
            count = self.stream.readinto(self.text.data[self.filled : self.filled + BLOCK])
        except OSError as error:
            self.source.damage, count = str(error), 0
            self.is_cut = not self.source.input and not isinstance(error, TrailingBytesError)
        self.source.text_bytes += count
        self.filled += count
        return count > 0

    def find_games(self, final: bool) -> None:
        """Find the games that begin in the new text, up to the last whole line."""
        end = self.filled
        if not final:
            unseen = self.text[self.scanned : self.filled].tobytes()
            unseen = unseen.removesuffix(b"\r")  # a CR whose LF may be in the next block
            end = self.scanned + max(unseen.rfind(b"\n"), unseen.rfind(b"\r")) + 1
            if end == self.scanned and self.filled - self.scanned > MAX_GAME_BYTES:
                if not self.has_games:
                    raise DumpError(
                        f"{display_name(self.source.name)} is not PGN text: no line break in "
                        f"{MAX_GAME_BYTES >> 20} MiB"
                    )
                end = self.filled  # the line is too long: cut it, and with it its game
        if self.source.is_evaluations:
            newlines = np.flatnonzero(self.text[self.scanned : end] == ord("\n"))
            found = self.scanned + np.concatenate([[0], newlines[:-1] + 1])[: len(newlines)]
        else:
            found = np.empty((end - self.splitter.resume(self.scanned)) // 2 + 2, dtype=np.int64)
            count = split(self.read_only, self.scanned, end, final, self.splitter.state, found)
            found = found[:count]
        self.starts = np.concatenate([self.starts, found])
        self.scanned = end
        self.has_games = self.has_games or len(found) > 0

    @property
    def is_full(self) -> bool:
        """Return whether no further block fits; an open game is then cut and returned."""
        return self.filled + BLOCK > len(self.text)

    def drop(self, end: int) -> None:
        """Drop the text up to `end`."""
        rest = self.filled - end
        self.text[:rest] = self.text[end : self.filled].copy()
        self.splitter.drop(end)
        self.filled, self.scanned = rest, self.scanned - end

    def take(self, end: int, games: int) -> tuple[bytes, NDArray[np.int64]]:
        """Return the text up to `end` and its first `games` games, and drop them."""
        first = int(self.starts[0])
        text, starts = self.text[first:end].tobytes(), self.starts[:games] - first
        self.starts = self.starts[games:] - end
        self.drop(end)
        return text, starts


def _source_chunks(source: Source, number: int, chunk_bytes: int) -> Iterator[Chunk]:
    """Yield the chunks of one source, with indices and game numbers from 0."""
    window = _Window(source.open(), source, chunk_bytes)
    offset = index = game = 0
    more = True
    while more:
        more = window.read_block()
        window.find_games(final=not more)
        if window.is_cut and len(window.starts):  # the last game is not whole
            window.filled = window.scanned = int(window.starts[-1])
            window.starts = window.starts[:-1]
        while len(window.starts):
            first = int(window.starts[0])
            later = min(int(np.searchsorted(window.starts, first + chunk_bytes)), MAX_GAMES)
            if later < len(window.starts):
                end, games = int(window.starts[later]), later
            elif not more or window.is_full:
                end, games = window.scanned, len(window.starts)
            else:
                break
            text, starts = window.take(end, games)
            yield Chunk(index, number, game, offset + first, text, starts, source.is_evaluations)
            offset, index, game = offset + end, index + 1, game + games
        if not len(window.starts):  # no game is open
            offset += window.scanned
            window.drop(window.scanned)
    if source.is_parquet_evaluations:
        source.bytes_read = source.size or 0  # identified by its footer
        source.require_version()
    else:
        # hash the bytes after damage too, since the manifest has the hash of the whole file
        while source.read(BLOCK):
            pass
    source.close()


def read_chunks(sources: list[Source], chunk_bytes: int) -> Iterator[Chunk]:
    """Yield the chunks of all sources in order.

    Raises Stopped, and DumpError before the first chunk of a source that cannot be read. Damage
    ends a source and is recorded in its `damage`.
    """
    index = game = 0
    for number, source in enumerate(sources):
        for chunk in _source_chunks(source, number, chunk_bytes):
            yield replace(chunk, index=index, first_game=game)
            index, game = index + 1, game + len(chunk.starts)
