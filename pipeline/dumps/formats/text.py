"""Write rows of other inputs as PGN games; read lines of bounded length; stream from an iterator.

Every row of an input becomes one game, even an invalid row, so that each dropped row is counted
with its reason and place.
"""

import io
import re
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

HEAD_BYTES = 1 << 20
"""Raw bytes read to detect the format: a bz2 block may take 900 kB and yields no text before its
end."""
FIRST_BYTES = 1 << 16
"""Decompressed bytes read to detect the format."""
LINE_BLOCK = 1 << 20
MAX_LINE_BYTES = 1 << 16
"""Maximum bytes of a line; a longer one is an invalid row and is not kept in memory."""
MAX_VALUE_CHARS = 2000
"""Maximum characters of a tag's value; the rest is cut off."""
PIECE_BYTES = 1 << 18
"""Approximate bytes of text per yielded piece."""

_CONTROLS = dict.fromkeys((*range(32), 127, 133, 8232, 8233), " ")
_CLOSE = re.compile(r"(?<=[^\w\s])(\s*)\]")
"""A bracket after a quotation mark or another symbol, which could end the tag."""
_BOARD = r"[pnbrqkPNBRQK1-8]+(?:/[pnbrqkPNBRQK1-8]+){7}"
FEN = re.compile(
    rf"\s*({_BOARD}) ([wb]) (-|[KQkqA-Ha-h]+) (-|[a-h][1-8])(?: (-?\d{{1,4}}) (-?\d{{1,4}}))?\s*"
)
"""A FEN: all six fields, or the first four."""


class Readable(Protocol):
    """A stream of bytes."""

    def read(self, count: int, /) -> bytes:
        """Return up to `count` bytes, none at the end."""
        ...


class IteratorStream(io.RawIOBase):
    """Adapter that makes an iterator of bytes readable as a stream."""

    def __init__(self, pieces: Iterator[bytes | memoryview], source: Any = None) -> None:
        """Read from an iterator; `source`, which it reads, is closed with this stream."""
        self.pieces, self.source, self.left = pieces, source, memoryview(b"")
        self.error: OSError | None = None

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, space: Any) -> int:
        """Read into `space` (a memoryview) and return the number of bytes.

        An OSError of the iterator is raised after all text before it.
        """
        filled = 0
        while filled < len(space):
            count = min(len(space) - filled, len(self.left))
            space[filled : filled + count] = self.left[:count]
            self.left = self.left[count:]
            filled += count
            if not self.left:
                try:
                    self.left = memoryview(next(self.pieces))
                except StopIteration:
                    break
                except OSError as error:
                    self.pieces, self.error = iter(()), error
                    break
        if not filled and self.error is not None:
            raise self.error
        return filled

    def close(self) -> None:
        """Close the source of the iterator."""
        if not self.closed and self.source is not None:
            self.source.close()
        super().close()


def read_lines(stream: Readable) -> Iterator[tuple[int, str | None]]:
    """Yield a stream's lines, numbered from 1, with None for lines longer than MAX_LINE_BYTES.

    Byte-order marks are removed. An OSError of the stream is raised after all whole lines.
    """
    number, rest = 0, b""
    while block := stream.read(LINE_BLOCK):
        *whole, rest = (rest + block).split(b"\n")
        for line in whole:
            number += 1
            yield number, _decode_line(line)
        rest = rest[: MAX_LINE_BYTES + 1]  # enough to detect that it is too long
    if rest:
        yield number + 1, _decode_line(rest)


def _decode_line(line: bytes) -> str | None:
    if len(line) > MAX_LINE_BYTES:
        return None
    return line.rstrip(b"\r").decode("utf-8", "replace").removeprefix("\ufeff")


def clean(value: str) -> str:
    """Return a text as a tag value: one line of at most MAX_VALUE_CHARS."""
    return _CLOSE.sub(r"\1)", value[:MAX_VALUE_CHARS].translate(_CONTROLS)).strip()


def write_tags(tags: Mapping[str, str]) -> str:
    """Write non-empty tags, one per line."""
    return "".join(f'[{name} "{clean(value)}"]\n' for name, value in tags.items() if value)


def write_position_row(
    fen: str,
    moves: str,
    *,
    event: str,
    site: str,
    first_label: int = 0,
    tags: Mapping[str, str] | None = None,
) -> str:
    """Write a position and its moves (UCI or SAN) as a game.

    Every other ply is a label, starting with `first_label`. A FEN of four fields gets the counters
    0 and 1.
    """
    found = FEN.fullmatch(fen)
    if not found:
        return write_broken_row(event=event, site=site)
    counters = ("", "", "", "", "0", "1")
    whole = " ".join(part or other for part, other in zip(found.groups(), counters, strict=True))
    head = {"Event": event, "Site": site, "Result": "*", "FianchettoLabels": str(first_label)}
    return f"{write_tags({**head, **(tags or {}), 'FEN': whole})}\n{moves} *\n\n"


def write_broken_row(*, event: str, site: str) -> str:
    """Write an unreadable row as a game, so that it is counted."""
    head = {"Event": event, "Site": site, "Result": "*", "FianchettoLabels": "broken"}
    return f"{write_tags(head)}\n*\n\n"


def join_games(games: Iterator[str]) -> Iterator[bytes]:
    """Join games to pieces of about PIECE_BYTES; yield all of them before an OSError is raised."""
    held, size = io.StringIO(), 0
    try:
        for game in games:
            size += held.write(game)
            if size >= PIECE_BYTES:
                yield held.getvalue().encode("utf-8", "replace")
                held, size = io.StringIO(), 0
    except OSError:
        yield held.getvalue().encode("utf-8", "replace")
        raise
    yield held.getvalue().encode("utf-8", "replace")
