"""The text of zstd, gzip, bzip2 and zip archives, up to the first damaged byte.

Other archives are refused by name.

`decompress` yields the text of everything before the damage and then raises OSError, so an archive
is read once and standard input loses no more than a file. Zero bytes after the archive are padding,
as for gzip(1); others raise TrailingBytesError. Source of the zstd format: RFC 8878, section 3.1.
"""

import bz2
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import zstandard

from pipeline.errors import DumpError

ZSTD = b"\x28\xb5\x2f\xfd"
GZIP = b"\x1f\x8b"
BZIP2 = b"BZh"
ZIP = b"PK\x03\x04"
REFUSED = {
    b"\xfd7zXZ\x00": ("an xz archive", "unpack it by `xz -d`"),
    b"\x5d\x00\x00": ("an lzma archive", "unpack it by `xz -d`"),
    b"7z\xbc\xaf\x27\x1c": ("a 7z archive", "unpack it by `7z x`"),
    b"Rar!\x1a\x07": ("a RAR archive", "unpack it by `unrar x`"),
    b"\x04\x22\x4d\x18": ("an lz4 archive", "unpack it by `lz4 -d`"),
    b"LZIP": ("an lzip archive", "unpack it by `lzip -d`"),
    b"\x1f\x9d": ("a compress archive", "unpack it by `gzip -d`"),
    b"PK\x05\x06": ("an empty zip archive", "name a file with games"),
    b"PK\x07\x08": ("a part of a zip archive", "join and unpack its parts"),
    b"SQLite format 3\x00": ("an SQLite database", "export the games as PGN"),
    b"\x89HDF": ("an HDF5 file", "export the games as PGN"),
    b"ARROW1": ("an Arrow file", "save it as Parquet"),
    b"%PDF": ("a PDF document", "name a PGN file"),
}
"""Formats that are refused, by their first bytes: name and remedy."""
TAR, TAR_AT = b"ustar", 257

_READ = 1 << 14
"""Raw bytes of gzip and bzip2 that are decompressed at a time: a bomb makes 16 MiB of them."""
_READ_ZSTD = 1 << 20
_READ_ZIP = 1 << 16
_LONGEST_HEADER = 18

Read = Callable[[int], bytes]
"""Returns up to so many raw bytes, none at the end."""


class TrailingBytesError(OSError):
    """A complete archive is followed by bytes that are not another archive; its text is whole."""


def compression_of(head: bytes) -> str | None:
    """Return zstd, gzip, bz2 or zip by the first bytes of a file, None for anything else."""
    if head.startswith(ZSTD) or _is_skippable(head):
        return "zstd"
    found = (
        name
        for name, magic in (("gzip", GZIP), ("bz2", BZIP2), ("zip", ZIP))
        if head.startswith(magic)
    )
    return next(found, None)


def refuse_archives(first: bytes, inside: str | None) -> None:
    """Raise DumpError, without the file's name, for an archive or a database.

    It is recognised by the first bytes of the text. `inside` is the archive that the text was
    unpacked from.
    """
    held = f"holds, inside a {inside} archive, " if inside else "is "
    if first[TAR_AT : TAR_AT + len(TAR)] == TAR:
        raise DumpError(f"{held}a tar archive: unpack it by `tar -xf`, and name the files in it")
    for magic, (what, remedy) in REFUSED.items():
        if first.startswith(magic):
            raise DumpError(f"{held}{what}: {remedy}, and name what was in it")
    packed = compression_of(first) if inside else None
    if packed:
        raise DumpError(f"{held}a {packed} archive: unpack it, and name the file in it")


def read_zip(path: str) -> Iterator[tuple[bytes, float]]:
    """Yield the text of the only file in a zip archive in pieces, each with the share read.

    Raises DumpError, without the archive's name, unless one file can be read; OSError for damage,
    after all text before it.
    """
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError) as error:
        raise DumpError(
            f"is a damaged or incomplete zip archive ({error}): fetch it again, or unpack it"
        ) from error
    with archive:
        hidden = ("__MACOSX/", ".")
        files = [
            file
            for file in archive.infolist()
            if not (file.is_dir() or file.filename.startswith(hidden))
        ]
        if len(files) != 1:
            names = ", ".join(file.filename for file in files[:3])
            more = ", ..." if len(files) > 3 else ""
            raise DumpError(
                f"is a zip archive of {len(files)} files ({names}{more}): unpack it, and name "
                f"those with games"
            )
        if files[0].flag_bits & 1:
            raise DumpError("is an encrypted zip archive: unpack it with its password")
        try:
            with archive.open(files[0]) as member:
                read = 0
                while text := member.read(_READ_ZIP):
                    read += len(text)
                    yield text, read / max(files[0].file_size, read)
        except NotImplementedError as error:
            raise DumpError(f"is a zip archive that cannot be read ({error}): unpack it") from error
        except (zipfile.BadZipFile, zlib.error, EOFError, lzma.LZMAError, ValueError) as error:
            raise OSError(f"the zip archive is damaged: {error}") from error


def decompress(read: Read, compression: str) -> Iterator[bytes]:
    """Yield the text of an archive in pieces; raises OSError and what `read` raises, after all text
    before it.
    """
    return (
        _decompress_zstd(read) if compression == "zstd" else _decompress_members(read, compression)
    )


def _decompress_members(read: Read, compression: str) -> Iterator[bytes]:
    """Yield the text of gzip or bzip2 members, one after another."""
    magic, make = (
        (GZIP, lambda: zlib.decompressobj(31))
        if compression == "gzip"
        else (BZIP2, bz2.BZ2Decompressor)
    )
    # An error loses what its call had decompressed. zlib's state can be copied, to repeat the call
    # byte by byte; bzip2 gives a block's text when it has all of its bytes, so short pieces lose
    # next to nothing.
    length = _READ if compression == "gzip" else 64
    rest = read(_READ)
    while rest:
        decoder: Any = make()
        while not decoder.eof:
            if not rest:
                raise OSError(f"the {compression} archive is truncated")
            piece, rest = rest[:length], rest[length:] or read(_READ)
            before = decoder.copy() if compression == "gzip" else None
            try:
                text = decoder.decompress(piece)
            except (OSError, zlib.error) as error:
                if before is not None:
                    yield from _decompress_bytewise(before, piece)
                raise OSError(f"the {compression} archive is damaged: {error}") from error
            yield text
        rest = (decoder.unused_data + rest).lstrip(b"\0")
        while len(rest) < len(magic) and (more := read(_READ)):
            rest = (rest + more).lstrip(b"\0")
        if rest and not rest.startswith(magic):
            raise TrailingBytesError(f"bytes that are no {compression} archive follow its end")


def _decompress_bytewise(decoder: Any, piece: bytes) -> Iterator[bytes]:
    """Yield what a decoder gives for a damaged piece, up to the byte that fails."""
    with suppress(zlib.error):
        for byte in piece:
            yield decoder.decompress(bytes([byte]))


class _Buffer:
    """Raw bytes that can be looked at before they are taken."""

    def __init__(self, read: Read) -> None:
        self._read, self._held, self._next = read, b"", 0

    def peek(self, count: int) -> bytes:
        """Return the next `count` bytes, fewer at the end."""
        while len(self._held) - self._next < count and (more := self._read(_READ_ZSTD)):
            self._held, self._next = self._held[self._next :] + more, 0
        return self._held[self._next : self._next + count]

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes and drop them; raises OSError where there are fewer."""
        data = self.peek(count)
        self._next += len(data)
        if len(data) < count:
            raise OSError("the zstd archive is truncated")
        return data

    def skip_zeros(self) -> None:
        """Drop the zero bytes that come next."""
        while self.peek(1) == b"\0":
            rest = self._held[self._next :].lstrip(b"\0")
            self._held, self._next = rest, 0


def _is_skippable(head: bytes) -> bool:
    """Return whether a skippable frame begins here (magic 0x184D2A50 to 5F); pzstd writes one
    before each frame.
    """
    return head[1:4] == b"\x2a\x4d\x18" and head[0] >> 4 == 5


def _decompress_zstd(read: Read) -> Iterator[bytes]:
    """Yield the text of zstd frames, block by block."""
    buffer = _Buffer(read)
    while buffer.peek(1):
        if _is_skippable(buffer.peek(4)):
            length = int.from_bytes(buffer.take(8)[4:], "little")
            while length > 0:
                length -= len(buffer.take(min(length, _READ_ZSTD)))
        else:
            decoder = zstandard.ZstdDecompressor().decompressobj()
            try:
                yield from map(decoder.decompress, _read_blocks(buffer))
            except zstandard.ZstdError as error:
                raise OSError(f"the zstd archive is damaged: {error}") from error
        buffer.skip_zeros()
        if (head := buffer.peek(4)) and head != ZSTD and not _is_skippable(head):
            raise TrailingBytesError("bytes that are no zstd archive follow its end")


def _read_blocks(buffer: _Buffer) -> Iterator[bytes]:
    """Yield the header and the blocks of a frame; raises OSError where it breaks off."""
    head = buffer.peek(_LONGEST_HEADER)
    yield buffer.take(zstandard.frame_header_size(head))
    last = False
    while not last:
        block = int.from_bytes(buffer.peek(3), "little")
        last, is_repeated_byte = bool(block & 1), block >> 1 & 3 == 1
        yield buffer.take(3 + (1 if is_repeated_byte else block >> 3))
    if zstandard.get_frame_parameters(head).has_checksum:
        yield buffer.take(4)
