"""Decompress zstd, gzip, bzip2 and zip archives; refuse other archives by name.

`decompress` yields all text before damage and then raises OSError. Zero bytes after the archive are
padding, as for gzip(1); other bytes raise TrailingBytesError.
"""

import bz2
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import zstandard

from pipeline.errors import DumpError

ZSTD = b"\x28\xb5\x2f\xfd"
GZIP = b"\x1f\x8b"
BZIP2 = b"BZh"
ZIP = b"PK\x03\x04"
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
TAR, TAR_AT = b"ustar", 257

READ_BYTES = 1 << 16
"""Raw bytes to read at a time."""
_CODECS: dict[str, tuple[Callable[[], Any], int]] = {
    "zstd": (lambda: zstandard.ZstdDecompressor().decompressobj(), 4096),
    "gzip": (lambda: zlib.decompressobj(31), 256),
    "bz2": (bz2.BZ2Decompressor, 64),
}
"""For each compression, a function that makes a frame decoder, and the raw bytes to feed it at a
time; a decompression bomb expands them to at most about 100 MiB."""

Read = Callable[[int], bytes]
"""Function that returns up to the given number of raw bytes, none at the end."""


class TrailingBytesError(OSError):
    """Bytes that are not an archive follow a complete archive; the archive's text is complete."""


def detect_compression(head: bytes) -> str | None:
    """Return the compression (zstd, gzip, bz2, zip) by the first bytes of a file, else None."""
    is_skippable = head[1:4] == b"\x2a\x4d\x18" and head[0] >> 4 == 5  # pzstd writes such frames
    if head.startswith(ZSTD) or is_skippable:
        return "zstd"
    magics = {"gzip": GZIP, "bz2": BZIP2, "zip": ZIP}
    return next((name for name, magic in magics.items() if head.startswith(magic)), None)


def refuse_archives(first: bytes, inside: str | None) -> None:
    """Raise DumpError, without the file's name, if the text is an archive or a database.

    `first` are the first bytes of the text. `inside` is the compression of the archive that
    contains it.
    """
    held = f"contains, inside a {inside} archive, " if inside else "is "
    if first[TAR_AT : TAR_AT + len(TAR)] == TAR:
        raise DumpError(f"{held}a tar archive: unpack it with `tar -xf` and pass the files inside")
    for magic, (what, remedy) in UNSUPPORTED_FORMATS.items():
        if first.startswith(magic):
            raise DumpError(f"{held}{what}: {remedy} and pass the file inside")
    packed = detect_compression(first) if inside else None
    if packed:
        raise DumpError(f"{held}a {packed} archive: unpack it and pass the file inside")


def read_zip(path: str) -> Iterator[tuple[bytes, float]]:
    """Yield pieces of the text of the only file in a zip archive, each with the share read so far.

    Raises DumpError, without the archive's name, unless there is exactly one readable file. Raises
    OSError for damage, after all text before it.
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
    """Yield the text of all frames or members of an archive in pieces.

    Raises OSError and the errors of `read`, after all text before them.
    """
    make, length = _CODECS[compression]
    pieces = _split(read, length)
    rest = next(pieces, b"")
    while rest:
        decoder = make()
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
        while len(rest) < len(ZSTD) and (more := next(pieces, b"")):
            rest = (rest + more).lstrip(b"\0")
        if rest and detect_compression(rest) != compression:
            raise TrailingBytesError(f"the {compression} archive is followed by other bytes")


def _split(read: Read, length: int) -> Iterator[bytes]:
    while block := read(READ_BYTES):
        for at in range(0, len(block), length):
            yield block[at : at + length]
