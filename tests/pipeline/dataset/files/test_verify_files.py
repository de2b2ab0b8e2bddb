"""Files are hashed once per version, whatever happens to the cache, and nothing is written into the
dataset."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from pipeline.dataset.files import verify_files
from pipeline.dataset.files.shards import read_manifest
from pipeline.dataset.training_set import members
from pipeline.errors import DatasetError, Stopped
from pipeline.validation.verify import files_differ
from tests.pipeline import datasets
from tests.pipeline.months import month


class Looks:
    """Verifies a dataset as one process after the other would, and counts the files that each
    hashes."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.patch = folder, patch
        self.hashed: list[str] = []
        real = verify_files._hash_file

        def counted(path: Path, *rest: Any) -> str:
            self.hashed.append(path.name)
            return real(path, *rest)

        patch.setattr("pipeline.dataset.files.verify_files._hash_file", counted)
        # not to wait two seconds
        patch.setattr("pipeline.dataset.files.verify_files.SETTLED", -1.0)

    def again(self) -> int:
        self.hashed.clear()
        members(self.folder)
        return len(self.hashed)


@pytest.fixture
def looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Looks:
    monkeypatch.setenv(verify_files.CACHE, str(tmp_path / "cache"))
    return Looks(month(tmp_path, "2014.05", list(range(12))), monkeypatch)


def test_a_version_of_a_file_is_hashed_once(looks: Looks, tmp_path: Path) -> None:
    before = datasets.content(tmp_path / "positions")
    files = len(read_manifest(looks.folder)["files"])
    assert (looks.again(), looks.again()) == (files, 0)
    (memory,) = (tmp_path / "cache" / "hashes").glob("*.json")
    for damage in (b"{", b"[]", b'{"train-00000-0.parquet": 7}', b"\xff", b""):
        memory.write_bytes(damage)
        assert looks.again() == files
        assert looks.again() == 0
    memory.unlink()
    assert looks.again() == files
    assert datasets.content(tmp_path / "positions") == before


def test_a_time_in_the_future_is_remembered_too(
    looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.dataset.files.verify_files.SETTLED", 0.0)
    for path in looks.folder.glob("*.parquet"):
        os.utime(path, (4e9, 4e9))
    assert looks.again() > 0
    assert looks.again() == 0


def test_a_user_without_a_home_is_served(looks: Looks, monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv(verify_files.CACHE)
    monkeypatch.setattr(Path, "expanduser", nowhere)
    files = len(read_manifest(looks.folder)["files"])
    assert (looks.again(), looks.again()) == (files, files)


def test_where_nothing_can_be_remembered_files_are_hashed_each_time(
    looks: Looks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(verify_files.CACHE, str(tmp_path / "file"))
    assert looks.again() == looks.again() > 0


def test_a_change_that_hides_its_time_and_size_is_noticed(looks: Looks) -> None:
    looks.again()
    shard = looks.folder / "train-00000-0.parquet"
    about, data = shard.stat(), bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    os.utime(shard, ns=(about.st_atime_ns, about.st_mtime_ns))
    with pytest.raises(
        DatasetError, match=r"train-00000-0\.parquet cannot be read.*its hash differs"
    ):
        looks.again()
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    assert looks.again() == 1


def test_a_fresh_file_is_not_remembered_and_verify_believes_no_memory(
    looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.dataset.files.verify_files.SETTLED", 3600.0)
    assert looks.again() == looks.again() > 0
    monkeypatch.setattr("pipeline.dataset.files.verify_files.SETTLED", -1.0)
    assert looks.again() > looks.again() == 0
    shard = looks.folder / "train-00000-0.parquet"
    about, data = shard.stat(), bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    (memory,) = (looks.folder.parent.parent / "cache" / "hashes").glob("*.json")
    shard.write_bytes(data)
    lying = json.loads(memory.read_bytes())
    found = shard.stat()
    lying[shard.name][:2] = [
        about.st_size,
        f"{found.st_ino}:{found.st_mtime_ns}:{found.st_ctime_ns}",
    ]
    memory.write_text(json.dumps(lying))
    assert looks.again() == 0
    assert files_differ(looks.folder) == ["train-00000-0.parquet: differs from its hash"]


def test_hashing_is_shown_and_stopped(looks: Looks) -> None:
    told: list[int] = []
    members(looks.folder, lambda tick: told.append(tick.done))
    assert told[-1] == sum(entry["bytes"] for entry in read_manifest(looks.folder)["files"])
    looks.patch.setenv(verify_files.CACHE, str(looks.folder.parent / "other"))
    looks.patch.setattr("pipeline.dataset.files.verify_files.PATIENCE", -1.0)
    with pytest.raises(Stopped):
        members(looks.folder, stop=lambda: True)
