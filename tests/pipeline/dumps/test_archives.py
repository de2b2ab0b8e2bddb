"""Archives: frames of any form, damage, padding and bytes behind the end of each codec."""

import bz2
import gzip
import io
import random
import struct
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zstandard

from pipeline.dumps.archives import TrailingBytesError, decompress
from pipeline.dumps.chunks import read_chunks
from pipeline.dumps.source import STDIN, Source
from tests.pipeline import datasets

CODECS: dict[str, Callable[[bytes], bytes]] = {
    "zstd": lambda data: zstandard.ZstdCompressor(write_checksum=True).compress(data),
    "gzip": gzip.compress,
    "bz2": lambda data: bz2.compress(data, 1),
}
SUFFIXES = {"zstd": ".zst", "gzip": ".gz", "bz2": ".bz2"}


@pytest.fixture(scope="module")
def texts() -> list[bytes]:
    """Return texts of frames: parts of games, an empty one, one of several blocks."""
    games = "".join(datasets.random_game(seed) for seed in range(30)).encode()
    cuts = sorted({0, len(games), *random.Random(1).sample(range(len(games)), 11)})
    parts = [games[first:last] for first, last in pairwise(cuts)]
    return [*parts[:3], b"", *parts[3:], games * 4]


def pack(texts: list[bytes], hinted: bool = True, **more: Any) -> bytes:
    """Compress each text to a frame, behind pzstd's note of its length if hinted."""
    frames = [zstandard.ZstdCompressor(**more).compress(one) for one in texts]
    return b"".join(
        (struct.pack("<III", 0x184D2A50, 4, len(one)) if hinted else b"") + one for one in frames
    )


def read_archive(data: bytes, compression: str) -> tuple[bytes, OSError | None]:
    """Return the text of an archive, and the error that ended it."""
    found = []
    try:
        for piece in decompress(io.BytesIO(data).read, compression):
            found.append(piece)
    except OSError as error:
        return b"".join(found), error
    return b"".join(found), None


def read_source(
    path: Path, data: bytes, from_file: bool, monkeypatch: pytest.MonkeyPatch
) -> tuple[bytes, int, dict[str, Any]]:
    """Return the text and games of an archive's chunks, and its entry in the manifest."""
    path.write_bytes(data)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))
    source = Source(str(path) if from_file else STDIN)
    found = list(read_chunks([source], 300_000))
    games = sum(len(one.starts) for one in found)
    return b"".join(one.text for one in found), games, source.describe()


@pytest.mark.parametrize(
    ("codec", "from_file"), [("zstd", True), ("zstd", False), ("gzip", True), ("bz2", True)]
)
def test_damage_anywhere_ends_the_text_where_it_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: list[bytes], codec: str, from_file: bool
) -> None:
    text, path = b"".join(texts), tmp_path / f"games.pgn{SUFFIXES[codec]}"
    whole = (
        pack(texts, write_checksum=True) if codec == "zstd" else b"".join(map(CODECS[codec], texts))
    )
    assert read_source(path, whole, from_file, monkeypatch)[0] == text
    chance, damaged = random.Random(7), 0
    for number in range(12):
        data = bytearray(whole)
        at = chance.randrange(12, len(data))
        if number % 3 == 0:
            del data[at:]
        else:
            data[at] ^= 1 << chance.randrange(8)
        found, _, entry = read_source(path, bytes(data), from_file, monkeypatch)
        if number % 3 == 0:
            assert text.startswith(found)
        assert entry["bytes"] == len(data)
        damaged += bool(entry["damage"])
    assert damaged > 6


@pytest.mark.parametrize(
    ("codec", "block"), [("zstd", 1 << 17), ("gzip", 1 << 16), ("bz2", 1 << 17)]
)
def test_damage_costs_the_text_of_a_few_kilobytes(codec: str, block: int) -> None:
    chance = random.Random(1)
    text = bytes(chance.choices(b"abcdefgh12345678NBRQK .+#x", k=800_000))
    data = CODECS[codec](text)
    at = len(data) * 3 // 4
    found, error = read_archive(data[:at] + chance.randbytes(len(data) - at), codec)
    assert error is not None
    kept = len(text) * at // len(data) - block - 20_000
    assert found[:kept] == text[:kept]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("zeros", [1, 3, 100_000])
def test_zero_bytes_behind_an_archive_are_padding(codec: str, zeros: int) -> None:
    text, pack_one = datasets.random_game(1).encode() * 30, CODECS[codec]
    for archive in (pack_one(text), pack_one(text[:5000]) + bytes(zeros) + pack_one(text[5000:])):
        assert read_archive(archive + bytes(zeros), codec) == (text, None)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("rest", [b"x", b"PGN?", b"\0\0\0rest of a tape block", b"\n" * 70_000])
def test_bytes_behind_an_archive_are_reported_and_lose_no_game(
    codec: str, rest: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, path = datasets.random_game(1).encode() * 3, tmp_path / f"a.pgn{SUFFIXES[codec]}"
    data = CODECS[codec](text) + rest
    assert isinstance(read_archive(data, codec)[1], TrailingBytesError)
    found, games, entry = read_source(path, data, True, monkeypatch)
    assert (found, games) == (text, 3)
    assert entry["damage"] == f"the {codec} archive is followed by other bytes"


@pytest.mark.parametrize("sized", [True, False])
@pytest.mark.parametrize("summed", [True, False])
def test_frames_of_any_form_and_length_are_read(sized: bool, summed: bool) -> None:
    """Blocks of each kind: compressed, one byte repeated, random."""
    texts = [
        b"1. e4 { [%clk 0:03:00] } e5 " * (size // 60)
        + bytes(size // 4)
        + random.Random(size).randbytes(size // 4)
        for size in (0, 1, 100, 300, 70_000, 900_000, 5)
    ]
    level = 19 if sized != summed else 1
    options = {"level": level, "write_content_size": sized, "write_checksum": summed}
    data = pack(texts, hinted=summed, **options)
    assert read_archive(data, "zstd") == (b"".join(texts), None)


def test_skippable_frames_of_any_program_are_skipped(texts: list[bytes]) -> None:
    lying = bytearray(pack(texts))
    lying[8:12] = struct.pack("<I", 77)
    for note in (b"abc", b"", bytes(3 << 20)):
        head = struct.pack("<II", 0x184D2A5F, len(note)) + note
        assert read_archive(head + lying + head, "zstd") == (b"".join(texts), None)
    found, error = read_archive(head[:-1], "zstd")
    assert (found, str(error)) == (b"", "the zstd archive is truncated")
