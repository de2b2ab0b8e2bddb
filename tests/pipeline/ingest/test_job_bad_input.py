"""Dumps and datasets that are damaged, missing or not what they claim: a clear line, and nothing
good is lost."""

import bz2
import gzip
import io
import json
import os
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from pipeline.dataset.batches import Batches
from pipeline.dataset.dataset import Dataset
from pipeline.dataset.files.shards import publish_json, read_manifest
from pipeline.errors import DamagedError, DatasetError, DumpError
from pipeline.ingest.job import ingest
from pipeline.validation.verify import files_differ
from tests.pipeline import datasets


@pytest.fixture(scope="module")
def text() -> bytes:
    """Give 1.5 MB of PGN: 600 games, most of them different."""
    games = [datasets.random_game(seed) for seed in range(200)]
    return "".join(games + games[::-1] + games).encode()


def open_zstd(data: bytes) -> bytes:
    stream, out = zstandard.ZstdDecompressor().stream_reader(data), io.BytesIO()
    try:
        while piece := stream.read(1000):
            out.write(piece)
    except zstandard.ZstdError:
        pass
    return out.getvalue()


def open_piecewise(decoder: Any, data: bytes) -> bytes:
    out = io.BytesIO()
    try:
        for at in range(0, len(data), 100):
            out.write(decoder.decompress(data[at : at + 100]))
    except (OSError, zlib.error):
        pass
    return out.getvalue()


CODECS: dict[str, tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]] = {
    # suffix: (compress, give what a decoder of another library gets out of a damaged archive)
    "zst": (lambda data: zstandard.ZstdCompressor(write_checksum=True).compress(data), open_zstd),
    "gz": (
        lambda data: gzip.compress(data, 6),
        lambda data: open_piecewise(zlib.decompressobj(31), data),
    ),
    "bz2": (
        lambda data: bz2.compress(data, 1),
        lambda data: open_piecewise(bz2.BZ2Decompressor(), data),
    ),
}


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("codec", CODECS)
def test_a_truncated_archive_keeps_every_whole_game(
    codec: str, workers: int, text: bytes, tmp_path: Path
) -> None:
    compress, decode = CODECS[codec]
    archive = compress(text)
    archive = archive[: len(archive) * 2 // 3]
    good = decode(archive)
    assert text.startswith(good)
    whole = good.count(b"[Event ") - 1  # the last game is cut off
    assert whole > 100
    check_damaged(tmp_path, f"games.pgn.{codec}", archive, whole, text, workers)


@pytest.mark.parametrize("codec", CODECS)
def test_a_corrupted_archive_keeps_every_whole_game_before_the_damage(
    codec: str, text: bytes, tmp_path: Path
) -> None:
    compress, decode = CODECS[codec]
    archive = bytearray(compress(text))
    at = len(archive) * 2 // 3
    archive[at : at + 64] = bytes(64)
    good = decode(bytes(archive))
    same = next(
        (place for place, pair in enumerate(zip(good, text, strict=False)) if pair[0] != pair[1]),
        len(good),
    )
    whole = text[:same].count(b"[Event ") - 1
    assert whole > 100
    check_damaged(tmp_path, f"games.pgn.{codec}", bytes(archive), whole, text)


def check_damaged(
    tmp_path: Path, name: str, archive: bytes, whole: int, text: bytes, workers: int = 1
) -> None:
    """Ingest a damaged archive twice: it is said, and the dataset holds the whole games before the
    damage."""
    path, out = tmp_path / name, tmp_path / "out"
    path.write_bytes(archive)
    for _ in range(2):
        with pytest.raises(
            DamagedError, match=rf"damaged archive \({name}: .*games before the damage are in"
        ):
            ingest([str(path)], out, workers=workers)
    assert files_differ(out) == []
    manifest, games = datasets.manifest(out), datasets.games(out)
    assert manifest["sources"][0]["damage"]
    assert manifest["sources"][0]["bytes"] == len(archive)
    assert len(games) >= whole, "a whole game before the damage was lost"
    lengths = [len(b"[Event " + piece) for piece in text.split(b"[Event ")[1:]]
    assert [game["length"] for game in games[:whole]] == lengths[:whole]
    assert [game["dropped"] for game in games[:whole]] == [None] * whole
    rows = datasets.rows_by_game(out)
    assert [len(rows[number]) for number in range(whole)] == [
        game["plies"] for game in games[:whole]
    ]
    batch = next(Batches([out], batch_size=32).from_step(0))
    assert batch["planes"].shape == (32, 77)


def test_a_damaged_archive_with_no_whole_game_is_an_error(text: bytes, tmp_path: Path) -> None:
    path = tmp_path / "games.pgn.gz"
    path.write_bytes(gzip.compress(text)[:40])
    with pytest.raises(DatasetError, match="no positions"):
        ingest([str(path)], tmp_path / "out", workers=1)
    assert not (tmp_path / "out" / "manifest.json").exists()


NOT_DUMPS = {
    "binary.pgn": (b"\x7fELF\x02\x01\x01\x00" + bytes(5000), "is not PGN text"),
    "picture.png": (b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + bytes(100), "is not PGN text"),
    "words.pgn.zst": (b"1. e4 e5 1-0", "is named like a zstd archive but does not begin like one"),
    "words.pgn.gz": (b"1. e4 e5 1-0", "is named like a gzip archive"),
    "words.pgn.bz2": (b"\x28\xb5\x2f\xfd 1. e4 e5 1-0", "is named like a bz2 archive"),
    "empty.pgn": (b"", "is empty"),
    "endless.pgn": (b"a" * (18 << 20), "no line break in 16 MiB"),
}


@pytest.mark.parametrize("name", NOT_DUMPS)
def test_what_is_no_dump_is_said(name: str, tmp_path: Path) -> None:
    content, message = NOT_DUMPS[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DumpError, match=message) as caught:
        ingest([str(tmp_path / name)], tmp_path / "out", workers=1)
    assert name in str(caught.value)
    assert not (tmp_path / "out" / "manifest.json").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"\n\n  \n", "no game was found"), (b"just a letter\n", "unreadable move: 1")],
)
def test_text_without_games_is_said(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.pgn").write_bytes(content)
    with pytest.raises(DatasetError, match=message):
        ingest([str(tmp_path / "a.pgn")], tmp_path / "out", workers=1)


def test_variants_only_is_said_with_their_count(tmp_path: Path) -> None:
    text = '[Event "x"]\n[Variant "Atomic"]\n[Result "1-0"]\n\n1. e4 1-0\n\n'
    (tmp_path / "a.pgn").write_text(text * 7)
    with pytest.raises(
        DatasetError, match=r"no positions in .*a\.pgn: 7 games read \(variant: 7\)"
    ):
        ingest([str(tmp_path / "a.pgn")], tmp_path / "out", workers=1)


def test_a_directory_and_a_missing_file_are_said(tmp_path: Path) -> None:
    with pytest.raises(
        DumpError, match=r"is a directory: name the dump files in it, such as .*\*\.pgn\.zst"
    ):
        ingest([str(tmp_path)], tmp_path / "out", workers=1)
    with pytest.raises(DumpError, match=r"nowhere\.pgn does not exist"):
        ingest([str(tmp_path / "nowhere.pgn")], tmp_path / "out2", workers=1)


def test_a_file_that_may_not_be_read_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = datasets.dump(tmp_path / "a.pgn", 1)
    real = os.open

    # root may read everything, so chmod proves nothing
    def refuse(name: Any, *arguments: Any, **options: Any) -> int:
        if name == str(path):
            raise PermissionError(13, "Permission denied", name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(DumpError, match=r"a\.pgn may not be read by this user"):
        ingest([str(path)], tmp_path / "out", workers=1)


def test_an_output_that_is_a_file_is_said(tmp_path: Path) -> None:
    path = datasets.dump(tmp_path / "a.pgn", 1)
    with pytest.raises(DatasetError, match="cannot be made"):
        ingest([str(path)], path, workers=1)


def test_a_bad_second_dump_leaves_no_dataset_and_the_first_can_go_on(tmp_path: Path) -> None:
    path = datasets.dump(tmp_path / "a.pgn", 3)
    with pytest.raises(DumpError, match=r"b\.pgn does not exist"):
        ingest([str(path), str(tmp_path / "b.pgn")], tmp_path / "out", workers=1)
    datasets.dump(tmp_path / "b.pgn", 2, first=50)
    manifest = ingest([str(path), str(tmp_path / "b.pgn")], tmp_path / "out", workers=1)
    assert manifest["games"] == {"read": 5, "used": 5, "dropped": {}}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a small dataset."""
    folder = tmp_path_factory.mktemp("good")
    ingest([str(datasets.dump(folder / "a.pgn", 40))], folder / "out", workers=1)
    return folder / "out"


@pytest.fixture
def dataset(good: Path, tmp_path: Path) -> Path:
    """Copy the small dataset, to be spoilt."""
    shutil.copytree(good, tmp_path / "out")
    return tmp_path / "out"


def test_a_directory_without_a_manifest_is_no_dataset(tmp_path: Path, dataset: Path) -> None:
    with pytest.raises(DatasetError, match="is not a directory"):
        read_manifest(tmp_path / "nowhere")
    (dataset / "manifest.json").unlink()
    with pytest.raises(DatasetError, match=r"has no manifest\.json \(no dataset\)"):
        Batches([dataset])
    (dataset / ".building").mkdir()
    with pytest.raises(DatasetError, match="an ingest was stopped there"):
        Batches([dataset])


MANIFESTS = {
    "not JSON": b"{",
    "not UTF-8": b"\xff\xfe{}",
    "a list": b"[]",
    "no files": b"{}",
    "files are a word": b'{"files": "train"}',
}


@pytest.mark.parametrize("kind", MANIFESTS)
def test_a_manifest_that_is_none_is_refused(kind: str, dataset: Path) -> None:
    (dataset / "manifest.json").write_bytes(MANIFESTS[kind])
    with pytest.raises(
        DatasetError,
        match=r"is not JSON|is not a manifest|has no format_version|has format_version None",
    ):
        read_manifest(dataset)


@pytest.mark.parametrize("key", ["format_version", "encoding_version", "moves_hash"])
def test_a_manifest_of_another_version_is_refused_by_name(key: str, dataset: Path) -> None:
    manifest = datasets.manifest(dataset)
    publish_json(dataset, "manifest.json", manifest | {key: "other"})
    with pytest.raises(DatasetError, match=f"has {key} 'other', this program"):
        read_manifest(dataset)
    publish_json(
        dataset, "manifest.json", {name: value for name, value in manifest.items() if name != key}
    )
    with pytest.raises(DatasetError, match=f"has {key} None"):
        read_manifest(dataset)


@pytest.mark.parametrize("name", ["../x.parquet", "/etc/passwd", "a/b.parquet", "..", "", None, 7])
def test_a_manifest_that_names_files_elsewhere_is_refused(name: object, dataset: Path) -> None:
    manifest = datasets.manifest(dataset)
    manifest["files"][0]["name"] = name
    (dataset / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DatasetError, match="names a file outside the dataset"):
        read_manifest(dataset)


def test_files_that_are_missing_or_changed_are_found(dataset: Path) -> None:
    assert files_differ(dataset) == []
    first, *_, last = datasets.manifest(dataset)["files"]
    data = bytearray((dataset / first["name"]).read_bytes())
    data[len(data) // 2] ^= 1
    (dataset / first["name"]).write_bytes(data)
    assert files_differ(dataset) == [f"{first['name']}: differs from its hash"]
    (dataset / last["name"]).unlink()
    assert files_differ(dataset) == [
        f"{first['name']}: differs from its hash",
        f"{last['name']}: missing",
    ]
    (dataset / first["name"]).unlink()
    with pytest.raises(DatasetError, match="not on disk"):
        Dataset.open(dataset)
