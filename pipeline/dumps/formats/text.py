"""Rows of other inputs as games of PGN, lines of bounded length, and a stream of what an iterator
yields.

Every row of an input becomes one game of the text, broken rows too: so each is counted, with its
reason and its place.
"""

import io
import re
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

HEAD = 1 << 20
"""Raw bytes by which a file is recognised: a block of bz2 may take 900 kB, and gives no text before
its end."""
FIRST = 1 << 16
"""Decompressed bytes by which the format is recognized."""
LINE_BLOCK = 1 << 20
LONGEST_LINE = 1 << 16
"""Bytes of a line; a longer one is a broken row, and is not held in memory."""
LONGEST_VALUE = 2000
"""Characters of a tag's value; the rest is cut off."""
PIECE = 1 << 18
"""Bytes of text that are passed on together, about."""

_CONTROLS = dict.fromkeys((*range(32), 127, 133, 8232, 8233), " ")
_CLOSE = re.compile(r"(?<=[^\w\s])(\s*)\]")
"""A bracket behind a quotation mark, which would end the tag, or behind another sign."""
_BOARD = r"[pnbrqkPNBRQK1-8]+(?:/[pnbrqkPNBRQK1-8]+){7}"
FEN = re.compile(
    rf"\s*({_BOARD}) ([wb]) (-|[KQkqA-Ha-h]+) (-|[a-h][1-8])(?: (-?\d{{1,4}}) (-?\d{{1,4}}))?\s*"
)
"""Six fields, or the first four of them."""


class Readable(Protocol):
    """A stream of bytes."""

    def read(self, count: int, /) -> bytes:
        """Return up to `count` bytes, none at the end."""
        ...


class Pieces(io.RawIOBase):
    """A stream of the bytes that an iterator yields."""

    def __init__(self, pieces: Iterator[bytes | memoryview], source: Any = None) -> None:
        """Take the iterator, and what it reads, which is closed with this stream."""
        self.pieces = pieces
        self.source = source
        self.left = memoryview(b"")
        self.error: OSError | None = None

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, space: Any) -> int:
        """Fill `space` (a memoryview) as far as there is text and return how far.

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
        """Close what the iterator reads."""
        if not self.closed and self.source is not None:
            self.source.close()
        super().close()


def read_lines(stream: Readable) -> Iterator[tuple[int, str | None]]:
    """Yield a stream's lines, numbered from 1: None for one longer than LONGEST_LINE. Byte-order
    marks are left out.

    An OSError of the stream is raised after all whole lines before it.
    """
    number, rest = 0, b""
    while block := stream.read(LINE_BLOCK):
        *whole, rest = (rest + block).split(b"\n")
        for line in whole:
            number += 1
            yield number, _decode_line(line)
        rest = rest[: LONGEST_LINE + 1]  # enough to see that it is too long
    if rest:
        yield number + 1, _decode_line(rest)


def _decode_line(line: bytes) -> str | None:
    if len(line) > LONGEST_LINE:
        return None
    return line.rstrip(b"\r").decode("utf-8", "replace").removeprefix("\ufeff")


def clean(value: str) -> str:
    """Return a text as a tag's value: one line, no longer than LONGEST_VALUE."""
    return _CLOSE.sub(r"\1)", value[:LONGEST_VALUE].translate(_CONTROLS)).strip()


def write_tags(tags: Mapping[str, str]) -> str:
    """Write tags, a line each; empty ones are left out."""
    return "".join(f'[{name} "{clean(value)}"]\n' for name, value in tags.items() if value)


def position_row(
    fen: str,
    moves: str,
    *,
    event: str,
    site: str,
    first_label: int = 0,
    tags: Mapping[str, str] | None = None,
) -> str:
    """Write a position and moves from it (UCI or SAN) as a game of which every other ply is a
    label, from `first_label` on.

    A FEN of four fields gets the counters 0 and 1.
    """
    found = FEN.fullmatch(fen)
    if not found:
        return broken_row(event=event, site=site)
    counters = ("", "", "", "", "0", "1")
    whole = " ".join(part or other for part, other in zip(found.groups(), counters, strict=True))
    head = {"Event": event, "Site": site, "Result": "*", "FianchettoLabels": str(first_label)}
    return f"{write_tags({**head, **(tags or {}), 'FEN': whole})}\n{moves} *\n\n"


def broken_row(*, event: str, site: str) -> str:
    """Write a row that cannot be read as a game, so that it is counted."""
    head = {"Event": event, "Site": site, "Result": "*", "FianchettoLabels": "broken"}
    return f"{write_tags(head)}\n*\n\n"


def gather(games: Iterator[str]) -> Iterator[bytes]:
    """Join games to pieces of about PIECE bytes; those before an OSError are yielded before it is
    raised.
    """
    held, size = io.StringIO(), 0
    try:
        for game in games:
            size += held.write(game)
            if size >= PIECE:
                yield held.getvalue().encode("utf-8", "replace")
                held, size = io.StringIO(), 0
    except OSError:
        yield held.getvalue().encode("utf-8", "replace")
        raise
    yield held.getvalue().encode("utf-8", "replace")
