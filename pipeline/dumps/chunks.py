"""Cut the text of dumps into chunks of whole games, in bounded memory.

A chunk holds about `chunk_bytes` of text and at most MAX_GAMES games. These limits and
MAX_GAME_BYTES bound the memory for any dump. A damaged archive ends with the last whole game before
the damage, and its Source records the damage.

Axes: G games of a chunk.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pipeline.dumps.archives import TrailingBytesError
from pipeline.dumps.formats.text import IteratorStream
from pipeline.dumps.source import BLOCK_BYTES, Source, redact_name
from pipeline.errors import DumpError
from pipeline.pgn.split import MAX_GAME_BYTES, Splitter, split

MAX_GAMES = 1 << 18
"""Maximum number of games in a chunk. A game takes about 600 bytes of memory besides its text, and
in hostile text every three bytes (`*` and two line breaks) may be a game."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Whole games of a dump."""

    index: int
    """Number of the chunk in the dataset, from 0."""
    source: int
    """Number of its source, from 0."""
    first_game: int
    """Number of its first game in the dataset, from 0; dropped games count too."""
    offset: int
    """Offset of the text in the decompressed source, in bytes."""
    text: bytes
    starts: NDArray[np.int64]
    """Offset of each game in the text, [G]."""
    is_evaluations: bool = False
    """Whether the games are lines of evaluated positions (pipeline/pgn/evaluation_rows.py)."""


class _Window:
    """Buffer of a stream's text that begins with the first game not yet returned."""

    def __init__(self, stream: IteratorStream, source: Source, chunk_bytes: int) -> None:
        self.stream, self.source = stream, source
        self.text = np.empty(chunk_bytes + 2 * MAX_GAME_BYTES + 3 * BLOCK_BYTES, dtype=np.uint8)
        # the text of chunks is read-only; with a read-only view here, kernels compile only once
        self.read_only = self.text.view()
        self.read_only.flags.writeable = False
        self.filled = self.scanned = 0
        self.has_games = False
        self.may_be_cut = False
        """Whether damage ended the text, and may have cut its last game."""
        self.splitter = Splitter()
        self.starts = np.empty(0, dtype=np.int64)

    def read_block(self) -> bool:
        """Read at most BLOCK_BYTES; return False at the end or at damage, which is recorded."""
        try:
            count = self.stream.readinto(self.text.data[self.filled : self.filled + BLOCK_BYTES])
        except OSError as error:
            self.source.damage, count = str(error), 0
            self.may_be_cut = not self.source.input and not isinstance(error, TrailingBytesError)
        self.source.text_bytes += count
        self.filled += count
        return count > 0

    def find_games(self, final: bool) -> None:
        """Find the games in new whole lines, or in all new text if `final`. Raises DumpError."""
        end = self.filled
        if not final:
            unseen = self.text[self.scanned : self.filled].tobytes()
            unseen = unseen.removesuffix(b"\r")  # the next block may begin with its LF
            end = self.scanned + max(unseen.rfind(b"\n"), unseen.rfind(b"\r")) + 1
            if end == self.scanned and self.filled - self.scanned > MAX_GAME_BYTES:
                if not self.has_games:
                    raise DumpError(
                        f"{redact_name(self.source.name)} is not PGN text: no line break in "
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
        """Return whether no further block fits, so that the open game must be cut."""
        return self.filled + BLOCK_BYTES > len(self.text)

    def drop(self, end: int) -> None:
        rest = self.filled - end
        self.text[:rest] = self.text[end : self.filled].copy()
        self.splitter.drop(end)
        self.filled, self.scanned = rest, self.scanned - end

    def take_games(self, end: int, games: int) -> tuple[bytes, NDArray[np.int64]]:
        """Return the text of the first games, which end at `end`, and their starts; drop both."""
        first = int(self.starts[0])
        text, starts = self.text[first:end].tobytes(), self.starts[:games] - first
        self.starts = self.starts[games:] - end
        self.drop(end)
        return text, starts


def _read_source_chunks(source: Source, number: int, chunk_bytes: int) -> Iterator[Chunk]:
    """Yield the chunks of one source, with indices and game numbers from 0."""
    window = _Window(source.open(), source, chunk_bytes)
    offset = index = game = 0
    has_more = True
    while has_more:
        has_more = window.read_block()
        window.find_games(final=not has_more)
        if window.may_be_cut and len(window.starts):  # leave out the last game
            window.filled = window.scanned = int(window.starts[-1])
            window.starts = window.starts[:-1]
        while len(window.starts):
            first = int(window.starts[0])
            games = min(int(np.searchsorted(window.starts, first + chunk_bytes)), MAX_GAMES)
            if games < len(window.starts):
                end = int(window.starts[games])
            elif not has_more or window.is_full:
                end, games = window.scanned, len(window.starts)
            else:
                break
            text, starts = window.take_games(end, games)
            yield Chunk(index, number, game, offset + first, text, starts, source.is_evaluations)
            offset, index, game = offset + end, index + 1, game + games
        if not len(window.starts):  # no game is open
            offset += window.scanned
            window.drop(window.scanned)
    if source.is_parquet_evaluations:
        # until now an estimate; no need to hash the rest, because the footer identifies the file
        source.bytes_read = source.size or 0
        source.require_version()
    else:
        # hash the bytes after damage too, since the manifest has the whole file's hash
        while source.read(BLOCK_BYTES):
            pass
    source.close()


def read_chunks(sources: list[Source], chunk_bytes: int) -> Iterator[Chunk]:
    """Yield the chunks of all sources in order.

    Raises DumpError before any chunk of a source that cannot be read, and FetchError and Stopped at
    any time. Damage ends a source and is recorded in its `damage`.
    """
    index = game = 0
    for number, source in enumerate(sources):
        for chunk in _read_source_chunks(source, number, chunk_bytes):
            yield replace(chunk, index=index, first_game=game)
            index, game = index + 1, game + len(chunk.starts)
