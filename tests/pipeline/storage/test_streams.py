"""Streamed dumps and datasets in stores have the same rows, whatever the network does."""

import os
import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zstandard

from pipeline.dataset.batches import Batches
from pipeline.dataset.files.manifest import read_manifest
from pipeline.dumps import archives, chunks, source
from pipeline.dumps.chunks import read_chunks
from pipeline.dumps.source import Source
from pipeline.errors import (
    ConfigError,
    DatasetError,
    FetchError,
    IngestError,
    SourceChangedError,
    Stopped,
    StoreError,
)
from pipeline.ingest.chunk import ChunkTask, IngestConfig, encode_chunk
from pipeline.ingest.job import ingest
from pipeline.storage import http, objects
from pipeline.storage.job_folder import BUILDING, DATASET, JobFolder
from pipeline.storage.objects import RangeFile, fetch_version, open_remote
from pipeline.storage.stores import Published, parse_path, publish, publish_in_background
from pipeline.validation.verify import compare_files
from tests.conftest import shared_data
from tests.pipeline import datasets
from tests.pipeline.loopback import Fault, File, Server, serving
from tests.waiting import LONG

CONFIG = IngestConfig(chunk_mib=1, test_share=0.2, val_share=0.1)


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make an archive of three chunks."""
    games = [datasets.random_game(seed) for seed in range(30)]
    text = "".join("".join(games[at:] + games[:at]) for at in range(30)).encode()
    path = tmp_path_factory.mktemp("dump") / "games.pgn.zst"
    path.write_bytes(zstandard.compress(text, 1))
    return path


@pytest.fixture(scope="module")
def made(dump: Path) -> dict[str, str]:
    """Ingest the file once: the hash of each file of the dataset but those that name the source."""
    ingest([str(dump)], dump.parent / "made", CONFIG, workers=1)
    assert len(list((dump.parent / "made").glob("train-*"))) >= 3
    return rows_of(dump.parent / "made")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(http, "wait_unless_stopped", lambda seconds, stop: None)
    with serving() as running:
        yield running


def rows_of(folder: Path) -> dict[str, str]:
    found = datasets.content(folder)
    return {name: digest for name, digest in found.items() if name != "manifest.json"}


def unique_place(name: str) -> Any:
    return parse_path(f"memory://bucket/{random.randrange(1 << 40)}/{name}")


def test_a_stream_gives_the_rows_of_the_file_through_breaks(
    server: Server, dump: Path, made: dict[str, str], tmp_path: Path
) -> None:
    data, out = dump.read_bytes(), tmp_path / "out"
    faults = [Fault()] * 3 + [Fault(send=len(data) // 2), Fault(send=0)]
    server.files["/games.pgn.zst"] = File(data, faults=faults)
    address = f"{server.url}/games.pgn.zst?token=secret"
    manifest = ingest([address], out, CONFIG, workers=1)
    assert server.ranges("games.pgn.zst")[-2:] == [f"bytes={len(data) // 2}-"] * 2
    assert rows_of(out) == made
    of_file = read_manifest(dump.parent / "made")["sources"][0]
    assert manifest["sources"] == [of_file | {"version": '"one"'}]
    assert "secret" not in (out / "manifest.json").read_text()
    for name in (address, str(dump)):  # the same dump by its version, and by its hash
        assert ingest([name], out, CONFIG, workers=1) == manifest
    server.files["/games.pgn.zst"].etag = '"two"'
    with pytest.raises(DatasetError, match="have changed"):
        ingest([address], out, CONFIG, workers=1)


def test_a_network_that_is_gone_keeps_what_is_finished(
    server: Server,
    dump: Path,
    made: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for room in (source, chunks):
        monkeypatch.setattr(room, "BLOCK_BYTES", 1 << 16)  # otherwise all text is read at once
    # otherwise the archive is read before the first chunk
    monkeypatch.setattr(source, "HEAD_BYTES", 1 << 12)
    monkeypatch.setattr(archives, "READ_BYTES", 1 << 12)
    data, out = dump.read_bytes(), tmp_path / "out"
    file = server.files["/games.pgn.zst"] = File(data)
    address = f"{server.url}/games.pgn.zst"
    file.faults += [Fault()] * 3 + [Fault(send=len(data) - 1000)] + [Fault(send=0)] * 6
    with pytest.raises(IngestError, match=r"after 6 failed attempts in a row .*; finished work"):
        ingest([address], out, CONFIG, workers=1)
    assert not (out / "manifest.json").exists()
    finished = {path.name: path.stat().st_mtime_ns for path in (out / BUILDING).glob("*.parquet")}
    assert finished
    file.etag = '"two"'
    with pytest.raises(DatasetError, match="an unfinished ingest with other dump_versions"):
        ingest([address], out, CONFIG, workers=1)
    file.etag = '"one"'
    ingest([address], out, CONFIG, workers=1)
    assert rows_of(out) == made
    # finished files are not written again
    assert {name: (out / name).stat().st_mtime_ns for name in finished} == finished
    replaced = File(data[:-3], etag='"two"')
    fault = Fault(send=len(data) // 2, then=lambda: server.files.update({"/b.pgn.zst": replaced}))
    server.files["/b.pgn.zst"] = File(data, faults=[*[Fault()] * 3, fault])
    with pytest.raises(IngestError, match="was replaced by another version"):
        ingest([f"{server.url}/b.pgn.zst"], tmp_path / "b", CONFIG, workers=1)
    assert not (tmp_path / "b" / "manifest.json").exists()


def test_a_store_holds_what_a_folder_would(
    dump: Path, made: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = unique_place("games")
    notes = JobFolder(out, DATASET, DatasetError).notes
    with pytest.raises(Stopped, match="run the same command"):
        ingest([str(dump)], out, CONFIG, workers=1, stop=lambda: any(notes.glob("[0-9]*.json")))
    assert not (out / "manifest.json").exists()
    real, failing = out.fs.put_file, iter([True])

    def flaky(here: str, path: str, **more: object) -> None:
        if next(failing, False):
            raise OSError("connection reset")
        real(here, path, **more)

    monkeypatch.setattr(type(out.fs), "put_file", staticmethod(flaky))
    with pytest.raises(IngestError, match="connection reset: finished work is kept"):
        ingest([str(dump)], out, CONFIG, workers=1)
    manifest = ingest([str(dump)], out, CONFIG, workers=1)
    names = {name.rpartition("/")[2] for name in out.fs.find(out.path)}
    assert names == {*made, "manifest.json"}
    found = {name: datasets.hashlib.sha256((out / name).read_bytes()) for name in made}
    assert {name: digest.hexdigest() for name, digest in found.items()} == made
    assert manifest == read_manifest(out) == read_manifest(dump.parent / "made")
    assert compare_files(out) == []
    assert ingest([str(dump)], out, CONFIG, workers=1) == manifest
    there, here = (Batches([one], "test").read_rows() for one in (out, dump.parent / "made"))
    for rows, expected in zip(there, here, strict=True):
        assert all((rows[name] == expected[name]).all() for name in expected)


def test_two_machines_with_other_settings_do_not_mix_in_a_store(dump: Path) -> None:
    out, asked = unique_place("mixed"), list[bytes]()

    def begin_other() -> bool:
        """Begin another ingest after the first chunk; it sees neither the lock nor the marker."""
        if not asked and len(out.fs.glob(f"{out.path}/.building/parts/[0-9]*.json")) == 1:
            asked.append(out.fs.cat_file(f"{out.path}/job.json"))
            out.fs.rm_file(f"{out.path}/job.json")
            chunk = next(read_chunks([Source(str(dump))], CONFIG.chunk_mib << 20))
            with pytest.raises(DatasetError, match="is being written by another ingest"):
                encode_chunk(ChunkTask(chunk, str(out), replace(CONFIG, min_elo=1000)))
        return False

    ingest([str(dump)], out, CONFIG, workers=1, stop=begin_other)
    assert asked


def test_a_store_that_refuses_is_reported_and_a_writer_that_fails_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = unique_place("refused")

    def fails(target: Any) -> None:
        target.write(b"half")
        raise RuntimeError("in the middle")

    def refused(*_: object, **__: object) -> None:
        raise PermissionError("Access Denied")

    with pytest.raises(RuntimeError):
        publish(folder, "a", 0, fails)
    assert not (folder / "a").exists()
    monkeypatch.setattr(type(folder.fs), "put_file", refused)
    with pytest.raises(StoreError, match=r"memory://.*refused/a: Access Denied"):
        publish(folder, "a", 0, lambda target: target.write(b"whole"))
    with pytest.raises(StoreError, match="Access Denied"), publish_in_background() as publish_later:
        publish_later(folder, "no", 0, lambda target: target.write(b"no"))


def test_files_are_written_while_others_are_flushed_and_named_once_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, real, second = [], os.fsync, threading.Event()

    def slow(descriptor: int) -> None:
        assert second.wait(LONG), "the second file is written while the first is flushed"
        real(descriptor)
        synced.append(descriptor)

    def breaks(target: Any) -> None:
        target.write(b"half")
        raise RuntimeError("in the middle")

    monkeypatch.setattr(os, "fsync", slow)
    with publish_in_background() as publish_later:
        first = publish_later(tmp_path, "a", 3, lambda target: target.write(b"one"))
        assert not (tmp_path / "a").exists()
        publish_later(tmp_path, "b", 0, lambda target: target.write(b"two"))
        second.set()
    assert len(synced) == 2
    assert first == Published("a", 3, 3, datasets.hashlib.sha256(b"one").hexdigest())
    with (
        pytest.raises(RuntimeError, match="in the middle"),
        publish_in_background() as publish_later,
    ):
        publish_later(tmp_path, "half", 0, breaks)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_objects_are_read_in_order_and_in_ranges(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "BLOCK", 1000)
    data, chance = random.Random(1).randbytes(12_345), random.Random(2)
    folder = unique_place("objects")
    publish(folder, "a", 0, lambda target: target.write(data))
    server.files["/a"] = File(data, faults=[Fault(), Fault(send=9)])
    for name in (str(folder / "a"), f"{server.url}/a"):
        file = open_remote(name)
        assert b"".join(iter(lambda f=file: f.read(chance.randrange(1, 3000)), b"")) == data
        file.close()
        ranges = RangeFile(name, fetch_version(name))
        for _ in range(20):
            at, count = chance.randrange(len(data)), chance.randrange(3000)
            assert ranges.seek(at) == ranges.tell() == at
            assert ranges.read(count) == data[at : at + count]
    file = open_remote(str(folder / "a"))
    publish(folder, "a", 0, lambda target: target.write(data[1:]))
    with pytest.raises(SourceChangedError, match="was replaced"):
        list(iter(lambda: file.read(3000), b""))
    with pytest.raises(FetchError, match="does not exist"):
        open_remote(str(folder / "b"))
    with pytest.raises(FetchError, match="is a prefix and not an object"):
        open_remote(str(folder))
    server.files["/a"].etag = ""
    with pytest.raises(FetchError, match="cannot be read in parts"):
        RangeFile(f"{server.url}/a", fetch_version(f"{server.url}/a"))
    table = shared_data("cases/23_evals_control.parquet").read_bytes()
    publish(folder, "evals.parquet", 0, lambda target: target.write(table))
    found = read_chunks([Source(str(folder / "evals.parquet"))], 1 << 20)
    assert len(next(found).starts) == 3
    publish(folder, "evals.parquet", 0, lambda target: target.write(table))
    with pytest.raises(SourceChangedError, match="was replaced"):
        next(found)


@pytest.mark.parametrize("name", ["nosuch://x", "ftp://x", "local://x", "://x", "https://a/b"])
def test_places_that_are_none_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="is not a supported store"):
        parse_path(name)
