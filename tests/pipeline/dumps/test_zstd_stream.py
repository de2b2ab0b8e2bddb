"""An archive of many frames gives what one decoder gives of it, whole or damaged anywhere, in a bounded space."""

import io
import random
import shutil
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zstandard

from pipeline.dumps import reader, zstd_stream
from pipeline.dumps.reader import STDIN, Source, chunks
from pipeline.dumps.zstd_stream import Raw, count_frames, unpacked
from pipeline.errors import FetchError
from pipeline.ingest.job import ingest
from tests.pipeline import datasets


@pytest.fixture(scope="module")
def texts() -> list[bytes]:
    """Give the texts of frames: whole games and parts of them, one empty, one of a megabyte."""
    games = "".join(datasets.random_game(seed) for seed in range(60)).encode()
    cuts = sorted({0, len(games), *random.Random(1).sample(range(len(games)), 11)})
    parts = [games[first:last] for first, last in pairwise(cuts)]
    return [*parts[:3], b"", *parts[3:], games * 8]


def packed(texts: list[bytes], hinted: bool = True, **more: Any) -> bytes:
    """Pack each text as a frame, behind pzstd's note of its length if hinted."""
    frames = [zstandard.ZstdCompressor(**more).compress(one) for one in texts]
    return b"".join((struct.pack("<III", 0x184D2A50, 4, len(one)) if hinted else b"") + one for one in frames)


def read(name: str, monkeypatch: pytest.MonkeyPatch, data: bytes, by_frames: bool) -> tuple[list[Any], dict[str, Any]]:
    """Give the chunks of an archive and what its source says, read by frames or by one decoder."""
    seen: list[int] = []

    def watched(*args: Any, **more: Any) -> Iterator[Any]:
        seen.append(1)
        yield from unpacked(*args, **more)

    with monkeypatch.context() as patch:
        patch.setattr(reader, "unpacked", watched)
        if not by_frames:
            patch.setattr(reader, "many_frames", lambda head: False)
        if name == STDIN:
            patch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))
        source = Source(name)
        found = [(one.offset, bytes(one.text), one.starts.tolist()) for one in chunks([source], 300_000)]
    assert bool(seen) == by_frames
    return found, source.describe()


def both(path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, name: str | None = None) -> list[Any]:
    """Read an archive both ways, assert that they are one, and give the chunks."""
    path.write_bytes(data)
    by_frames, by_one = (read(name or str(path), monkeypatch, data, way) for way in (True, False))
    assert by_frames == by_one
    return by_frames[0]


@pytest.mark.parametrize("options", [{}, {"write_checksum": True}, {"write_content_size": False}, {"level": 19}])
def test_the_text_is_that_of_all_frames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: list[bytes], options: dict[str, Any]
) -> None:
    data = packed(texts, **options)
    found = both(tmp_path / "games.pgn.zst", monkeypatch, data)
    assert b"".join(text for _, text, _ in found) == b"".join(texts)
    both(tmp_path / "games.pgn.zst", monkeypatch, data, STDIN)


def test_frames_without_notes_are_found_where_the_first_ends_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: list[bytes]
) -> None:
    noise = "".join(datasets.random_game(seed) for seed in range(900, 1050)).encode()
    data = packed([*texts, *[noise] * 20], hinted=False)
    assert len(data) > 1 << 20
    both(tmp_path / "games.pgn.zst", monkeypatch, data)
    assert not reader.many_frames(packed([noise], hinted=False)), "one frame is for one decoder"


@pytest.mark.parametrize("limit", ["LARGEST", "LARGEST_TEXT"])
def test_what_is_too_large_to_hold_is_read_by_one_decoder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: list[bytes], limit: str
) -> None:
    """The last frame is larger than the others, and a small one follows."""
    monkeypatch.setattr(zstd_stream, limit, max(map(len, texts[:-1])) + 100)
    found = both(tmp_path / "games.pgn.zst", monkeypatch, packed([*texts, texts[0], texts[-1]], level=1))
    assert b"".join(text for _, text, _ in found) == b"".join([*texts, texts[0], texts[-1]])


@pytest.mark.parametrize("name", [None, STDIN], ids=["a file", "standard input"])
def test_damage_anywhere_is_found_where_it_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: list[bytes], name: str | None
) -> None:
    whole, chance = packed(texts, write_checksum=True), random.Random(7)
    damaged = 0
    for number in range(24):
        data = bytearray(whole)
        at = chance.randrange(12, len(data))
        if number % 3 == 0:
            del data[at:]
        else:
            data[at] ^= 1 << chance.randrange(8)
        path = tmp_path / "games.pgn.zst"
        path.write_bytes(data)
        (by_frames, said), (by_one, also) = (
            read(name or str(path), monkeypatch, bytes(data), way) for way in (True, False)
        )
        assert said["sha256"] == also["sha256"]
        assert bool(said["damage"]) == bool(also["damage"])
        text, other = (b"".join(part for _, part, _ in found) for found in (by_frames, by_one))
        if name is None:
            assert (text, said) == (other, also)
        else:  # of a pipe nobody can read again: how far a decoder came is by its pieces
            assert text.startswith(other) or other.startswith(text)
        damaged += bool(said["damage"])
    assert damaged > 12


def test_what_reading_raises_comes_behind_the_text_before_it(texts: list[bytes]) -> None:
    data = packed(texts)
    parts = iter([data[: len(data) // 2]])

    def breaks(count: int) -> bytes:
        for part in parts:
            return part
        raise FetchError("the network is gone")

    given = []
    with pytest.raises(FetchError, match="gone"):  # noqa: PT012
        for text in unpacked(Raw(breaks), 3):
            given.append(text)
    assert given
    assert b"".join(texts).startswith(b"".join(given))


def test_only_so_many_frames_are_held_and_threads_end_with_the_reader(texts: list[bytes]) -> None:
    taken = 0
    data = io.BytesIO(packed(texts[:3] * 400))
    raw = Raw(data.read)
    real = raw.frame

    def counted() -> bytes | None:
        nonlocal taken
        taken += 1
        return real()

    raw.frame = counted  # type: ignore[method-assign]
    before = threading.active_count()
    stream = unpacked(raw, 2)
    for given in range(1, 50):
        next(stream)
        assert taken <= given + 2
    stream.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before


def blocks(seed: int, size: int) -> bytes:
    """Give text that compresses, and blocks of each kind: compressed, one byte again and again, random."""
    chance = random.Random(seed)
    parts = [b"1. e4 { [%clk 0:03:00] } e5 " * (size // 60), bytes(size // 4), chance.randbytes(size // 4)]
    return b"".join(parts)


def frames(data: bytes) -> list[bytes]:
    """Give the frames that are found."""
    raw = Raw(io.BytesIO(data).read)
    return list(iter(raw.frame, None))


@pytest.mark.parametrize("sized", [True, False])
@pytest.mark.parametrize("summed", [True, False])
@pytest.mark.parametrize("level", [1, 19])
def test_frames_one_after_another_are_found(sized: bool, summed: bool, level: int) -> None:
    packer = zstandard.ZstdCompressor(level=level, write_content_size=sized, write_checksum=summed)
    made = [packer.compress(blocks(number, size)) for number, size in enumerate((0, 1, 100, 300, 70_000, 900_000))]
    assert frames(b"".join(made)) == made


def test_frames_are_found_behind_any_program_s_notes_and_lies_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "archive.zst"
    texts = [blocks(number, 5000) for number in range(4)]
    lying = bytearray(packed(texts))
    lying[8:12] = struct.pack("<I", 77)
    path.write_bytes(struct.pack("<II", 0x184D2A5F, 3) + b"abc" + lying)
    assert frames(path.read_bytes()) == [zstandard.ZstdCompressor().compress(one) for one in texts]
    assert count_frames(path) == 4


@pytest.mark.skipif(shutil.which("pzstd") is None, reason="pzstd is not installed: apt-get install zstd")
def test_what_pzstd_writes_is_found(tmp_path: Path) -> None:
    path = tmp_path / "games.pgn"
    path.write_bytes(blocks(5, 30_000_000))
    subprocess.run(["pzstd", "-q", "-1", "-p", "4", str(path)], check=True)
    data = (tmp_path / "games.pgn.zst").read_bytes()
    assert data[:8] == bytes.fromhex("502a4d1804000000")
    found = frames(data)
    assert len(found) > 1
    unpacked = b"".join(zstandard.ZstdDecompressor().decompressobj().decompress(piece) for piece in found)
    assert unpacked == path.read_bytes()


@pytest.mark.parametrize("cut", [1, 5, 13, 100])
def test_what_breaks_off_or_is_something_else_is_not_counted(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "archive.zst"
    whole = packed([blocks(1, 5000)])
    for data in (whole[:-cut], whole + b"PGN?"):
        path.write_bytes(data)
        assert count_frames(path) is None
    path.write_bytes(whole)
    assert count_frames(path) == 1


def test_a_dump_as_lichess_packs_it_gives_the_same_dataset(tmp_path: Path) -> None:
    games = [datasets.random_game(seed).encode() for seed in range(30)]
    plain, archive = tmp_path / "plain.pgn", tmp_path / "packed.pgn.zst"
    plain.write_bytes(b"".join(games))
    archive.write_bytes(packed([b"".join(games[:11]), b"".join(games[11:])]))
    made = [ingest([str(path)], tmp_path / path.stem, workers=1) for path in (plain, archive)]
    assert made[0]["files"] == made[1]["files"]
