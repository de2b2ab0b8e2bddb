"""Replacing a dataset: stopped, failing or killed at any step, a whole dataset lies there, and
nothing of others goes."""

import hashlib
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline.errors import ConfigError, DamagedError, DatasetError, Stopped
from pipeline.executors.local import LocalEngine
from pipeline.ingest import replacing
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from pipeline.ingest.replacing import recover, replace
from pipeline.storage.stores import place
from pipeline.validation.verify import files_differ
from tests.pipeline.datasets import content, dump, manifest

OLD, NEW = (IngestConfig(chunk_mib=1, seed=seed) for seed in (0, 1))
anew = partial(replace, engine=LocalEngine(1))


class Killed(BaseException):
    """What stands for a SIGKILL: nothing catches it."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dump of three chunks."""
    path = tmp_path_factory.mktemp("dump") / "small.pgn"
    dump(path, 40)
    path.write_text(path.read_text() * (1 + (5 << 19) // path.stat().st_size))
    return path


@pytest.fixture(scope="module")
def undisturbed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What a dataset of the new settings holds."""
    out = tmp_path_factory.mktemp("undisturbed") / "small"
    ingest([str(source)], out, NEW, workers=1)
    return content(out)


@pytest.fixture
def out(source: Path, tmp_path: Path) -> Path:
    """A dataset of the old settings."""
    ingest([str(source)], tmp_path / "positions" / "small", OLD, workers=1)
    return tmp_path / "positions" / "small"


def at(number: int, deed: Callable[..., object]) -> Callable[..., object]:
    """Return what does a deed as ever, and is killed instead of the deed number `number`."""
    count = 0

    def instead(*arguments: object, **named: object) -> object:
        nonlocal count
        count += 1
        if count == number:
            raise Killed
        return deed(*arguments, **named)

    return instead


def test_the_old_dataset_stays_until_the_new_one_is_whole(
    source: Path, out: Path, undisturbed: dict[str, str]
) -> None:
    before = content(out)
    with pytest.raises(Stopped):
        anew(source, out, NEW, stop=lambda: True)
    assert content(out) == before
    (building,) = [path for path in out.parent.iterdir() if path != out]
    done = {
        path.name: path.stat().st_mtime_ns
        for path in (building / ".building").glob("train-*.parquet")
    }
    assert 1 <= len(done) < 3
    assert anew(source, out, NEW)["config"]["seed"] == 1
    assert content(out) == undisturbed
    # they were not made again
    assert {name: (out / name).stat().st_mtime_ns for name in done} == done
    assert [path.name for path in out.parent.iterdir()] == ["small"]


@pytest.mark.parametrize(
    ("where", "name", "number"),
    [(Path, "rename", 1), (Path, "rename", 2), (Path, "unlink", 1), (shutil, "rmtree", 1)],
)
def test_killed_while_it_swaps_it_ends_where_an_undisturbed_one_does(
    where: object,
    name: str,
    number: int,
    source: Path,
    out: Path,
    undisturbed: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = content(out)
    ingest([str(source)], out.with_name(".small.new"), NEW, workers=1)
    with monkeypatch.context() as patched:
        patched.setattr(replacing, "ingest", lambda *_, **__: manifest(out.with_name(".small.new")))
        patched.setattr(where, name, at(number, getattr(where, name)))
        with pytest.raises(Killed):
            anew(source, out, NEW)
    recover(out)
    assert files_differ(out) == []
    assert content(out) in (before, undisturbed)
    anew(source, out, NEW)
    assert content(out) == undisturbed
    assert [path.name for path in out.parent.iterdir()] == ["small"]


def test_what_is_not_of_the_dataset_is_never_deleted(source: Path, out: Path) -> None:
    (out / "train-00099-0.parquet").write_text("somebody's")
    (out / "notes").mkdir()
    before = content(out)
    with pytest.raises(
        DatasetError,
        match=r"holds files that are not of the dataset \(notes, train-00099-0.parquet\): move",
    ):
        anew(source, out, NEW)
    assert content(out) == before
    (out / "notes").rmdir()
    (out / "train-00099-0.parquet").unlink()
    # what was recorded is lost, so nothing else is known to be ours
    (out / "manifest.json").write_text("{")
    with pytest.raises(DatasetError, match=r"games\.parquet, "):
        anew(source, out, NEW)


def test_behind_a_link_the_folder_that_it_leads_to_is_replaced(
    source: Path, out: Path, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(out)
    for _ in range(2):
        anew(source, tmp_path / "link", NEW)
        recover(tmp_path / "link")
        assert (tmp_path / "link").is_symlink()
        assert content(out) == undisturbed
        assert [path.name for path in out.parent.iterdir()] == ["small"]


def test_a_half_deleted_dataset_does_not_come_back(
    source: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(replacing, "shutil", SimpleNamespace(rmtree=at(1, shutil.rmtree)))
        with pytest.raises(Killed):
            anew(source, out, NEW)
    out.rename(out.with_name("elsewhere"))
    recover(out)
    assert [path.name for path in out.parent.iterdir()] == ["elsewhere"]


def test_what_came_while_it_was_built_is_never_deleted(source: Path, out: Path) -> None:
    def come(tick: object) -> None:
        (out / "late.txt").write_text("somebody's")

    with pytest.raises(DatasetError, match=r"late\.txt"):
        anew(source, out, NEW, progress=come)
    assert (out / "late.txt").read_text() == "somebody's"
    assert manifest(out)["config"]["seed"] == 0


def test_a_build_with_other_settings_is_begun_again(
    source: Path, out: Path, undisturbed: dict[str, str]
) -> None:
    with pytest.raises(Stopped):
        anew(source, out, IngestConfig(chunk_mib=1, seed=2), stop=lambda: True)
    anew(source, out, NEW)
    assert content(out) == undisturbed
    assert [path.name for path in out.parent.iterdir()] == ["small"]


def test_what_ingest_ignores_is_kept(source: Path, out: Path, undisturbed: dict[str, str]) -> None:
    for name in (".gitkeep", ".DS_Store", ".nfs00000000abcdef"):
        (out / name).write_text(name)
    anew(source, out, NEW)
    assert content(out) == undisturbed | {
        name: hashlib.sha256(name.encode()).hexdigest() for name in (".gitkeep", ".DS_Store")
    }
    assert [path.name for path in out.parent.iterdir()] == ["small"]


@pytest.mark.parametrize("old", ["none", "unfinished", "of another format"])
def test_whatever_is_there_a_whole_dataset_takes_its_place(
    old: str, source: Path, tmp_path: Path, undisturbed: dict[str, str]
) -> None:
    out = tmp_path / "positions" / "small"
    if old == "unfinished":
        with pytest.raises(Stopped):
            ingest([str(source)], out, OLD, workers=1, stop=lambda: True)
    elif old == "of another format":
        ingest([str(source)], out, OLD, workers=1)
        text = (
            (out / "manifest.json")
            .read_text()
            .replace('"format_version": 3', '"format_version": 2')
        )
        (out / "manifest.json").write_text(text)
    anew(source, out, NEW)
    assert content(out) == undisturbed
    assert [path.name for path in out.parent.iterdir()] == ["small"]


def test_of_a_damaged_dump_what_is_before_the_damage_takes_its_place(
    source: Path, out: Path, tmp_path: Path
) -> None:
    import gzip

    packed = gzip.compress(source.read_bytes())
    (tmp_path / "small.pgn.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(DamagedError):
        anew(tmp_path / "small.pgn.gz", out, NEW)
    assert manifest(out)["sources"][0]["damage"]
    assert files_differ(out) == []


def test_a_dataset_in_a_store_is_not_replaced(source: Path) -> None:
    with pytest.raises(ConfigError, match="a store has no rename"):
        anew(source, place("memory://bucket/small"), NEW)
