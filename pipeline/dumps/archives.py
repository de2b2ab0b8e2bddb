"""The text of zstd, gzip and bzip2 archives, up to the first damaged byte.

    raw bytes -> whole zstd frames, by their blocks' lengths -> [thread: decompress] -> text in order
              -> a zstd frame that is large or damaged       -> block by block       -> text
              -> gzip and bzip2 members                      -> small pieces         -> text

`decompress` yields the text of everything before the damage and then raises OSError, so an archive is read once and standard
input loses no more than a file. Zero bytes behind the archive are padding, as for gzip(1); others raise TrailingBytesError.
One thread decompresses 0.3 to 1.4 GB of text a second, too little to keep many workers busy, while frames of pzstd (which
Lichess publishes) are independent of each other. Source: RFC 8878, section 3.1.
"""

import bz2
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import zstandard

ZSTD = b"\x28\xb5\x2f\xfd"
GZIP = b"\x1f\x8b"
BZIP2 = b"BZh"

UNPACKERS = 4
"""Threads that decompress; with more, the one thread that cuts the text into games would be the bottleneck."""
LARGEST = 1 << 23
"""Largest frame in bytes that is decompressed as a whole; pzstd's at level 19 have some five million for 32 MiB of text."""
LARGEST_TEXT = 1 << 26
"""Largest text of such a frame in bytes."""
_READ = 1 << 14
"""Raw bytes that are decompressed at a time: a bomb makes 16 MiB of them."""
_READ_FRAMES = 1 << 20
_LONGEST_HEADER = 18
_RLE, _RESERVED = 1, 3

Read = Callable[[int], bytes]
"""Returns up to so many raw bytes, none at the end."""


class TrailingBytesError(OSError):
    """Bytes behind a complete archive that are no further archive; the text is whole."""


def compression_of(head: bytes) -> str | None:
    """Return zstd, gzip or bz2 by the first bytes of a file, None for anything else."""
    if head.startswith(ZSTD) or _is_skippable(head):
        return "zstd"
    return "gzip" if head.startswith(GZIP) else "bz2" if head.startswith(BZIP2) else None


def decompress(read: Read, compression: str) -> Iterator[bytes]:
    """Yield the text of an archive in pieces; raises OSError and what `read` raises, after all text before it."""
    return _decompress_zstd(Frames(read)) if compression == "zstd" else _decompress_members(read, compression)


def _is_skippable(head: bytes) -> bool:
    """Return whether a skippable frame begins here (magic 0x184D2A50 to 5F); pzstd writes one before each frame."""
    return head[1:4] == b"\x2a\x4d\x18" and head[0] >> 4 == 5


def _skip_padding(read: Read, rest: bytes) -> bytes:
    """Return what follows the zero bytes behind an archive, at least four bytes of it where there are so many."""
    rest = rest.lstrip(b"\0")
    while len(rest) < 4 and (more := read(_READ)):
        rest = (rest + more).lstrip(b"\0")
    return rest


def _decompress_members(read: Read, compression: str) -> Iterator[bytes]:
    """Yield the text of gzip or bzip2 members, one after another."""
    magic, make = (GZIP, lambda: zlib.decompressobj(31)) if compression == "gzip" else (BZIP2, bz2.BZ2Decompressor)
    # An error loses what its call had decompressed. zlib's state can be copied, to repeat the call byte by byte; bzip2 gives
    # a block's text when it has all of its bytes, so short pieces lose next to nothing.
    length = _READ if compression == "gzip" else 64
    rest = read(_READ)
    while rest:
        decoder: Any = make()
        while not decoder.eof:
            if not rest:
                raise OSError(f"the {compression} archive breaks off")
            piece, rest = rest[:length], rest[length:] or read(_READ)
            before = decoder.copy() if compression == "gzip" else None
            try:
                text = decoder.decompress(piece)
            except (OSError, zlib.error) as error:
                yield from _decompress_bytewise(before, piece)
                raise OSError(f"the {compression} archive is damaged: {error}") from error
            if text:
                yield text
        rest = _skip_padding(read, decoder.unused_data + rest)
        if rest and not rest.startswith(magic):
            raise TrailingBytesError(f"bytes that are no {compression} archive follow its end")


def _decompress_bytewise(decoder: Any, piece: bytes) -> Iterator[bytes]:
    """Yield what a decoder gives for a damaged piece, up to the byte that fails."""
    if decoder is not None:
        with suppress(zlib.error):
            for byte in piece:
                yield decoder.decompress(bytes([byte]))


class Frames:
    """The raw bytes of a zstd archive, from which frames are taken off the front."""

    def __init__(self, read: Read) -> None:
        self.read_raw = read
        self._held = b""
        self._next = 0
        """Bytes of `_held` that were taken; cutting them off for each frame would copy a megabyte for a hundred bytes."""

    def take_frame(self) -> bytes | None:
        """Return the next frame that holds data; None if it is large or damaged, or at the end."""
        while self.has(8):
            if not _is_skippable(self.peek(4)):
                length = self._measure_frame()
                return self.take(length) if length else None
            length = 8 + self.number(4, 4)
            if length > LARGEST or not self.has(length):
                return None
            self.take(length)
        return None

    def take(self, count: int) -> bytes:
        """Return up to `count` of the bytes that are held, and drop them."""
        taken = self._held[self._next : self._next + count]
        self._next += len(taken)
        return taken

    def take_all(self) -> bytes:
        """Return all bytes that are held, and drop them."""
        return self.take(len(self._held))

    def put_back(self, data: bytes) -> None:
        """Put bytes in front."""
        self._held, self._next = data + self._held[self._next :], 0

    def has(self, count: int) -> bool:
        """Return whether `count` more bytes come, and hold them."""
        while len(self._held) - self._next < count:
            more = self.read_raw(_READ_FRAMES)
            if not more:
                return False
            self._held, self._next = self._held[self._next :] + more, 0
        return True

    def peek(self, count: int) -> bytes:
        """Return the next bytes that are held."""
        return self._held[self._next : self._next + count]

    def number(self, place: int, count: int) -> int:
        """Return the little-endian number of `count` bytes at `place`."""
        return int.from_bytes(self._held[self._next + place : self._next + place + count], "little")

    def measure_header(self) -> tuple[int, bool]:
        """Return the length of the frame header that begins here, and whether a checksum ends the frame; raises ZstdError."""
        self.has(_LONGEST_HEADER)
        head = self.peek(_LONGEST_HEADER)
        return zstandard.frame_header_size(head), zstandard.get_frame_parameters(head).has_checksum

    def measure_block(self, at: int) -> tuple[int, bool] | None:
        """Return the length of the block at `at`, its header included, and whether it is the last; None if it is no block."""
        if not self.has(at + 3):
            return None
        block = self.number(at, 3)
        last, kind, size = block & 1, block >> 1 & 3, block >> 3
        return None if kind == _RESERVED else (3 + (1 if kind == _RLE else size), bool(last))

    def _measure_frame(self) -> int:
        """Return the length of the frame that begins here, 0 if it is not whole or not small."""
        try:
            at, has_checksum = self.measure_header()
        except zstandard.ZstdError:
            return 0
        last = False
        while not last:
            block = self.measure_block(at) if at <= LARGEST else None
            if block is None:
                return 0
            at, last = at + block[0], block[1]
        at += 4 * has_checksum
        return at if at <= LARGEST and self.has(at) else 0


def count_frames(path: Path) -> int | None:
    """Return how many frames of an archive hold data; None if they are not all small and whole."""
    with path.open("rb") as file:
        frames, count = Frames(file.read), 0
        while frames.take_frame() is not None:
            count += 1
        return None if frames.has(1) else count


def _decompress_frame(frame: bytes) -> bytes | None:
    """Return the text of a frame; None if it is damaged, or longer than LARGEST_TEXT."""
    try:
        with zstandard.ZstdDecompressor().stream_reader(frame) as reader:
            text = bytes(reader.read(LARGEST_TEXT + 1))
    except zstandard.ZstdError:
        return None
    return text if len(text) <= LARGEST_TEXT else None


def _decompress_zstd(frames: Frames, threads: int = UNPACKERS) -> Iterator[bytes]:
    """Yield the text of an archive in pieces, while `threads` frames are decompressed ahead."""
    under_way: deque[tuple[bytes, Future[bytes | None]]] = deque()
    failed: Exception | None = None
    more, complete = True, False
    with ThreadPoolExecutor(threads, "unpack") as pool:
        while more or under_way:
            while more and len(under_way) <= threads:
                try:
                    frame = frames.take_frame()
                except Exception as error:  # noqa: BLE001 - raised below, after the text before it
                    frame, failed = None, error
                more = frame is not None
                if frame is not None:
                    under_way.append((frame, pool.submit(_decompress_frame, frame)))
            if not under_way:
                break
            frame, result = under_way.popleft()
            if (text := result.result()) is None:
                frames.put_back(b"".join([frame, *(later for later, _ in under_way)]))
                break
            complete = True
            yield text
    if failed is not None:
        raise failed
    yield from _decompress_blocks(frames, complete)


def _decompress_blocks(frames: Frames, complete: bool) -> Iterator[bytes]:
    """Yield the text of the frames that are left, block by block; `complete`: whether there were frames before them."""
    while frames.has(1):
        if frames.peek(1) == b"\0":
            frames.put_back(_skip_padding(frames.read_raw, frames.take_all()))
            continue
        frames.has(8)
        if _is_skippable(frames.peek(4)):
            length = 8 + frames.number(4, 4)
            while length and frames.has(1):
                length -= len(frames.take(length))
            if length:
                raise OSError("the zstd archive breaks off")
            continue
        if complete and frames.peek(4) != ZSTD:
            raise TrailingBytesError("bytes that are no zstd archive follow its end")
        yield from _decompress_one(frames)
        complete = True


def _decompress_one(frames: Frames) -> Iterator[bytes]:
    """Yield the text of one frame, block by block."""
    try:
        length, has_checksum = frames.measure_header()
        decoder = zstandard.ZstdDecompressor().decompressobj()
        decoder.decompress(frames.take(length))
        last = False
        while not last:
            block = frames.measure_block(0)
            if block is None or not frames.has(block[0]):
                raise OSError("the zstd archive is damaged or breaks off")
            last = block[1]
            yield decoder.decompress(frames.take(block[0]))
        if has_checksum:
            if not frames.has(4):
                raise OSError("the zstd archive breaks off")
            decoder.decompress(frames.take(4))
    except zstandard.ZstdError as error:
        raise OSError(f"the zstd archive is damaged: {error}") from error
