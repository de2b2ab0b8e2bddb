"""The frames of a Zstandard archive, found without decompressing it: where several readers could begin.

Lichess's dumps are written by pzstd: before each frame of some megabytes stands a skippable frame of 12 bytes that says how
long the next one is. Such an archive is listed by one small read a frame; any other by one a block (RFC 8878, section 3.1).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pipeline.errors import DumpError

MAGIC = 0xFD2FB528
SKIPPABLE = 0x184D2A50
"""First of sixteen magic numbers; pzstd uses this one."""
_HINT_BYTES = 4
_RAW, _RLE, _COMPRESSED, _RESERVED = range(4)


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame that holds data."""

    offset: int
    """Byte of the archive that it begins at."""
    bytes: int
    """Its length there."""
    text_bytes: int | None
    """Its length decompressed, where the archive says."""


def frames(path: Path) -> list[Frame]:
    """List the frames of an archive in order.

    Raises DumpError for what is no Zstandard archive, and where it breaks off.
    """
    found: list[Frame] = []
    with path.open("rb") as file:
        end = path.stat().st_size
        at, hint = 0, 0
        while at < end:
            file.seek(at)
            magic = _number(file, 4, path)
            if magic & ~0xF == SKIPPABLE:
                length = _number(file, 4, path)
                hint = _number(file, _HINT_BYTES, path) if length == _HINT_BYTES else 0
                at += 8 + length
                continue
            if magic != MAGIC:
                raise DumpError(f"{path} is no Zstandard archive, or is damaged at byte {at:,}")
            blocks, text_bytes, checksum = _header(file, path)
            length = _hinted(file, at, hint, end) or _walk(file, at + blocks, path) + 4 * checksum - at
            if at + length > end:
                raise DumpError(f"{path} breaks off in its frame at byte {at:,}")
            found.append(Frame(at, length, text_bytes))
            at, hint = at + length, 0
    return found


def _number(file: IO[bytes], count: int, path: Path) -> int:
    data = file.read(count)
    if len(data) < count:
        raise DumpError(f"{path} breaks off at byte {file.tell():,}")
    return int.from_bytes(data, "little")


def _header(file: IO[bytes], path: Path) -> tuple[int, int | None, bool]:
    """Read a frame's header behind its magic number: give its length with that, the text's if known, and if it is summed."""
    flags = _number(file, 1, path)
    single, summed = bool(flags & 0x20), bool(flags & 0x04)
    window = 0 if single else 1
    dictionary = (0, 1, 2, 4)[flags & 3]
    content = (1 if single else 0, 2, 4, 8)[flags >> 6]
    _number(file, window + dictionary, path)
    text_bytes = _number(file, content, path) + (256 if content == 2 else 0) if content else None
    return 5 + window + dictionary + content, text_bytes, summed


def _hinted(file: IO[bytes], at: int, hint: int, end: int) -> int:
    """Give the length that a skippable frame said, if a frame or the end stands there; else 0."""
    if not hint or at + hint > end:
        return 0
    file.seek(at + hint)
    following = int.from_bytes(file.read(4), "little")
    return hint if at + hint == end or following == MAGIC or following & ~0xF == SKIPPABLE else 0


def _walk(file: IO[bytes], at: int, path: Path) -> int:
    """Step over the blocks of a frame and give the byte behind the last one."""
    while True:
        file.seek(at)
        header = _number(file, 3, path)
        kind, size = header >> 1 & 3, header >> 3
        if kind == _RESERVED:
            raise DumpError(f"{path} is damaged at byte {at:,}")
        at += 3 + (1 if kind == _RLE else size)
        if header & 1:
            return at
