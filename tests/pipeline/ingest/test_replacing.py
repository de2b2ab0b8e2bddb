"""A dataset that is being replaced is complete after any stop, failure or kill."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from engine.progress import Tick
from pipeline.errors import ConfigError, DatasetError, Stopped
from pipeline.executors.local import LocalEngine
from pipeline.ingest import replacing
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from pipeline.ingest.replacing import recover_dataset, replace_dataset
from pipeline.storage.stores import parse_path
from pipeline.validation.verify import compare_files
from tests.pipeline.datasets import content, dump, manifest

OLD, NEW = (IngestConfig(chunk_mib=1, seed=seed) for seed in (0, 1))
anew = partial(replace_dataset, engine=LocalEngine(1))


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
def made(source: Path) -> tuple[Path, Path]:
    """Datasets of the old and of the new settings."""
    folders = source.parent / "old", source.parent / "new"
    for folder, config in zip(folders, (OLD, NEW), strict=True):
        ingest([str(source)], folder, config, workers=1)
    return folders


@pytest.fixture(scope="module")
def undisturbed(made: tuple[Path, Path]) -> dict[str, str]:
    """What a dataset of the new settings holds."""
    return content(made[1])


@pytest.fixture
def out(made: tuple[Path, Path], tmp_path: Path) -> Path:
    """A dataset of the old settings."""
    return Path(shutil.copytree(made[0], tmp_path / "positions" / "small"))


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
    before, ticks = content(out), list[Tick]()
    with pytest.raises(Stopped):
        anew(source, out, NEW, progress=ticks.append, stop=lambda: bool(ticks))
    assert content(out) == before
    (building,) = [path for path in out.parent.iterdir() if path != out]
    done = {
        path.name: path.stat().st_mtime_ns
        for path in (building / ".building").glob("train-*.parquet")
    }
    assert 1 <= len(done) < 3
    assert anew(source, out, NEW)["config"]["seed"] == 1
    assert content(out) == undisturbed
    # finished files are not written again
    assert {name: (out / name).stat().st_mtime_ns for name in done} == done
    assert [path.name for path in out.parent.iterdir()] == ["small"]


@pytest.mark.parametrize(
    ("where", "name", "number"),
    [(Path, "rename", 1), (Path, "rename", 2), (shutil, "rmtree", 1)],
)
def test_killed_while_it_swaps_it_ends_where_an_undisturbed_one_does(
    where: object,
    name: str,
    number: int,
    source: Path,
    made: tuple[Path, Path],
    out: Path,
    undisturbed: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = content(out)
    shutil.copytree(made[1], out.with_name(".small.new"))
    with monkeypatch.context() as patched:
        patched.setattr(replacing, "ingest", lambda *_, **__: manifest(out.with_name(".small.new")))
        patched.setattr(where, name, at(number, getattr(where, name)))
        with pytest.raises(Killed):
            anew(source, out, NEW)
    recover_dataset(out)
    assert compare_files(out) == []
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
        match=r"files that are not part of the dataset \(notes, train-00099-0.parquet\): move",
    ):
        anew(source, out, NEW)
    assert content(out) == before
    (out / "notes").rmdir()
    (out / "train-00099-0.parquet").unlink()
    # without a manifest no file is known to belong to the dataset
    manifest_text = (out / "manifest.json").read_text()
    (out / "manifest.json").write_text("{")
    with pytest.raises(DatasetError, match=r"games\.parquet, "):
        anew(source, out, NEW)
    (out / "manifest.json").write_text(manifest_text)

    def come(tick: object) -> None:
        (out / "late.txt").write_text("somebody's")

    with pytest.raises(DatasetError, match=r"late\.txt"):
        anew(source, out, NEW, progress=come)
    assert (out / "late.txt").read_text() == "somebody's"


@pytest.mark.parametrize("old", ["none", "of another format", "beside it"])
def test_whatever_is_there_a_whole_dataset_takes_its_place(
    old: str, source: Path, out: Path, undisturbed: dict[str, str]
) -> None:
    if old == "of another format":
        text = (out / "manifest.json").read_text()
        text = text.replace('"format_version": 3', '"format_version": 2')
        (out / "manifest.json").write_text(text)
    else:
        shutil.rmtree(out)
    if old == "beside it":  # a replacement with other settings was stopped
        with pytest.raises(Stopped):
            anew(source, out, IngestConfig(chunk_mib=1, seed=2), stop=lambda: True)
    anew(source, out, NEW)
    assert content(out) == undisturbed
    assert [path.name for path in out.parent.iterdir()] == ["small"]


def test_a_dataset_in_a_store_is_not_replaced(source: Path) -> None:
    with pytest.raises(ConfigError, match="object stores cannot rename"):
        anew(source, parse_path("memory://bucket/small"), NEW)
