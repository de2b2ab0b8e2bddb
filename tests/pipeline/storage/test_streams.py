"""Dumps read from a server and never kept, and datasets written to a store: the same rows, whatever
the network does."""

import json
import os
import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import zstandard

from pipeline.dataset.batches import Batches
from pipeline.dataset.files.shards import publish, read_manifest
from pipeline.dumps import archives, chunks, source
from pipeline.dumps.chunks import read_chunks
from pipeline.dumps.source import Source
from pipeline.errors import (
    ChangedError,
    ConfigError,
    DamagedError,
    DatasetError,
    FetchError,
    IngestError,
    Stopped,
    StoreError,
)
from pipeline.ingest.chunk import ChunkTask, IngestConfig, encode_chunk
from pipeline.ingest.job import ingest
from pipeline.ingest.manifest import read_notes
from pipeline.storage import http, objects
from pipeline.storage.job_folder import BUILDING, DATASET, JobFolder
from pipeline.storage.objects import open_remote
from pipeline.storage.stores import SETTLING, Published, place, publish_behind
from pipeline.validation.verify import files_differ
from tests.pipeline import datasets
from tests.pipeline.loopback import Fault, File, Server, serving
from tests.waiting import LONG

CONFIG = IngestConfig(chunk_mib=1, test_share=0.2, val_share=0.1)


def pgn(seeds: range, copies: int) -> bytes:
    games = [datasets.random_game(seed) for seed in seeds]
    return "".join("".join(games[at:] + games[:at]) for at in range(copies)).encode()


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make an archive of three chunks."""
    path = tmp_path_factory.mktemp("dump") / "games.pgn.zst"
    path.write_bytes(zstandard.compress(pgn(range(30), 30), 1))
    return path


@pytest.fixture(scope="module")
def made(dump: Path) -> dict[str, str]:
    """Ingest the file once: the hash of each file of the dataset but those that name the source."""
    ingest([str(dump)], dump.parent / "made", CONFIG, workers=1)
    assert len(list((dump.parent / "made").glob("train-*"))) >= 3
    return rows_of(dump.parent / "made")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(http, "rest", lambda seconds, stop: None)
    with serving() as running:
        yield running


def rows_of(folder: Path) -> dict[str, str]:
    return {
        name: digest for name, digest in datasets.content(folder).items() if name != "manifest.json"
    }


def notes_of(out: Path) -> Path:
    return JobFolder(out, DATASET, DatasetError).notes


def test_a_stream_gives_the_rows_of_the_file_through_breaks(
    server: Server, dump: Path, made: dict[str, str], tmp_path: Path
) -> None:
    data = dump.read_bytes()
    server.files["/games.pgn.zst"] = File(
        data, faults=[Fault()] * 3 + [Fault(send=len(data) // 2), Fault(send=0)]
    )
    address = f"{server.url}/games.pgn.zst?token=secret"
    manifest = ingest([address], tmp_path / "out", CONFIG, workers=1)
    assert server.ranges("games.pgn.zst")[-2:] == [f"bytes={len(data) // 2}-"] * 2
    assert rows_of(tmp_path / "out") == made
    of_file = read_manifest(dump.parent / "made")["sources"][0]
    assert manifest["sources"] == [of_file | {"version": '"one"'}]
    assert "secret" not in (tmp_path / "out" / "manifest.json").read_text()
    asked = len(server.asked)
    assert ingest([address], tmp_path / "out", CONFIG, workers=1) == manifest
    # it is the same dump by its hash
    assert ingest([str(dump)], tmp_path / "out", CONFIG, workers=1) == manifest
    # looked at, not read
    assert server.ranges("games.pgn.zst")[asked:] == ["bytes=0-0", "bytes=0-0"]
    server.files["/games.pgn.zst"].etag = '"two"'
    with pytest.raises(DatasetError, match="have changed"):
        ingest([address], tmp_path / "out", CONFIG, workers=1)


def test_a_network_that_is_gone_keeps_what_is_finished(
    server: Server,
    dump: Path,
    made: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for room in (source, chunks):
        monkeypatch.setattr(room, "BLOCK", 1 << 16)  # or all of the text is read at once
    monkeypatch.setattr(source, "HEAD", 1 << 12)  # or all of the archive, before the first chunk
    monkeypatch.setattr(archives, "_READ_ZSTD", 1 << 12)  # or more of it than the server gives
    data, out = dump.read_bytes(), tmp_path / "out"
    file = server.files["/games.pgn.zst"] = File(data)
    file.faults += [Fault()] * 3 + [Fault(send=len(data) - 1000)] + [Fault(send=0)] * 6
    address = f"{server.url}/games.pgn.zst"
    with pytest.raises(
        IngestError, match=r"after 6 tries in a row .*; what was finished is kept in"
    ):
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
    # not one of them was made again
    assert {name: (out / name).stat().st_mtime_ns for name in finished} == finished


def test_a_dump_replaced_while_it_is_read_is_not_joined(
    server: Server, dump: Path, tmp_path: Path
) -> None:
    data = dump.read_bytes()

    def replaced() -> None:
        server.files["/games.pgn.zst"] = File(data[:-3], etag='"two"')

    broken = Fault(send=len(data) // 2, then=replaced)
    server.files["/games.pgn.zst"] = File(data, faults=[*[Fault()] * 3, broken])
    with pytest.raises(IngestError, match="was replaced by another version"):
        ingest([f"{server.url}/games.pgn.zst"], tmp_path / "out", CONFIG, workers=1)
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_damaged_archive_of_a_server_gives_what_the_file_gives(
    server: Server, dump: Path, tmp_path: Path
) -> None:
    data = bytearray(dump.read_bytes())
    data[len(data) * 2 // 3] ^= 0x55
    (tmp_path / "games.pgn.zst").write_bytes(data)
    server.files["/games.pgn.zst"] = File(bytes(data))
    with pytest.raises(DamagedError):
        ingest([str(tmp_path / "games.pgn.zst")], tmp_path / "file", CONFIG, workers=1)
    with pytest.raises(DamagedError):
        ingest([f"{server.url}/games.pgn.zst"], tmp_path / "web", CONFIG, workers=1)
    assert rows_of(tmp_path / "web") == rows_of(tmp_path / "file")


def test_a_store_holds_what_a_folder_would(
    dump: Path, made: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = place(f"memory://bucket/{random.randrange(1 << 40)}/games")
    calls = 0

    def stop() -> bool:
        nonlocal calls
        calls += 1
        return calls == 2

    with pytest.raises(ValueError, match="run the same command"):
        ingest([str(dump)], out, CONFIG, workers=1, stop=stop)
    assert not (out / "manifest.json").exists()
    fs = out.fs  # type: ignore[attr-defined]
    real, failing = fs.put_file, iter([True])

    def flaky(here: str, path: str, **more: object) -> None:
        if next(failing, False):
            raise OSError("connection reset")
        real(here, path, **more)

    monkeypatch.setattr(type(fs), "put_file", staticmethod(flaky))
    with pytest.raises(IngestError, match="connection reset: what was finished is kept"):
        ingest([str(dump)], out, CONFIG, workers=1)
    manifest = ingest([str(dump)], out, CONFIG, workers=1)
    assert {name.rpartition("/")[2] for name in fs.find(out.path)} == {*made, "manifest.json"}  # type: ignore[attr-defined]
    assert {
        name: datasets.hashlib.sha256((out / name).read_bytes()).hexdigest() for name in made
    } == made
    assert manifest == read_manifest(out) == read_manifest(dump.parent / "made")
    assert files_differ(out) == []
    assert ingest([str(dump)], out, CONFIG, workers=1) == manifest
    for there, here in zip(
        Batches([out], "test").read_rows(),
        Batches([dump.parent / "made"], "test").read_rows(),
        strict=True,
    ):
        assert all((there[name] == here[name]).all() for name in here)


def test_two_machines_with_other_settings_do_not_mix_in_a_store(dump: Path) -> None:
    out = place(f"memory://bucket/{random.randrange(1 << 40)}/mixed")

    def other(count: int) -> bool:
        """Let the other machine begin as soon as this one has; it does not see this one's lock, nor
        its job.json in time."""
        fs, path = out.fs, out.path  # type: ignore[attr-defined]
        if not asked and len(fs.glob(f"{path}/.building/parts/[0-9]*.json")) == count:
            asked.append(fs.cat_file(f"{path}/job.json"))
            fs.rm_file(f"{path}/job.json")
            with pytest.raises(
                DatasetError, match="is written by another ingest with other settings"
            ):
                encode_first(replace(CONFIG, min_elo=1000))
        return False

    def encode_first(config: IngestConfig) -> None:
        chunk = next(read_chunks([Source(str(dump))], CONFIG.chunk_mib << 20))
        encode_chunk(ChunkTask(chunk, str(out), config))

    asked: list[bytes] = []
    ingest([str(dump)], out, CONFIG, workers=1, stop=lambda: other(1))
    assert asked

    late = place(f"memory://bucket/{random.randrange(1 << 40)}/late")

    def overwritten() -> bool:
        """Let the other machine's note of the first chunk come after this one's."""
        notes = sorted(notes_of(late).glob("[0-9]*.json"))
        note = json.loads(notes[0].read_bytes())
        notes[0].write_bytes(json.dumps(note | {"config": "0123456789abcdef"}).encode())
        return False

    with pytest.raises(DatasetError, match="is written by another ingest with other settings"):
        ingest([str(dump)], late, CONFIG, workers=1, stop=overwritten)
    assert not (late / "manifest.json").exists()


def test_a_store_that_refuses_is_said_and_a_writer_that_fails_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = place("memory://refused/x")

    def fails(target: object) -> None:
        target.write(b"half")  # type: ignore[attr-defined]
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError):
        publish(folder, "a", 0, fails)
    assert not (folder / "a").exists()

    def refused(*_: object, **__: object) -> None:
        raise PermissionError("Access Denied")

    monkeypatch.setattr(type(folder.fs), "put_file", refused)  # type: ignore[attr-defined]
    with pytest.raises(StoreError, match="memory://refused/x/a: Access Denied"):
        publish(folder, "a", 0, lambda target: target.write(b"whole"))


def test_a_publisher_names_its_files_when_they_are_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, real, waiting = [], os.fsync, threading.Event()

    def slow(descriptor: int) -> None:
        assert waiting.wait(LONG), "the second file is written while the first is on its way"
        real(descriptor)
        synced.append(descriptor)

    monkeypatch.setattr(os, "fsync", slow)
    with publish_behind() as publish_later:
        first = publish_later(tmp_path, "a", 3, lambda target: target.write(b"one"))
        assert not (tmp_path / "a").exists()
        publish_later(tmp_path, "b", 0, lambda target: target.write(b"two"))
        waiting.set()
    assert len(synced) == 2
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        "a": b"one",
        "b": b"two",
    }
    assert first == Published("a", 3, 3, datasets.hashlib.sha256(b"one").hexdigest())


def test_notes_of_a_store_are_listed_once_and_read_at_a_time(
    dump: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = place("memory://notes/out")
    calls: list[str] = []
    with pytest.raises(Stopped):
        ingest(
            [str(dump)],
            out,
            CONFIG,
            workers=1,
            stop=lambda: len(list(notes_of(out).glob("[0-9]*.json"))) >= 2,
        )
    folder: Any = notes_of(out)
    real = {name: getattr(type(folder.fs), name) for name in ("ls", "info")}
    for name, method in real.items():

        def counted(
            self: Any, *args: Any, method: Any = method, name: str = name, **more: Any
        ) -> Any:
            calls.append(name)
            return method(self, *args, **more)

        monkeypatch.setattr(type(folder.fs), name, counted)
    notes = read_notes(folder)
    assert [note["chunk"] for note in notes] == [0, 1]
    assert calls.count("ls") <= 2
    # behind a gap: not yet
    (folder / "00003.json").write_bytes((folder / "00001.json").read_bytes())
    assert len(read_notes(folder)) == 2


def test_uploads_leave_the_writer_free_and_only_so_many_are_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = place("memory://uploads/x")
    fs: Any = folder.fs  # type: ignore[attr-defined]
    real, gate, lock, under_way, most = type(fs).put_file, threading.Event(), threading.Lock(), 0, 0

    def slow(self: Any, here: str, path: str, **more: Any) -> None:
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
            if under_way == SETTLING:
                # time enough for one more to begin, if one could
                threading.Timer(0.2, gate.set).start()
        assert gate.wait(LONG), "the others are written while these are uploaded"
        real(self, here, path, **more)
        with lock:
            under_way -= 1

    def fill(number: int, target: Any) -> None:
        target.write(b"%d" % number)

    monkeypatch.setattr(type(fs), "put_file", slow)
    with publish_behind() as publish_later:
        made = [
            publish_later(folder, str(number), 0, partial(fill, number)) for number in range(10)
        ]
    assert most == SETTLING
    assert [(folder / one.name).read_bytes() for one in made] == [
        b"%d" % number for number in range(10)
    ]

    def broken(self: Any, here: str, path: str, **more: Any) -> None:
        raise PermissionError("Access Denied")

    monkeypatch.setattr(type(fs), "put_file", broken)
    with pytest.raises(StoreError, match="Access Denied"), publish_behind() as publish_later:
        publish_later(folder, "no", 0, lambda target: target.write(b"no"))
    assert not (folder / "no").exists()


def test_a_publisher_says_what_went_wrong_with_any_and_leaves_nothing_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(target: Any) -> None:
        target.write(b"half")
        raise RuntimeError("in the middle")

    def both() -> None:
        with publish_behind() as publish_later:
            publish_later(tmp_path, "whole", 0, lambda target: target.write(b"whole"))
            publish_later(tmp_path, "half", 0, breaks)

    with pytest.raises(RuntimeError, match="in the middle"):
        both()
    assert [path.name for path in tmp_path.iterdir()] == ["whole"]

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"), publish_behind() as publish_later:
        publish_later(tmp_path, "other", 0, lambda target: target.write(b"other"))
    assert [path.name for path in tmp_path.iterdir()] == ["whole"]


def test_objects_are_read_whole_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "BLOCK", 1000)
    data = random.Random(1).randbytes(12_345)
    folder = place("memory://objects/x")
    publish(folder, "a", 0, lambda target: target.write(data))
    file = open_remote("memory://objects/x/a")
    chance = random.Random(2)
    assert b"".join(iter(lambda: file.read(chance.randrange(1, 3000)), b"")) == data
    assert file.tell() == len(data)
    file.close()
    begun = file.version
    publish(folder, "a", 0, lambda target: target.write(data[1:]))
    with pytest.raises(ChangedError, match="was replaced"):
        open_remote("memory://objects/x/a", version=begun)
    with pytest.raises(FetchError, match="does not exist"):
        open_remote("memory://objects/x/b")
    with pytest.raises(FetchError, match="is a prefix and not an object"):
        open_remote("memory://objects/x")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        *[
            (f"{scheme}://x", "is not a store that keeps files")
            for scheme in ("nosuch", "data", "dir", "ftp", "local", "")
        ],
        ("https://a/b", "can be read from and not written to"),
    ],
)
def test_places_that_are_none_are_refused(name: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        place(name)
