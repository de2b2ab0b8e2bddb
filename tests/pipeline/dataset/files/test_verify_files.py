"""Files of other machines are hashed once per version, and nothing is written into the dataset."""

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


class Looks:
    """Opens a dataset as one process after the other would; counts the files that each hashes."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.patch = folder, patch
        self.hashed: list[str] = []
        self.files = len(read_manifest(folder)["files"])
        real = verify_files.file_hash

        def counted(path: Path, *rest: Any) -> str:
            self.hashed.append(path.name)
            return real(path, *rest)

        patch.setattr(verify_files, "file_hash", counted)
        patch.setattr(verify_files, "MIN_AGE_SECONDS", -1.0)  # skip the wait of two seconds

    def again(self, **options: Any) -> int:
        self.hashed.clear()
        Dataset.open(self.folder, **options)
        return len(self.hashed)

    def flip_a_bit(self) -> None:
        """Change a shard without its size and its time."""
        shard = self.folder / SHARD
        about, data = shard.stat(), bytearray(shard.read_bytes())
        data[len(data) // 2] ^= 1
        shard.write_bytes(data)
        os.utime(shard, ns=(about.st_atime_ns, about.st_mtime_ns))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return month(tmp_path_factory.mktemp("month"), "2014.05", list(range(12)))


@pytest.fixture
def looks(written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Looks:
    """Copy a dataset, as if another machine had written it."""
    monkeypatch.setenv(verify_files.CACHE_VARIABLE, str(tmp_path / "cache"))
    return Looks(shutil.copytree(written, tmp_path / "copy"), monkeypatch)


def test_a_version_of_a_file_is_hashed_once(looks: Looks, tmp_path: Path) -> None:
    before = datasets.content(looks.folder)
    assert (looks.again(), looks.again()) == (looks.files, 0)
    (mark,) = (tmp_path / "cache" / "verified").iterdir()
    mark.unlink()
    old = mark.with_name("old")
    old.write_text("")
    os.utime(old, (0, 0))
    for path in looks.folder.glob("*.parquet"):
        os.utime(path, (4e9, 4e9))  # a time in the future
    assert (looks.again(), looks.again()) == (looks.files, 0)
    assert not old.exists(), "marks of datasets that are gone do not pile up"
    assert datasets.content(looks.folder) == before


@pytest.mark.parametrize("here", [True, False])
def test_a_change_that_hides_its_time_and_size_is_noticed(
    looks: Looks, tmp_path: Path, here: bool
) -> None:
    """Also of files that this machine wrote, which are not hashed when they are opened."""
    if here:
        looks.folder = month(tmp_path, "2014.05", list(range(6)))
    assert looks.again() == (0 if here else looks.files)
    looks.flip_a_bit()
    with pytest.raises(
        DatasetError, match=rf"{SHARD} does not match the manifest.*its hash differs"
    ):
        looks.again()
    looks.flip_a_bit()
    assert looks.again() == len(read_manifest(looks.folder)["files"])


def test_without_a_cache_files_are_hashed_each_time(
    looks: Looks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    (tmp_path / "file").write_text("")
    monkeypatch.setenv(verify_files.CACHE_VARIABLE, str(tmp_path / "file"))
    assert looks.again() == looks.again() == looks.files
    monkeypatch.delenv(verify_files.CACHE_VARIABLE)
    monkeypatch.setattr(Path, "expanduser", nowhere)
    assert looks.again() == looks.again() == looks.files


def test_a_fresh_file_is_not_marked_and_verify_ignores_marks(looks: Looks) -> None:
    looks.patch.setattr(verify_files, "MIN_AGE_SECONDS", 3600.0)
    assert looks.again() == looks.again() == looks.files
    looks.flip_a_bit()
    verify_files.mark_files_verified(looks.folder, read_manifest(looks.folder))
    assert looks.again() == 0
    assert compare_files(looks.folder) == [f"{SHARD}: does not match its hash"]


def test_hashing_is_shown_and_stopped(looks: Looks) -> None:
    told: list[int] = []
    looks.again(progress=lambda tick: told.append(tick.done))
    assert told[-1] == sum(entry["bytes"] for entry in read_manifest(looks.folder)["files"])
    looks.patch.setenv(verify_files.CACHE_VARIABLE, str(looks.folder.parent / "other"))
    with pytest.raises(Stopped):
        looks.again(stop=lambda: True)
