"""Decompress archives: all forms of frames, damage, padding, and bytes after the end."""

import bz2
import gzip
import io
import random
import struct
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import zstandard

from pipeline.dumps.archives import TrailingBytesError, decompress
from pipeline.dumps.chunks import read_chunks
from pipeline.dumps.source import Source
from tests.pipeline import datasets

COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "zstd": lambda data: zstandard.ZstdCompressor(write_checksum=True).compress(data),
    "gzip": gzip.compress,
    "bz2": lambda data: bz2.compress(data, 1),
}
SUFFIXES = {"zstd": ".zst", "gzip": ".gz", "bz2": ".bz2"}


def compress_frames(texts: list[bytes], with_lengths: bool = True, **options: Any) -> bytes:
    """Compress each text to a zstd frame, optionally after its length in a frame as of pzstd."""
    frames = [zstandard.ZstdCompressor(**options).compress(text) for text in texts]
    return b"".join(
        (struct.pack("<III", 0x184D2A50, 4, len(frame)) if with_lengths else b"") + frame
        for frame in frames
    )


def read_archive(data: bytes, compression: str) -> tuple[bytes, OSError | None]:
    """Return the text of an archive, and the error that ended it."""
    pieces = []
    try:
        for piece in decompress(io.BytesIO(data).read, compression):
            pieces.append(piece)
    except OSError as error:
        return b"".join(pieces), error
    return b"".join(pieces), None


@pytest.mark.parametrize(
    ("compression", "block"), [("zstd", 1 << 17), ("gzip", 1 << 16), ("bz2", 1 << 17)]
)
def test_damage_loses_at_most_the_text_of_a_few_kilobytes_before_it(
    compression: str, block: int
) -> None:
    rng = random.Random(1)
    text = bytes(rng.choices(b"abcdefgh12345678NBRQK .+#x", k=800_000))
    data = COMPRESSORS[compression](text)
    at = len(data) * 3 // 4
    found, error = read_archive(data[:at] + rng.randbytes(len(data) - at), compression)
    assert error is not None
    kept = len(text) * at // len(data) - block - 20_000
    assert found[:kept] == text[:kept]


@pytest.mark.parametrize("compression", COMPRESSORS)
@pytest.mark.parametrize("zeros", [1, 3, 100_000])
def test_zero_bytes_after_an_archive_are_padding(compression: str, zeros: int) -> None:
    text, compress = datasets.random_game(1).encode() * 30, COMPRESSORS[compression]
    for archive in (compress(text), compress(text[:5000]) + bytes(zeros) + compress(text[5000:])):
        assert read_archive(archive + bytes(zeros), compression) == (text, None)


@pytest.mark.parametrize("compression", COMPRESSORS)
@pytest.mark.parametrize("rest", [b"x", b"PGN?", b"\0\0\0rest of a tape block", b"\n" * 70_000])
def test_bytes_after_an_archive_are_reported_without_losing_a_game(
    compression: str, rest: bytes, tmp_path: Path
) -> None:
    text, path = datasets.random_game(1).encode() * 3, tmp_path / f"a.pgn{SUFFIXES[compression]}"
    data = COMPRESSORS[compression](text) + rest
    assert isinstance(read_archive(data, compression)[1], TrailingBytesError)
    path.write_bytes(data)
    source = Source(str(path))
    (chunk,) = read_chunks([source], 300_000)
    assert (chunk.text, len(chunk.starts)) == (text, 3)
    assert source.damage == f"the {compression} archive is followed by other bytes"


@pytest.mark.parametrize("has_sizes", [True, False])
@pytest.mark.parametrize("has_checksums", [True, False])
def test_frames_of_any_form_and_length_are_read(has_sizes: bool, has_checksums: bool) -> None:
    """Frames contain blocks of each kind: compressed, one repeated byte, random."""
    texts = [
        b"1. e4 { [%clk 0:03:00] } e5 " * (size // 60)
        + bytes(size // 4)
        + random.Random(size).randbytes(size // 4)
        for size in (0, 1, 100, 300, 70_000, 900_000, 5)
    ]
    level = 19 if has_sizes != has_checksums else 1
    options = {"level": level, "write_content_size": has_sizes, "write_checksum": has_checksums}
    data = compress_frames(texts, with_lengths=has_checksums, **options)
    assert read_archive(data, "zstd") == (b"".join(texts), None)


def test_damaged_frames_with_checksums_are_an_error_or_keep_their_text() -> None:
    texts = [datasets.random_game(seed).encode() for seed in range(30)]
    archive, text = compress_frames(texts, write_checksum=True), b"".join(texts)
    found, error = read_archive(archive[:-5], "zstd")
    assert error is not None
    assert text.startswith(found)
    for at in range(0, len(archive), 50):
        damaged = bytearray(archive)
        damaged[at] ^= 1
        found, error = read_archive(bytes(damaged), "zstd")
        assert error is not None or found == text, f"byte {at}"


def test_skippable_frames_are_skipped_even_if_their_content_is_wrong() -> None:
    games = "".join(datasets.random_game(seed) for seed in range(30)).encode()
    cuts = sorted({0, len(games), *random.Random(1).sample(range(len(games)), 11)})
    texts = [*(games[first:last] for first, last in pairwise(cuts)), b"", games * 4]
    frames = bytearray(compress_frames(texts))
    frames[8:12] = struct.pack("<I", 77)  # a wrong length of the first frame
    for note in (b"abc", b"", bytes(3 << 20)):
        skippable = struct.pack("<II", 0x184D2A5F, len(note)) + note
        assert read_archive(skippable + frames + skippable, "zstd") == (b"".join(texts), None)
    found, error = read_archive(skippable[:-1], "zstd")
    assert (found, str(error)) == (b"", "the zstd archive is truncated")
