"""An archive of many Zstandard frames, as pzstd writes and Lichess publishes, decompressed by several threads.

    raw bytes -> whole frames, by their blocks' lengths -> [thread: decompress] -> text in order

One thread decompresses 0.3 to 1.4 GB of text a second, which is what one reader could feed workers with; frames know nothing
of each other. What is no row of small whole frames, a frame of gigabytes, damage, an archive that breaks off, is left to the
one decoder that reads all other archives, from the first byte that is not understood: so it says of it what it always says.
Source: RFC 8878, section 3.1.
"""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import zstandard

from pipeline.dumps.formats.recognise import HEAD
from pipeline.dumps.zstd_frames import MAGIC, SKIPPABLE

UNPACKERS = 4
"""Threads that decompress: with more, the cutting into games by one would be what is waited for."""
PIECE = 1 << 22
"""Bytes of text that are given at a time where one decoder reads."""
LARGEST = 1 << 23
"""Bytes of a frame that is held whole; pzstd's, at level 19, have some five million for 32 MiB of text."""
LARGEST_TEXT = 1 << 26
"""Bytes of its text."""
_READ = 1 << 20
_LONGEST_HEADER = 18
_RLE, _RESERVED = 1, 3


class Raw:
    """Raw bytes of an archive, of which frames are taken off the front while there are any; a file to pyarrow."""

    closed = False

    def __init__(self, read: Callable[[int], bytes]) -> None:
        """Take what gives the archive's next bytes, none at its end."""
        self._read = read
        self._held = b""
        self._next = 0
        """Bytes of `_held` that were taken: to cut them off for each frame would copy a megabyte for a hundred bytes."""
        self.at = 0
        """Byte of the archive that is next."""

    def frame(self) -> bytes | None:
        """Take the next frame that holds data; None where no small whole frame stands there, or nothing."""
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
        """Take up to `count` bytes, none at the end, as who decompresses the rest does."""
        if self._next == len(self._held):
            self._held, self._next = self._read(count), 0
        taken = self._held[self._next : self._next + count]
        self._next += len(taken)
        self.at += len(taken)
        return taken

    def put_back(self, frames: list[bytes]) -> None:
        """Let frames be next again."""
        self._held, self._next = b"".join([*frames, self._held[self._next :]]), 0
        self.at -= sum(map(len, frames))

    def readable(self) -> bool:
        """Tell pyarrow that this can be read."""
        return True

    def close(self) -> None:
        """Leave the archive to who opened it."""

    def ended(self) -> bool:
        """Tell whether there is nothing more."""
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
        """Give the length of the frame that begins here, 0 where it is not whole, or no small one."""
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


def many_frames(head: bytes) -> bool:
    """Tell from its first HEAD bytes whether an archive is likely to be of many frames: as pzstd's, or of short ones."""
    if int.from_bytes(head[:4], "little") & ~0xF == SKIPPABLE:
        return True
    parts = iter([head])
    return len(head) == HEAD and Raw(lambda _: next(parts, b"")).frame() is not None


def laid_down(space: memoryview) -> int:
    """Count the bytes that a read which failed laid down in zeros: it does not say, and PGN holds no zero bytes."""
    good = np.flatnonzero(np.frombuffer(space, dtype=np.uint8))
    return int(good[-1]) + 1 if len(good) else 0


def _text(frame: bytes) -> bytes | None:
    """Decompress a frame; None where it is damaged, or longer than is held."""
    try:
        with zstandard.ZstdDecompressor().stream_reader(frame) as reader:
            text = bytes(reader.read(LARGEST_TEXT + 1))
    except zstandard.ZstdError:
        return None
    return text if len(text) <= LARGEST_TEXT else None


def unpacked(raw: Raw, threads: int = UNPACKERS, *, to_the_last: bool = False) -> Iterator[Any]:
    """Give the text of an archive in pieces, `threads` frames being decompressed meanwhile.

    What reading raises is raised when all text before it was given. `to_the_last`: before damage is raised, what its decoder
    laid down of the piece is given too, for one who cannot read the archive again.
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
    """Decompress what is left with one decoder."""
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
