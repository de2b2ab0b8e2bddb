"""Convert rows of inputs other than PGN to PGN games, read lines, and wrap iterators as streams.

Every input row becomes one game, even if it is invalid, so that dropped rows are reported with
their reason and location.
"""

import io
import re
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

HEAD_BYTES = 1 << 20
"""Raw bytes read to detect the format. A block of bz2 may take 900 kB and yields no text before its
end."""
FIRST_BYTES = 1 << 16
"""Decompressed bytes read to detect the format."""
LINE_BLOCK_BYTES = 1 << 20
"""Bytes of a stream to split into lines at a time."""
MAX_LINE_BYTES = 1 << 16
"""Maximum bytes of a line. A longer one is an invalid row and is not kept in memory."""
MAX_VALUE_CHARS = 2000
"""Maximum characters of a tag's value; the rest is cut off."""
PIECE_BYTES = 1 << 18
"""Approximate bytes of text per yielded piece."""

_CONTROL_CHARACTERS = dict.fromkeys((*range(32), 127, 133, 8232, 8233), " ")
_TAG_END = re.compile(r"(?<=[^\w\s])(\s*)\]")
"""A bracket that could end the tag, since a quotation mark or another symbol precedes it."""
_BOARD_PATTERN = r"[pnbrqkPNBRQK1-8]+(?:/[pnbrqkPNBRQK1-8]+){7}"
_COUNTERS_PATTERN = r"(-?\d{1,4}) (-?\d{1,4})"
FEN_PATTERN = re.compile(
    rf"\s*({_BOARD_PATTERN}) ([wb]) (-|[KQkqA-Ha-h]+) (-|[a-h][1-8])(?: {_COUNTERS_PATTERN})?\s*"
)
"""A FEN: all six fields, or the first four."""


class Readable(Protocol):
    """A stream of bytes."""

    def read(self, count: int, /) -> bytes:
        """Return at most `count` bytes, and b"" only at the end."""
        ...


class IteratorStream(io.RawIOBase):
    """Adapter that makes an iterator of bytes readable as a stream."""

    def __init__(self, pieces: Iterator[bytes | memoryview], source: Any = None) -> None:
        """Read from `pieces`; close `source`, which the iterator reads, with this stream."""
        self.pieces, self.source, self.left = pieces, source, memoryview(b"")
        self.error: OSError | None = None

    def readable(self) -> bool:
        """Return True, as `io.RawIOBase` requires."""
        return True

    def readinto(self, space: Any) -> int:
        """Read into `space`, a memoryview, and return the number of bytes.

        If the iterator raises an OSError, it is raised here after all bytes before it.
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
        """Close this stream and the source of the iterator."""
        if not self.closed and self.source is not None:
            self.source.close()
        super().close()


def read_lines(stream: Readable) -> Iterator[tuple[int, str | None]]:
    """Yield the number (from 1) and the text of each line, None if it is over MAX_LINE_BYTES.

    Byte-order marks are removed. If the stream raises an OSError, all whole lines come first.
    """
    number, rest = 0, b""
    while block := stream.read(LINE_BLOCK_BYTES):
        *whole, rest = (rest + block).split(b"\n")
        for line in whole:
            number += 1
            yield number, _decode_line(line)
        rest = rest[: MAX_LINE_BYTES + 1]  # enough to show that the line is too long
    if rest:
        yield number + 1, _decode_line(rest)


def _decode_line(line: bytes) -> str | None:
    if len(line) > MAX_LINE_BYTES:
        return None
    return line.rstrip(b"\r").decode("utf-8", "replace").removeprefix("\ufeff")


def clean_value(value: str) -> str:
    """Make a text safe as a tag's value: one line, at most MAX_VALUE_CHARS, no end of a tag."""
    return _TAG_END.sub(r"\1)", value[:MAX_VALUE_CHARS].translate(_CONTROL_CHARACTERS)).strip()


def format_tags(tags: Mapping[str, str]) -> str:
    """Format tags as PGN, one per line, without the empty ones."""
    return "".join(f'[{name} "{clean_value(value)}"]\n' for name, value in tags.items() if value)


def format_position_game(
    fen: str,
    moves: str,
    *,
    event: str,
    site: str,
    first_label: int = 0,
    tags: Mapping[str, str] | None = None,
) -> str:
    """Format a position and its moves (UCI or SAN) as a PGN game without a result.

    Every other ply is a label, from the ply `first_label` (0 or 1) on. A FEN of four fields gets
    the counters 0 and 1. An invalid FEN gives a broken row.
    """
    found = FEN_PATTERN.fullmatch(fen)
    if not found:
        return format_broken_row(event=event, site=site)
    defaults = ("", "", "", "", "0", "1")
    fields = (part or default for part, default in zip(found.groups(), defaults, strict=True))
    head = {"Event": event, "Site": site, "Result": "*", "FianchettoLabels": str(first_label)}
    every_tag = {**head, **(tags or {}), "FEN": " ".join(fields)}
    return f"{format_tags(every_tag)}\n{moves} *\n\n"


def format_broken_row(*, event: str, site: str) -> str:
    """Format an unreadable row as a PGN game, which is later dropped as a bad row and counted."""
    head = {"Event": event, "Site": site, "Result": "*", "FianchettoLabels": "broken"}
    return f"{format_tags(head)}\n*\n\n"


def join_games(games: Iterator[str]) -> Iterator[bytes]:
    """Yield the games in pieces of about PIECE_BYTES; raise an OSError after all whole games."""
    piece, size = io.StringIO(), 0
    try:
        for game in games:
            size += piece.write(game)
            if size >= PIECE_BYTES:
                yield piece.getvalue().encode("utf-8", "replace")
                piece, size = io.StringIO(), 0
    except OSError:
        yield piece.getvalue().encode("utf-8", "replace")
        raise
    yield piece.getvalue().encode("utf-8", "replace")
