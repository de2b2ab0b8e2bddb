"""The frames that are found are those that were written, by zstandard and by Debian's pzstd."""

import random
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
import zstandard

from pipeline.dumps.zstd_frames import Frame, frames
from pipeline.errors import DumpError
from pipeline.ingest.job import ingest
from tests.pipeline import datasets


def text(seed: int, size: int) -> bytes:
    """Give text that compresses, and blocks of each kind: compressed, one byte again and again, random."""
    chance = random.Random(seed)
    parts = [b"1. e4 { [%clk 0:03:00] } e5 " * (size // 60), bytes(size // 4), chance.randbytes(size // 4)]
    return b"".join(parts)


@pytest.mark.parametrize("sized", [True, False])
@pytest.mark.parametrize("summed", [True, False])
@pytest.mark.parametrize("level", [1, 19])
def test_frames_one_after_another_are_found(sized: bool, summed: bool, level: int, tmp_path: Path) -> None:
    packer = zstandard.ZstdCompressor(level=level, write_content_size=sized, write_checksum=summed)
    texts = [text(number, size) for number, size in enumerate((0, 1, 100, 300, 70_000, 900_000))]
    packed = [packer.compress(one) for one in texts]
    path = tmp_path / "archive.zst"
    path.write_bytes(b"".join(packed))
    found = frames(path)
    at = 0
    for frame, one, data in zip(found, texts, packed, strict=True):
        assert (frame.offset, frame.bytes) == (at, len(data))
        assert frame.text_bytes == (len(one) if sized else None)
        at += len(data)
    for frame, one in zip(found, texts, strict=True):
        data = path.read_bytes()[frame.offset : frame.offset + frame.bytes]
        assert zstandard.ZstdDecompressor().decompressobj().decompress(data) == one


def as_lichess_packs(texts: list[bytes]) -> bytes:
    """Pack as pzstd does, whose archives begin with 50 2a 4d 18 04 00 00 00."""
    packed = [zstandard.ZstdCompressor().compress(one) for one in texts]
    return b"".join(struct.pack("<III", 0x184D2A50, 4, len(data)) + data for data in packed)


def test_hints_are_followed_and_lies_are_not(tmp_path: Path) -> None:
    path = tmp_path / "archive.zst"
    texts = [text(number, 5000) for number in range(4)]
    path.write_bytes(as_lichess_packs(texts))
    found = frames(path)
    assert [frame.text_bytes for frame in found] == [len(one) for one in texts]
    assert found[0].offset == 12
    lying = bytearray(path.read_bytes())
    lying[8:12] = struct.pack("<I", 77)
    path.write_bytes(lying)
    assert frames(path) == found
    path.write_bytes(struct.pack("<II", 0x184D2A5F, 3) + b"abc" + path.read_bytes())  # another program's note
    assert frames(path) == [Frame(frame.offset + 11, frame.bytes, frame.text_bytes) for frame in found]


@pytest.mark.skipif(shutil.which("pzstd") is None, reason="pzstd is not installed: apt-get install zstd")
def test_what_pzstd_writes_is_found(tmp_path: Path) -> None:
    path = tmp_path / "games.pgn"
    path.write_bytes(text(5, 30_000_000))
    subprocess.run(["pzstd", "-q", "-1", "-p", "4", str(path)], check=True)
    packed = (tmp_path / "games.pgn.zst").read_bytes()
    assert packed[:8] == bytes.fromhex("502a4d1804000000")
    found = frames(tmp_path / "games.pgn.zst")
    assert len(found) > 1
    pieces = (packed[frame.offset : frame.offset + frame.bytes] for frame in found)
    unpacked = b"".join(zstandard.ZstdDecompressor().decompressobj().decompress(piece) for piece in pieces)
    assert unpacked == path.read_bytes()


@pytest.mark.parametrize("cut", [1, 5, 13, 100])
def test_what_breaks_off_or_is_something_else_is_said(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "archive.zst"
    whole = as_lichess_packs([text(1, 5000)])
    path.write_bytes(whole[:-cut])
    with pytest.raises(DumpError, match="breaks off"):
        frames(path)
    path.write_bytes(whole + b"PGN?")
    with pytest.raises(DumpError, match="is no Zstandard archive, or is damaged at byte"):
        frames(path)


def test_a_dump_as_lichess_packs_it_gives_the_same_dataset(tmp_path: Path) -> None:
    games = [datasets.random_game(seed).encode() for seed in range(30)]
    plain, packed = tmp_path / "plain.pgn", tmp_path / "packed.pgn.zst"
    plain.write_bytes(b"".join(games))
    packed.write_bytes(as_lichess_packs([b"".join(games[:11]), b"".join(games[11:])]))
    made = [ingest([str(path)], tmp_path / path.stem, workers=1) for path in (plain, packed)]
    assert made[0]["files"] == made[1]["files"]
