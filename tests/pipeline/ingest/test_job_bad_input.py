"""Damaged, missing and unreadable dumps give a clear error, and every whole game is kept."""

import bz2
import gzip
import io
import os
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import zstandard

from pipeline.dataset.batches import Batches
from pipeline.dataset.files.manifest import read_manifest
from pipeline.errors import ConfigError, DamagedError, DatasetError, DumpError
from pipeline.ingest.job import ingest
from pipeline.validation.verify import compare_files
from tests.pipeline import datasets


@pytest.fixture(scope="module")
def text() -> bytes:
    """Return 0.7 MB of PGN: 240 games of 40."""
    games = [datasets.random_game(seed) for seed in range(40)]
    return "".join("".join(games[at:] + games[:at]) for at in range(6)).encode()


def decode_until_damage(decoder: Any, data: bytes) -> bytes:
    """Return the text that a library's decoder reads from a damaged archive."""
    out = io.BytesIO()
    with suppress(OSError, zlib.error, zstandard.ZstdError):
        for at in range(0, len(data), 100):
            out.write(decoder.decompress(data[at : at + 100]))
    return out.getvalue()


# a small window, so that copies of games are not compressed away
SMALL_WINDOW = zstandard.ZstdCompressionParameters.from_level(3, window_log=15, write_checksum=1)
CODECS: dict[str, tuple[Callable[[bytes], bytes], Any]] = {
    # suffix: functions that compress, and make a decoder
    "zst": (
        lambda data: zstandard.ZstdCompressor(compression_params=SMALL_WINDOW).compress(data),
        lambda: zstandard.ZstdDecompressor().decompressobj(),
    ),
    "gz": (lambda data: gzip.compress(data, 6), lambda: zlib.decompressobj(31)),
    "bz2": (lambda data: bz2.compress(data, 1), bz2.BZ2Decompressor),
}


@pytest.mark.parametrize(
    ("codec", "damage"), [("zst", "truncated"), ("gz", "corrupted"), ("bz2", "truncated")]
)
def test_a_damaged_archive_keeps_every_whole_game_before_the_damage(
    codec: str, damage: str, text: bytes, tmp_path: Path
) -> None:
    compress, decoder = CODECS[codec]
    archive = bytearray(compress(text))
    at = len(archive) * 2 // 3
    if damage == "truncated":
        del archive[at:]
    else:
        archive[at : at + 64] = bytes(64)
    decoded = decode_until_damage(decoder(), bytes(archive))
    pairs = enumerate(zip(decoded, text, strict=False))
    common = next((at for at, (found, expected) in pairs if found != expected), len(decoded))
    whole = text[:common].count(b"[Event ") - 1  # the last game is cut off
    assert whole > 40
    path, out = tmp_path / f"games.pgn.{codec}", tmp_path / "out"
    path.write_bytes(archive)
    for _ in range(2):  # the error is repeated for the finished dataset
        with pytest.raises(DamagedError, match=rf"{path.name}: .*games before the damage are in"):
            ingest([str(path)], out, workers=1)
    assert compare_files(out) == []
    manifest, games = datasets.manifest(out), datasets.games(out)
    assert manifest["sources"][0]["damage"]
    assert manifest["sources"][0]["bytes"] == len(archive)
    assert len(games) >= whole, "a whole game before the damage was lost"
    lengths = [len(b"[Event " + piece) for piece in text.split(b"[Event ")[1:]]
    assert [game["length"] for game in games[:whole]] == lengths[:whole]
    assert [game["dropped"] for game in games[:whole]] == [None] * whole
    rows, plies = datasets.rows_by_game(out), [game["plies"] for game in games[:whole]]
    assert [len(rows[number]) for number in range(whole)] == plies


WITHOUT_POSITIONS = {
    # file name: content, error message
    "blank.pgn": (b"\n\n  \n", "no game was found"),
    "letter.pgn": (b"just a letter\n", "unreadable move: 1"),
    "atomic.pgn": (
        b'[Event "x"]\n[Variant "Atomic"]\n[Result "1-0"]\n\n1. e4 1-0\n\n' * 7,
        r"no positions in .*atomic\.pgn: 7 games read \(variant: 7\)",
    ),
    "cut.pgn.gz": (gzip.compress(b"1. e4 e5 1-0\n" * 9)[:20], "no positions"),
}
NOT_DUMPS = {
    # file name: content, error message
    "binary.pgn": (b"\x7fELF\x02\x01\x01\x00" + bytes(5000), "is not PGN text"),
    "picture.png": (b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + bytes(100), "is not PGN text"),
    "words.pgn.zst": (b"1. e4 e5 1-0", "has the suffix of a zstd archive but is not one"),
    "words.pgn.gz": (b"1. e4 e5 1-0", "has the suffix of a gzip archive but is not one"),
    "words.pgn.bz2": (
        b"\x28\xb5\x2f\xfd 1. e4 e5 1-0",
        "has the suffix of a bz2 archive but is not one",
    ),
    "empty.pgn": (b"", "is empty"),
    "endless.pgn": (b"a" * (18 << 20), "no line break in 16 MiB"),
}


@pytest.mark.parametrize("name", [*WITHOUT_POSITIONS, *NOT_DUMPS])
def test_dumps_without_positions_are_refused_with_the_reason(name: str, tmp_path: Path) -> None:
    content, message = (WITHOUT_POSITIONS | NOT_DUMPS)[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(
        DatasetError if name in WITHOUT_POSITIONS else DumpError, match=message
    ) as caught:
        ingest([str(tmp_path / name)], tmp_path / "out", workers=1)
    assert name in str(caught.value)
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_paths_that_cannot_be_read_or_written_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, out, os_open = datasets.dump(tmp_path / "a.pgn", 1), tmp_path / "out", os.open
    with pytest.raises(DumpError, match=r"is a directory: name the dump files in it"):
        ingest([str(tmp_path)], out, workers=1)
    with pytest.raises(DumpError, match=r"nowhere\.pgn does not exist"):
        ingest([str(tmp_path / "nowhere.pgn")], out, workers=1)
    with pytest.raises(DatasetError, match="cannot be created"):
        ingest([str(path)], path, workers=1)
    with pytest.raises(ConfigError, match="at least one dump"):
        ingest([], out)

    # not by chmod, since root may read every file
    def refuse(name: Any, *arguments: Any, **options: Any) -> int:
        if name == str(path):
            raise PermissionError(13, "Permission denied", name)
        return os_open(name, *arguments, **options)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(DumpError, match=r"a\.pgn is not readable by this user"):
        ingest([str(path)], out, workers=1)


def test_an_ingest_whose_second_dump_is_missing_can_be_continued(tmp_path: Path) -> None:
    path = datasets.dump(tmp_path / "a.pgn", 3)
    with pytest.raises(DumpError, match=r"b\.pgn does not exist"):
        ingest([str(path), str(tmp_path / "b.pgn")], tmp_path / "out", workers=1)
    datasets.dump(tmp_path / "b.pgn", 2, first=50)
    manifest = ingest([str(path), str(tmp_path / "b.pgn")], tmp_path / "out", workers=1)
    assert manifest["games"] == {"read": 5, "used": 5, "dropped": {}}


def test_a_folder_without_a_manifest_is_not_a_dataset(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="is not a directory"):
        read_manifest(tmp_path / "nowhere")
    with pytest.raises(DatasetError, match=r"has no manifest\.json \(it is not a dataset\)"):
        Batches([tmp_path])
    (tmp_path / ".building").mkdir()
    with pytest.raises(DatasetError, match="an ingest was stopped there"):
        Batches([tmp_path])
