"""Decompress zstd, gzip, bzip2 and zip archives; refuse other archives by name.

If an archive is damaged, `decompress` yields all text before the damage and then raises OSError.
Several archives in the same format may follow each other. Zero bytes between and after them are
padding, as for gzip(1). Any other bytes after an archive raise TrailingBytesError.
"""

import bz2
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import zstandard

from pipeline.errors import DumpError

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
GZIP_MAGIC = b"\x1f\x8b"
BZIP2_MAGIC = b"BZh"
ZIP_MAGIC = b"PK\x03\x04"
UNSUPPORTED_FORMATS = {
    b"\xfd7zXZ\x00": ("an xz archive", "unpack it with `xz -d`"),
    b"\x5d\x00\x00": ("an lzma archive", "unpack it with `xz -d`"),
    b"7z\xbc\xaf\x27\x1c": ("a 7z archive", "unpack it with `7z x`"),
    b"Rar!\x1a\x07": ("a RAR archive", "unpack it with `unrar x`"),
    b"\x04\x22\x4d\x18": ("an lz4 archive", "unpack it with `lz4 -d`"),
    b"PK\x05\x06": ("an empty zip archive", "name a file with games"),
    b"SQLite format 3\x00": ("an SQLite database", "export the games as PGN"),
    b"ARROW1": ("an Arrow file", "save it as Parquet"),
}
"""Name and remedy of each unsupported format, by its first bytes."""
TAR_MAGIC, TAR_MAGIC_OFFSET = b"ustar", 257

READ_BYTES = 1 << 16
"""Bytes of an archive to read at a time."""
_DECODERS: dict[str, tuple[Callable[[], Any], int]] = {
    "zstd": (lambda: zstandard.ZstdDecompressor().decompressobj(), 4096),
    "gzip": (lambda: zlib.decompressobj(31), 256),
    "bz2": (bz2.BZ2Decompressor, 64),
}
"""For each compression, a function that makes a decoder of a frame, and the bytes to feed it at a
time. That many bytes of a decompression bomb expand to at most about 100 MiB."""

Read = Callable[[int], bytes]
"""Function that returns at most the given number of bytes, and b"" only at the end."""


class TrailingBytesError(OSError):
    """Raised after the text of archives that are followed by bytes other than padding."""


def detect_compression(head: bytes) -> str | None:
    """Return the compression that a file's first bytes show (zstd, gzip, bz2, zip), or None."""
    # frames without text, which pzstd writes
    is_skippable = head[1:4] == b"\x2a\x4d\x18" and head[0] >> 4 == 5
    if head.startswith(ZSTD_MAGIC) or is_skippable:
        return "zstd"
    magics = {"gzip": GZIP_MAGIC, "bz2": BZIP2_MAGIC, "zip": ZIP_MAGIC}
    return next((name for name, magic in magics.items() if head.startswith(magic)), None)


def refuse_archives(first: bytes, inside: str | None) -> None:
    """Raise DumpError, without the file's name, if the text is in a known format that is not read.

    `first` are the first bytes of the text. `inside` is the compression of the archive that
    contains it, or None.
    """
    subject = f"contains, inside a {inside} archive, " if inside else "is "
    if first[TAR_MAGIC_OFFSET : TAR_MAGIC_OFFSET + len(TAR_MAGIC)] == TAR_MAGIC:
        raise DumpError(
            f"{subject}a tar archive: unpack it with `tar -xf` and pass the files inside"
        )
    for magic, (format_name, remedy) in UNSUPPORTED_FORMATS.items():
        if first.startswith(magic):
            raise DumpError(f"{subject}{format_name}: {remedy} and pass the file inside")
    if inside and (compression := detect_compression(first)):
        raise DumpError(f"{subject}a {compression} archive: unpack it and pass the file inside")


def read_zip(path: str) -> Iterator[tuple[bytes, float]]:
    """Yield the text of the only file in a zip archive in pieces, with the share read so far.

    Raises DumpError, without the archive's name, unless there is exactly one file that can be read.
    If the archive is damaged, raises OSError after all text before the damage.
    """
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError) as error:
        raise DumpError(
            f"is a damaged or incomplete zip archive ({error}): fetch it again, or unpack it"
        ) from error
    with archive:
        names = [
            name
            for name in archive.namelist()
            if not name.endswith("/") and not name.startswith(("__MACOSX/", "."))
        ]
        if len(names) != 1:
            raise DumpError(
                f"is a zip archive of {len(names)} files ({', '.join(names[:3])}): unpack it and "
                f"pass the files with games"
            )
        file = archive.getinfo(names[0])
        if file.flag_bits & 1:
            raise DumpError("is an encrypted zip archive: unpack it with its password")
        try:
            with archive.open(file) as member:
                read = 0
                while text := member.read(READ_BYTES):
                    read += len(text)
                    yield text, read / max(file.file_size, read)
        except NotImplementedError as error:
            raise DumpError(f"is a zip archive that cannot be read ({error}): unpack it") from error
        except (zipfile.BadZipFile, zlib.error, EOFError, lzma.LZMAError, ValueError) as error:
            raise OSError(f"the zip archive is damaged: {error}") from error


def decompress(read: Read, compression: str) -> Iterator[bytes]:
    """Yield the text of all frames (or members) of an archive in pieces.

    Raises OSError and the errors of `read`, after all text before them.
    """
    make_decoder, length = _DECODERS[compression]
    pieces = _read_pieces(read, length)
    rest = next(pieces, b"")
    while rest:
        decoder = make_decoder()
        while not decoder.eof:
            if not rest:
                raise OSError(f"the {compression} archive is truncated")
            try:
                text = decoder.decompress(rest)
            except (OSError, zlib.error, zstandard.ZstdError) as error:
                raise OSError(f"the {compression} archive is damaged: {error}") from error
            yield text
            rest = b"" if decoder.eof else next(pieces, b"")
        rest = decoder.unused_data.lstrip(b"\0")
        while len(rest) < len(ZSTD_MAGIC) and (more := next(pieces, b"")):
            rest = (rest + more).lstrip(b"\0")
        if rest and detect_compression(rest) != compression:
            raise TrailingBytesError(f"the {compression} archive is followed by other bytes")


def _read_pieces(read: Read, length: int) -> Iterator[bytes]:
    while block := read(READ_BYTES):
        for at in range(0, len(block), length):
            yield block[at : at + length]
