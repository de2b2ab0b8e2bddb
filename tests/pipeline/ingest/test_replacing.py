"""A dataset that is being replaced stays complete after any stop, failure or kill."""

import itertools
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
replace_locally = partial(replace_dataset, engine=LocalEngine(1))


class Killed(BaseException):
    """Raised in place of SIGKILL, so that nothing catches it."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dump of three chunks."""
    path = tmp_path_factory.mktemp("dump") / "small.pgn"
    dump(path, 40)
    path.write_text(path.read_text() * (1 + (5 << 19) // path.stat().st_size))
    return path


@pytest.fixture(scope="module")
def old_and_new(source: Path) -> tuple[Path, Path]:
    """Return datasets with the old and with the new settings."""
    folders = source.parent / "old", source.parent / "new"
    for folder, config in zip(folders, (OLD, NEW), strict=True):
        ingest([str(source)], folder, config, workers=1)
    return folders


@pytest.fixture(scope="module")
def expected(old_and_new: tuple[Path, Path]) -> dict[str, str]:
    """Return the content of the dataset with the new settings."""
    return content(old_and_new[1])


@pytest.fixture
def out(old_and_new: tuple[Path, Path], tmp_path: Path) -> Path:
    """Return a copy of the dataset with the old settings."""
    return Path(shutil.copytree(old_and_new[0], tmp_path / "positions" / "small"))


def killed_at_call(number: int, function: Callable[..., object]) -> Callable[..., object]:
    """Return a function that raises Killed in place of a given call of another function."""
    calls = itertools.count(1)

    def call(*arguments: object, **options: object) -> object:
        if next(calls) == number:
            raise Killed
        return function(*arguments, **options)

    return call


def test_the_old_dataset_stays_until_the_new_one_is_complete(
    source: Path, out: Path, expected: dict[str, str]
) -> None:
    before, ticks = content(out), list[Tick]()
    with pytest.raises(Stopped):
        replace_locally(source, out, NEW, progress=ticks.append, stop=lambda: bool(ticks))
    assert content(out) == before
    (unfinished,) = [path for path in out.parent.iterdir() if path != out]
    done = {
        path.name: path.stat().st_mtime_ns
        for path in (unfinished / ".building").glob("train-*.parquet")
    }
    assert 1 <= len(done) < 3
    assert replace_locally(source, out, NEW)["config"]["seed"] == 1
    assert content(out) == expected
    # finished files are not written again
    assert {name: (out / name).stat().st_mtime_ns for name in done} == done
    assert [path.name for path in out.parent.iterdir()] == ["small"]


@pytest.mark.parametrize(
    ("owner", "name", "number"),
    [(Path, "rename", 1), (Path, "rename", 2), (shutil, "rmtree", 1)],
)
def test_a_replacement_killed_while_it_renames_or_deletes_is_continued(
    owner: object,
    name: str,
    number: int,
    source: Path,
    old_and_new: tuple[Path, Path],
    out: Path,
    expected: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = content(out)
    shutil.copytree(old_and_new[1], out.with_name(".small.new"))
    with monkeypatch.context() as patched:
        patched.setattr(replacing, "ingest", lambda *_, **__: manifest(out.with_name(".small.new")))
        patched.setattr(owner, name, killed_at_call(number, getattr(owner, name)))
        with pytest.raises(Killed):
            replace_locally(source, out, NEW)
    recover_dataset(out)
    assert compare_files(out) == []
    assert content(out) in (before, expected)
    replace_locally(source, out, NEW)
    assert content(out) == expected
    assert [path.name for path in out.parent.iterdir()] == ["small"]


def test_files_that_are_not_of_the_dataset_are_never_deleted(source: Path, out: Path) -> None:
    (out / "train-00099-0.parquet").write_text("somebody's")
    (out / "notes").mkdir()
    before = content(out)
    with pytest.raises(
        DatasetError,
        match=r"files that are not part of the dataset \(notes, train-00099-0.parquet\): move",
    ):
        replace_locally(source, out, NEW)
    assert content(out) == before
    (out / "notes").rmdir()
    (out / "train-00099-0.parquet").unlink()
    # without a manifest no file is known to belong to the dataset
    manifest_text = (out / "manifest.json").read_text()
    (out / "manifest.json").write_text("{")
    with pytest.raises(DatasetError, match=r"games\.parquet, "):
        replace_locally(source, out, NEW)
    (out / "manifest.json").write_text(manifest_text)

    def add_file(tick: object) -> None:
        (out / "late.txt").write_text("somebody's")

    with pytest.raises(DatasetError, match=r"late\.txt"):
        replace_locally(source, out, NEW, progress=add_file)
    assert (out / "late.txt").read_text() == "somebody's"


@pytest.mark.parametrize("old", ["none", "of another format", "beside it"])
def test_an_old_format_or_an_earlier_replacement_does_not_prevent_replacing(
    old: str, source: Path, out: Path, expected: dict[str, str]
) -> None:
    if old == "of another format":
        text = (out / "manifest.json").read_text()
        text = text.replace('"format_version": 3', '"format_version": 2')
        (out / "manifest.json").write_text(text)
    else:
        shutil.rmtree(out)
    if old == "beside it":  # a replacement with other settings was stopped
        with pytest.raises(Stopped):
            replace_locally(source, out, IngestConfig(chunk_mib=1, seed=2), stop=lambda: True)
    replace_locally(source, out, NEW)
    assert content(out) == expected
    assert [path.name for path in out.parent.iterdir()] == ["small"]


def test_a_dataset_in_a_store_is_not_replaced(source: Path) -> None:
    with pytest.raises(ConfigError, match="object stores cannot rename"):
        replace_locally(source, parse_path("memory://bucket/small"), NEW)
