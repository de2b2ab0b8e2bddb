"""Files from other machines are hashed once per version; nothing is written into the dataset."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from pipeline.dataset.dataset import Dataset
from pipeline.dataset.files import verify_files
from pipeline.dataset.files.manifest import read_manifest
from pipeline.errors import DatasetError, Stopped
from pipeline.validation.verify import compare_files
from tests.pipeline import datasets
from tests.pipeline.months import month

SHARD = "train-00000-0.parquet"


class Opener:
    """Opens a dataset repeatedly, as separate processes would, and counts the hashed files."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.patch = folder, patch
        self.hashed: list[str] = []
        self.files = len(read_manifest(folder)["files"])
        hash_file = verify_files.hash_file

        def hash_and_count(path: Path, *rest: Any) -> str:
            self.hashed.append(path.name)
            return hash_file(path, *rest)

        patch.setattr(verify_files, "hash_file", hash_and_count)
        patch.setattr(verify_files, "MIN_AGE_SECONDS", -1.0)  # skip the wait of two seconds

    def open(self, **options: Any) -> int:
        """Open the dataset; return how many files were hashed."""
        self.hashed.clear()
        Dataset.open(self.folder, **options)
        return len(self.hashed)

    def flip_a_bit(self) -> None:
        """Change a shard without changing its size and modification time."""
        shard = self.folder / SHARD
        info, data = shard.stat(), bytearray(shard.read_bytes())
        data[len(data) // 2] ^= 1
        shard.write_bytes(data)
        os.utime(shard, ns=(info.st_atime_ns, info.st_mtime_ns))


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return month(tmp_path_factory.mktemp("month"), "2014.05", list(range(12)))


@pytest.fixture
def opener(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Opener:
    """Copy a dataset, as if another machine had written it."""
    monkeypatch.setenv(verify_files.CACHE_VARIABLE, str(tmp_path / "cache"))
    return Opener(shutil.copytree(original, tmp_path / "copy"), monkeypatch)


def test_a_version_of_a_file_is_hashed_once(opener: Opener, tmp_path: Path) -> None:
    before = datasets.content(opener.folder)
    assert (opener.open(), opener.open()) == (opener.files, 0)
    (mark,) = (tmp_path / "cache" / "verified").iterdir()
    mark.unlink()
    expired = mark.with_name("expired")
    expired.write_text("")
    os.utime(expired, (0, 0))
    for path in opener.folder.glob("*.parquet"):
        os.utime(path, (4e9, 4e9))  # a time in the future
    assert (opener.open(), opener.open()) == (opener.files, 0)
    assert not expired.exists()
    assert datasets.content(opener.folder) == before


@pytest.mark.parametrize("own", [True, False])
def test_a_change_that_keeps_size_and_time_is_noticed(
    opener: Opener, tmp_path: Path, own: bool
) -> None:
    """Files that this machine wrote are not hashed when they are first opened."""
    if own:
        opener.folder = month(tmp_path, "2014.05", list(range(6)))
    assert opener.open() == (0 if own else opener.files)
    opener.flip_a_bit()
    with pytest.raises(
        DatasetError, match=rf"{SHARD} does not match the manifest.*its hash differs"
    ):
        opener.open()
    opener.flip_a_bit()
    assert opener.open() == len(read_manifest(opener.folder)["files"])


def test_without_a_cache_files_are_always_hashed(
    opener: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    (tmp_path / "file").write_text("")
    monkeypatch.setenv(verify_files.CACHE_VARIABLE, str(tmp_path / "file"))
    assert opener.open() == opener.open() == opener.files
    monkeypatch.delenv(verify_files.CACHE_VARIABLE)
    monkeypatch.setattr(Path, "expanduser", fail)
    assert opener.open() == opener.open() == opener.files


def test_recently_changed_files_are_not_marked_and_verify_ignores_marks(opener: Opener) -> None:
    opener.patch.setattr(verify_files, "MIN_AGE_SECONDS", 3600.0)
    assert opener.open() == opener.open() == opener.files
    opener.flip_a_bit()
    verify_files.mark_files_verified(opener.folder, read_manifest(opener.folder))
    assert opener.open() == 0
    assert compare_files(opener.folder) == [f"{SHARD}: does not match its hash"]


def test_hashing_reports_progress_and_can_be_stopped(opener: Opener) -> None:
    done: list[int] = []
    opener.open(progress=lambda tick: done.append(tick.done))
    assert done[-1] == sum(entry["bytes"] for entry in read_manifest(opener.folder)["files"])
    opener.patch.setenv(verify_files.CACHE_VARIABLE, str(opener.folder.parent / "other"))
    with pytest.raises(Stopped):
        opener.open(stop=lambda: True)
