"""An archive of many Zstandard frames, as pzstd writes and Lichess publishes, decompressed by several threads.

    raw bytes -> whole frames, by their blocks' lengths -> [thread: decompress] -> text in order

One thread decompresses 0.3 to 1.4 GB of text a second, too little to keep many workers busy; frames are independent of each
other. Anything but a run of small intact frames (a frame of gigabytes, damage, an archive that breaks off) falls back to the
sequential decoder from that byte on, which reports the error. pzstd writes a skippable frame of 12 bytes before each frame.
Source: RFC 8878, section 3.1.
"""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import zstandard

from pipeline.dumps.formats.recognise import HEAD

MAGIC = 0xFD2FB528
SKIPPABLE = 0x184D2A50
"""First of sixteen magic numbers; pzstd uses this one."""

UNPACKERS = 4
"""Threads that decompress; with more, the one thread that cuts the text into games would be the bottleneck."""
PIECE = 1 << 22
"""Bytes of text that the sequential decoder yields at a time."""
LARGEST = 1 << 23
"""Bytes of a frame that is decompressed as a whole; pzstd's, at level 19, have some five million for 32 MiB of text."""
LARGEST_TEXT = 1 << 26
"""Bytes of its text."""
_READ = 1 << 20
_LONGEST_HEADER = 18
_RLE, _RESERVED = 1, 3


class Raw:
    """Raw bytes of an archive: frames are taken off the front while there are any; pyarrow reads the rest as a file."""

    closed = False

    def __init__(self, read: Callable[[int], bytes]) -> None:
        """Take the function that returns the archive's next bytes, none at its end."""
        self._read = read
        self._held = b""
        self._next = 0
        """Bytes of `_held` that were taken; cutting them off for each frame would copy a megabyte for a hundred bytes."""
        self.at = 0
        """Offset of the next byte in the archive."""

    def frame(self) -> bytes | None:
        """Take and return the next frame that holds data; None where there is no small whole frame, or nothing."""
        while self._have(8):
            magic, length = self._number(0, 4), self._number(4, 4)
            if magic & ~0xF != SKIPPABLE:
                length = self._length() if magic == MAGIC else 0
                return self.read(length) if length else None
            if length > LARGEST or not self._have(8 + length):
                return None
            self.read(8 + length)
        return None

    def read(self, count: int) -> bytes:
        """Take and return up to `count` bytes, none at the end."""
        if self._next == len(self._held):
            self._held, self._next = self._read(count), 0
        taken = self._held[self._next : self._next + count]
        self._next += len(taken)
        self.at += len(taken)
        return taken

    def put_back(self, frames: list[bytes]) -> None:
        """Put frames back in front."""
        self._held, self._next = b"".join([*frames, self._held[self._next :]]), 0
        self.at -= sum(map(len, frames))

    def readable(self) -> bool:
        """Tell pyarrow that this can be read."""
        return True

    def close(self) -> None:
        """Do nothing: the archive is closed by who opened it."""

    def ended(self) -> bool:
        """Return whether there is nothing more."""
        return not self._have(1)

    def _have(self, count: int) -> bool:
        while len(self._held) - self._next < count:
            more = self._read(_READ)
            if not more:
                return False
            self._held, self._next = self._held[self._next :] + more, 0
        return True

    def _number(self, place: int, count: int) -> int:
        return int.from_bytes(self._held[self._next + place : self._next + place + count], "little")

    def _length(self) -> int:
        """Return the length of the frame that begins here, 0 where it is not whole or not small."""
        self._have(_LONGEST_HEADER)
        head = self._held[self._next : self._next + _LONGEST_HEADER]
        try:
            at, summed = zstandard.frame_header_size(head), zstandard.get_frame_parameters(head).has_checksum
        except zstandard.ZstdError:
            return 0
        last = 0
        while not last:
            if at > LARGEST or not self._have(at + 3):
                return 0
            block = self._number(at, 3)
            last, kind, size = block & 1, block >> 1 & 3, block >> 3
            if kind == _RESERVED:
                return 0
            at += 3 + (1 if kind == _RLE else size)
        at += 4 * summed
        return at if at <= LARGEST and self._have(at) else 0


def count_frames(path: Path) -> int | None:
    """Return how many frames of an archive hold data; None where they are not all small and whole."""
    with path.open("rb") as file:
        raw, count = Raw(file.read), 0
        while raw.frame() is not None:
            count += 1
        return count if raw.ended() else None


def many_frames(head: bytes) -> bool:
    """Return whether an archive probably has many frames, by its first HEAD bytes: pzstd's mark, or a short first frame."""
    if int.from_bytes(head[:4], "little") & ~0xF == SKIPPABLE:
        return True
    parts = iter([head])
    return len(head) == HEAD and Raw(lambda _: next(parts, b"")).frame() is not None


def laid_down(space: memoryview) -> int:
    """Return how many bytes a failed read wrote into a space of zeros: it does not say, and PGN holds no zero bytes."""
    good = np.flatnonzero(np.frombuffer(space, dtype=np.uint8))
    return int(good[-1]) + 1 if len(good) else 0


def _text(frame: bytes) -> bytes | None:
    """Return the text of a frame; None where it is damaged, or longer than LARGEST_TEXT."""
    try:
        with zstandard.ZstdDecompressor().stream_reader(frame) as reader:
            text = bytes(reader.read(LARGEST_TEXT + 1))
    except zstandard.ZstdError:
        return None
    return text if len(text) <= LARGEST_TEXT else None


def unpacked(raw: Raw, threads: int = UNPACKERS, *, to_the_last: bool = False) -> Iterator[Any]:
    """Yield the text of an archive in pieces, while `threads` frames are decompressed ahead.

    What reading raises is raised after all text before it. `to_the_last`: before damage is raised, what the decoder wrote of
    the damaged piece is yielded too, for a caller that cannot read the archive again.
    """
    going: deque[tuple[bytes, Future[bytes | None]]] = deque()
    failed: Exception | None = None
    more = True
    with ThreadPoolExecutor(threads, "unpack") as pool:
        while more or going:
            while more and len(going) <= threads:
                try:
                    frame = raw.frame()
                except Exception as error:  # noqa: BLE001 - raised below, behind what was read before it
                    frame, failed = None, error
                more = frame is not None
                if frame is not None:
                    going.append((frame, pool.submit(_text, frame)))
            if not going:
                break
            frame, coming = going.popleft()
            if (text := coming.result()) is None:
                raw.put_back([frame, *(later for later, _ in going)])
                break
            if text:  # an empty piece would be the end of the stream
                yield text
    if failed is not None:
        raise failed
    if not raw.ended():
        yield from _by_one(raw, to_the_last)


def _by_one(raw: Raw, to_the_last: bool) -> Iterator[memoryview]:
    """Decompress what is left with the sequential decoder."""
    stream = pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd")
    while True:
        space = memoryview(bytearray(PIECE))
        try:
            count = stream.readinto(space)
        except OSError:
            if to_the_last and (count := laid_down(space)):
                yield space[:count]
            raise
        if not count:
            return
        yield space[:count]
