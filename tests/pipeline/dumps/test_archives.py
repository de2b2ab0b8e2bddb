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
from pipeline.errors import FetchError
from pipeline.ingest.job import ingest
from tests.pipeline import datasets

CODECS: dict[str, Callable[[bytes], bytes]] = {
    "zstd": lambda data: zstandard.ZstdCompressor(write_checksum=True).compress(data),
    "gzip": gzip.compress,
    "bz2": bz2.compress,
}
SUFFIXES = {"zstd": ".zst", "gzip": ".gz", "bz2": ".bz2"}


@pytest.fixture(scope="module")
def texts() -> list[bytes]:
    """Return the texts of frames: whole games and parts of them, one empty, one of a megabyte."""
    games = "".join(datasets.random_game(seed) for seed in range(60)).encode()
    cuts = sorted({0, len(games), *random.Random(1).sample(range(len(games)), 11)})
    parts = [games[first:last] for first, last in pairwise(cuts)]
    return [*parts[:3], b"", *parts[3:], games * 8]


def pack(texts: list[bytes], hinted: bool = True, **more: Any) -> bytes:
    """Compress each text to a frame, behind pzstd's note of its length if hinted."""
    frames = [zstandard.ZstdCompressor(**more).compress(one) for one in texts]
    return b"".join(
        (struct.pack("<III", 0x184D2A50, 4, len(one)) if hinted else b"") + one for one in frames
    )


def read_archive(data: bytes, compression: str) -> tuple[bytes, OSError | None]:
    """Return the text of an archive, and the error that ended it."""
    found, pieces = [], decompress(io.BytesIO(data).read, compression)
    try:
        for piece in pieces:
            found.append(piece)
    except OSError as error:
        return b"".join(found), error
    return b"".join(found), None


def read_source(
    name: str, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> tuple[list[Any], dict[str, Any]]:
    """Return the chunks of an archive and its entry in the manifest."""
    with monkeypatch.context() as patch:
        if name == STDIN:
            patch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))
        source = Source(name)
        found = [
            (one.offset, bytes(one.text), one.starts.tolist())
            for one in read_chunks([source], 300_000)
        ]
    return found, source.describe()


@pytest.mark.parametrize("name", ["a file", STDIN])
@pytest.mark.parametrize(
    "options",
    [{}, {"write_checksum": True}, {"write_content_size": False}, {"level": 19}, {"hinted": False}],
)
def test_the_chunks_are_those_of_all_frames(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    texts: list[bytes],
    options: dict[str, Any],
    name: str,
) -> None:
    path, data = tmp_path / "games.pgn.zst", pack(texts, **options)
    path.write_bytes(data)
    found, _ = read_source(STDIN if name == STDIN else str(path), monkeypatch, data)
    assert b"".join(text for _, text, _ in found) == b"".join(texts)


@pytest.mark.parametrize("name", ["a file", STDIN])
@pytest.mark.parametrize("codec", CODECS)
def test_damage_anywhere_ends_the_text_where_it_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: list[bytes], codec: str, name: str
) -> None:
    text = b"".join(texts)
    whole = (
        pack(texts, write_checksum=True) if codec == "zstd" else b"".join(map(CODECS[codec], texts))
    )
    path, chance = tmp_path / f"games.pgn{SUFFIXES[codec]}", random.Random(7)
    damaged = 0
    for number in range(24):
        data = bytearray(whole)
        at = chance.randrange(12, len(data))
        if number % 3 == 0:
            del data[at:]
        else:
            data[at] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        place = STDIN if name == STDIN else str(path)
        found, entry = read_source(place, monkeypatch, bytes(data))
        if number % 3 == 0:
            assert text.startswith(b"".join(part for _, part, _ in found))
        assert entry["bytes"] == len(data)
        damaged += bool(entry["damage"])
    assert damaged > 12


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("zeros", [1, 3, 512, 100_000])
def test_zero_bytes_behind_an_archive_are_padding(codec: str, zeros: int) -> None:
    text = datasets.random_game(1).encode() * 300
    for archive in (CODECS[codec](text), CODECS[codec](text[:5000]) + CODECS[codec](text[5000:])):
        assert read_archive(archive + bytes(zeros), codec) == (text, None)
    assert read_archive(CODECS[codec](text) + bytes(zeros) + CODECS[codec](text), codec) == (
        text * 2,
        None,
    )


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("rest", [b"x", b"PGN?", b"\0\0\0rest of a tape block", b"\n" * 70_000])
def test_bytes_behind_an_archive_are_reported_and_lose_no_game(
    codec: str, rest: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = datasets.random_game(1).encode() * 3
    found, error = read_archive(CODECS[codec](text) + rest, codec)
    assert found == text
    assert isinstance(error, TrailingBytesError)
    path, data = tmp_path / f"a.pgn{SUFFIXES[codec]}", CODECS[codec](text) + rest
    path.write_bytes(data)
    for name in (str(path), STDIN):
        ((_, read, starts),), entry = read_source(name, monkeypatch, data)
        assert (read, len(starts)) == (text, 3)
        assert entry["damage"] == f"bytes that are no {codec} archive follow its end"


def test_errors_of_reading_come_after_the_text_before_them(texts: list[bytes]) -> None:
    data = pack(texts)
    parts = iter([data[: len(data) // 2]])

    def read(count: int) -> bytes:
        for part in parts:
            return part
        raise FetchError("the network is gone")

    found = []
    with pytest.raises(FetchError, match="gone"):  # noqa: PT012
        for text in decompress(read, "zstd"):
            found.append(text)
    assert found
    assert b"".join(texts).startswith(b"".join(found))


def blocks(seed: int, size: int) -> bytes:
    """Return text that compresses, and blocks of each kind: compressed, one byte repeated,
    random."""
    chance = random.Random(seed)
    parts = [
        b"1. e4 { [%clk 0:03:00] } e5 " * (size // 60),
        bytes(size // 4),
        chance.randbytes(size // 4),
    ]
    return b"".join(parts)


@pytest.mark.parametrize("sized", [True, False])
@pytest.mark.parametrize("summed", [True, False])
@pytest.mark.parametrize("level", [1, 19])
def test_frames_of_any_form_and_length_are_read(sized: bool, summed: bool, level: int) -> None:
    packer = zstandard.ZstdCompressor(level=level, write_content_size=sized, write_checksum=summed)
    texts = [
        blocks(number, size) for number, size in enumerate((0, 1, 100, 300, 70_000, 900_000, 5))
    ]
    assert read_archive(b"".join(map(packer.compress, texts)), "zstd") == (b"".join(texts), None)


def test_skippable_frames_of_any_program_are_skipped() -> None:
    texts = [blocks(number, 5000) for number in range(4)]
    lying = bytearray(pack(texts))
    lying[8:12] = struct.pack("<I", 77)
    for note in (b"abc", b"", bytes(3 << 20)):
        head = struct.pack("<II", 0x184D2A5F, len(note)) + note
        assert read_archive(head + lying + head, "zstd") == (b"".join(texts), None)
    found, error = read_archive(head[:-1], "zstd")
    assert (found, str(error)) == (b"", "the zstd archive is truncated")


def test_a_dump_as_lichess_packs_it_gives_the_same_dataset(tmp_path: Path) -> None:
    games = [datasets.random_game(seed).encode() for seed in range(30)]
    plain, archive = tmp_path / "plain.pgn", tmp_path / "packed.pgn.zst"
    plain.write_bytes(b"".join(games))
    archive.write_bytes(pack([b"".join(games[:11]), b"".join(games[11:])]))
    made = [ingest([str(path)], tmp_path / path.stem, workers=1) for path in (plain, archive)]
    assert made[0]["files"] == made[1]["files"]
