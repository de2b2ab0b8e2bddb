"""What the inputs share: lines of bounded length, rows as PGN text, and a stream of what a generator makes.

Every row of an input becomes one game of the text, broken rows too: so each is counted, with its reason and its place.
"""

import io
import re
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

LINE_BLOCK = 1 << 20
LONGEST_LINE = 1 << 16
"""Bytes of a line; a longer one is a broken row, and is let go of as it is read."""
LONGEST_VALUE = 2000
"""Characters of a tag's value; the rest is cut off."""
PIECE = 1 << 18
"""Bytes of text that are handed on together, about."""

UCI = re.compile(r"[a-h][1-8][a-h][1-8][nbrqNBRQ]?")
_CONTROLS = dict.fromkeys((*range(32), 127, 133, 8232, 8233), " ")
_BOARD = r"[pnbrqkPNBRQK1-8]+(?:/[pnbrqkPNBRQK1-8]+){7}"
FEN = re.compile(rf"\s*({_BOARD}) ([wb]) (-|[KQkqA-Ha-h]+) (-|[a-h][1-8])(?: (-?\d{{1,4}}) (-?\d{{1,4}}))?\s*")
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


def lines(stream: Readable) -> Iterator[tuple[int, str | None]]:
    """Yield a stream's lines, numbered from 1: None for one longer than LONGEST_LINE. A mark of byte order is left out.

    An OSError of the stream comes when all whole lines before it were given.
    """
    number, rest = 0, b""
    while block := stream.read(LINE_BLOCK):
        *whole, rest = (rest + block).split(b"\n")
        for line in whole:
            number += 1
            yield number, _line(line)
        rest = rest[: LONGEST_LINE + 1]  # enough to know it by
    if rest:
        yield number + 1, _line(rest)


def _line(line: bytes) -> str | None:
    if len(line) > LONGEST_LINE:
        return None
    return line.rstrip(b"\r").decode("utf-8", "replace").removeprefix("\ufeff")


def clean(value: str) -> str:
    """Make a tag's value of any text: one line, no longer than LONGEST_VALUE."""
    return value[:LONGEST_VALUE].translate(_CONTROLS).strip()


def tag_lines(tags: Mapping[str, str]) -> str:
    """Write tags, a line each; empty ones are left out."""
    return "".join(f'[{name} "{clean(value)}"]\n' for name, value in tags.items() if value)


def position(
    fen: str, moves: str, *, event: str, site: str, parity: int = 0, tags: Mapping[str, str] | None = None
) -> str:
    """Write a position and moves from it (UCI or SAN) as a game of which only every other ply is a label.

    The labels are plies 0, 2, 4 or, by `parity` 1, 1, 3, 5. A FEN of four fields gets the counters 0 and 1.
    """
    found = FEN.fullmatch(fen)
    if not found:
        return broken(event=event, site=site)
    whole = " ".join(part or counter for part, counter in zip(found.groups(), ("", "", "", "", "0", "1"), strict=True))
    head = {"Event": event, "Site": site, "Result": "*", "FianchettoLabels": str(parity), **(tags or {}), "FEN": whole}
    return f"{tag_lines(head)}\n{moves} *\n\n"


def broken(*, event: str, site: str) -> str:
    """Write a row that cannot be read, for it to be counted."""
    return tag_lines({"Event": event, "Site": site, "Result": "*", "FianchettoLabels": "broken"}) + "\n*\n\n"


def gathered(games: Iterator[str]) -> Iterator[bytes]:
    """Join games to pieces of about PIECE bytes; those before an error are given before it is raised."""
    held: list[str] = []
    size = 0
    try:
        for game in games:
            held.append(game)
            size += len(game)
            if size >= PIECE:
                yield "".join(held).encode("utf-8", "replace")
                held, size = [], 0
    except OSError as error:
        if held:
            yield "".join(held).encode("utf-8", "replace")
        raise error
    if held:
        yield "".join(held).encode("utf-8", "replace")
