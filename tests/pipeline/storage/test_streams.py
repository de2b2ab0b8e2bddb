"""Streamed dumps and datasets in stores have the same rows, whatever fails in the network."""

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
from pipeline.storage.job_folder import BUILDING, DATASET_KIND, JobFolder
from pipeline.storage.objects import RangeFile, fetch_version, open_remote
from pipeline.storage.stores import (
    PublishedFile,
    hash_file,
    parse_path,
    publish,
    publish_bytes,
    publish_in_background,
)
from pipeline.validation.verify import compare_files
from tests.conftest import shared_data
from tests.pipeline import datasets
from tests.pipeline.loopback import Fault, File, Server, serving
from tests.waiting import HANG_TIMEOUT_SECONDS

CONFIG = IngestConfig(chunk_mib=1, test_share=0.2, val_share=0.1)


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write an archive of three chunks."""
    games = [datasets.random_game(seed) for seed in range(30)]
    text = "".join("".join(games[at:] + games[:at]) for at in range(30)).encode()
    path = tmp_path_factory.mktemp("dump") / "games.pgn.zst"
    path.write_bytes(zstandard.compress(text, 1))
    return path


@pytest.fixture(scope="module")
def made(dump: Path) -> Path:
    """Ingest the archive from the local file."""
    ingest([str(dump)], dump.parent / "made", CONFIG, workers=1)
    assert len(list((dump.parent / "made").glob("train-*"))) >= 3
    return dump.parent / "made"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(http, "wait_unless_stopped", lambda seconds, stop: None)
    with serving() as running:
        yield running


def hash_tables(folder: Path) -> dict[str, str]:
    """Return the hash of each file except the manifest, which names the source."""
    found = datasets.content(folder)
    return {name: digest for name, digest in found.items() if name != "manifest.json"}


def make_store_folder(name: str) -> Any:
    return parse_path(f"memory://bucket/{random.randrange(1 << 40)}/{name}")


def assert_same_rows(one: Any, other: Path, split: str = "train") -> None:
    """Compare the batches of two datasets."""
    both = (Batches([folder], split).read_rows() for folder in (one, other))
    for found, expected in zip(*both, strict=True):
        assert all((found[name] == expected[name]).all() for name in expected)


def test_a_broken_stream_has_the_rows_of_the_file(
    server: Server, dump: Path, made: Path, tmp_path: Path
) -> None:
    data, out = dump.read_bytes(), tmp_path / "out"
    faults = [Fault()] * 3 + [Fault(send=len(data) // 2), Fault(send=0)]
    server.files["/games.pgn.zst"] = File(data, faults=faults)
    address = f"{server.url}/games.pgn.zst?token=secret"
    manifest = ingest([address], out, CONFIG, workers=1)
    assert server.ranges("games.pgn.zst")[-2:] == [f"bytes={len(data) // 2}-"] * 2
    assert hash_tables(out) == hash_tables(made)
    local = read_manifest(made)["sources"][0]
    assert manifest["sources"] == [local | {"version": '"one"'}]
    assert "secret" not in (out / "manifest.json").read_text()
    for name in (address, str(dump)):  # the same dump by its version, and by its hash
        assert ingest([name], out, CONFIG, workers=1) == manifest
    server.files["/games.pgn.zst"].etag = '"two"'
    with pytest.raises(DatasetError, match="have changed"):
        ingest([address], out, CONFIG, workers=1)


def test_a_lost_network_keeps_finished_work(
    server: Server, dump: Path, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (source, chunks):
        monkeypatch.setattr(module, "BLOCK_BYTES", 1 << 16)  # otherwise all text is read at once
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
    assert hash_tables(out) == hash_tables(made)
    # finished files are not written again
    assert {name: (out / name).stat().st_mtime_ns for name in finished} == finished
    replaced = File(data[:-3], etag='"two"')
    fault = Fault(send=len(data) // 2, then=lambda: server.files.update({"/b.pgn.zst": replaced}))
    server.files["/b.pgn.zst"] = File(data, faults=[*[Fault()] * 3, fault])
    with pytest.raises(IngestError, match="was replaced by another version"):
        ingest([f"{server.url}/b.pgn.zst"], tmp_path / "b", CONFIG, workers=1)
    assert not (tmp_path / "b" / "manifest.json").exists()


def test_a_dataset_in_a_store_equals_one_in_a_folder(
    dump: Path, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, tables = make_store_folder("games"), hash_tables(made)
    notes = JobFolder(out, DATASET_KIND, DatasetError).notes
    with pytest.raises(Stopped, match="run the same command"):
        ingest([str(dump)], out, CONFIG, workers=1, stop=lambda: any(notes.glob("[0-9]*.json")))
    assert not (out / "manifest.json").exists()
    put_file, failing = out.fs.put_file, iter([True])

    def fail_once(source: str, path: str, **more: object) -> None:
        if next(failing, False):
            raise OSError("connection reset")
        put_file(source, path, **more)

    monkeypatch.setattr(type(out.fs), "put_file", staticmethod(fail_once))
    with pytest.raises(IngestError, match="connection reset: finished work is kept"):
        ingest([str(dump)], out, CONFIG, workers=1)
    manifest = ingest([str(dump)], out, CONFIG, workers=1)
    names = {name.rpartition("/")[2] for name in out.fs.find(out.path)}
    assert names == {*tables, "manifest.json"}
    assert {name: hash_file(out / name) for name in tables} == tables
    assert manifest == read_manifest(out) == read_manifest(made)
    assert compare_files(out) == []
    assert ingest([str(dump)], out, CONFIG, workers=1) == manifest
    assert_same_rows(out, made, "test")


def test_two_machines_with_different_settings_do_not_mix_in_a_store(dump: Path) -> None:
    out, markers = make_store_folder("mixed"), list[bytes]()

    def begin_other() -> bool:
        """Begin another ingest after the first chunk, which sees neither lock nor marker."""
        if not markers and len(out.fs.glob(f"{out.path}/.building/parts/[0-9]*.json")) == 1:
            markers.append(out.fs.cat_file(f"{out.path}/job.json"))
            out.fs.rm_file(f"{out.path}/job.json")
            chunk = next(read_chunks([Source(str(dump))], CONFIG.chunk_mib << 20))
            with pytest.raises(DatasetError, match="is being written by another ingest"):
                encode_chunk(ChunkTask(chunk, str(out), replace(CONFIG, min_elo=1000)))
        return False

    ingest([str(dump)], out, CONFIG, workers=1, stop=begin_other)
    assert markers


def write_half(target: Any) -> None:
    target.write(b"half")
    raise RuntimeError("in the middle")


def test_a_refusing_store_is_reported_and_a_failed_write_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = make_store_folder("refused")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("Access Denied")

    with pytest.raises(RuntimeError):
        publish(folder, "a", 0, write_half)
    assert not (folder / "a").exists()
    monkeypatch.setattr(type(folder.fs), "put_file", refuse)
    with pytest.raises(StoreError, match=r"memory://.*refused/a: Access Denied"):
        publish_bytes(folder, "a", b"whole")
    with pytest.raises(StoreError, match="Access Denied"), publish_in_background() as publish_later:
        publish_later(folder, "no", 0, lambda target: target.write(b"no"))


def test_files_are_written_while_others_are_flushed_and_appear_when_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, fsync, second = [], os.fsync, threading.Event()

    def fsync_after_second(descriptor: int) -> None:
        assert second.wait(HANG_TIMEOUT_SECONDS), (
            "the second file is written while the first is flushed"
        )
        fsync(descriptor)
        synced.append(descriptor)

    monkeypatch.setattr(os, "fsync", fsync_after_second)
    with publish_in_background() as publish_later:
        first = publish_later(tmp_path, "a", 3, lambda target: target.write(b"one"))
        assert not (tmp_path / "a").exists()
        publish_later(tmp_path, "b", 0, lambda target: target.write(b"two"))
        second.set()
    assert len(synced) == 2
    assert first == PublishedFile("a", 3, 3, datasets.hashlib.sha256(b"one").hexdigest())
    with (
        pytest.raises(RuntimeError, match="in the middle"),
        publish_in_background() as publish_later,
    ):
        publish_later(tmp_path, "half", 0, write_half)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_objects_are_read_in_order_and_in_ranges(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "REQUEST_BYTES", 1000)
    data, rng = random.Random(1).randbytes(12_345), random.Random(2)
    folder = make_store_folder("objects")
    publish_bytes(folder, "a", data)
    server.files["/a"] = File(data, faults=[Fault(), Fault(send=9)])
    for name in (str(folder / "a"), f"{server.url}/a"):
        file = open_remote(name)
        assert b"".join(iter(lambda f=file: f.read(rng.randrange(1, 3000)), b"")) == data
        file.close()
        ranges = RangeFile(name, fetch_version(name))
        for _ in range(20):
            at, count = rng.randrange(len(data)), rng.randrange(3000)
            assert ranges.seek(at) == ranges.tell() == at
            assert ranges.read(count) == data[at : at + count]
    file = open_remote(str(folder / "a"))
    publish_bytes(folder, "a", data[1:])
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
    publish_bytes(folder, "evals.parquet", table)
    found = read_chunks([Source(str(folder / "evals.parquet"))], 1 << 20)
    assert len(next(found).starts) == 3
    publish_bytes(folder, "evals.parquet", table)
    with pytest.raises(SourceChangedError, match="was replaced"):
        next(found)


@pytest.mark.parametrize("name", ["nosuch://x", "ftp://x", "local://x", "://x", "https://a/b"])
def test_unsupported_schemes_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="is not a supported store"):
        parse_path(name)
