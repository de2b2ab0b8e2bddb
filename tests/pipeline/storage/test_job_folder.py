"""Every job, killed at any file operation, on a full disk and in folders of others."""

import os
import shutil
import signal
import stat
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from engine.errors import UserError
from pipeline.storage.job_folder import (
    AUDIT,
    CHECKPOINT,
    DATASET,
    JobFolder,
    is_of_kind,
    publish_result,
    require_apart,
)
from pipeline.storage.stores import parse_path
from tests.pipeline import datasets
from tests.pipeline.storage.jobs import FINISHED, JOBS, SEEDED, content, count, make_inputs, start

NAMES = [pytest.param(name, marks=[pytest.mark.slow] * (name == "imitate")) for name in JOBS]
THEIRS = ("report.txt", "train-00000-0.parquet", "x/.y.tmp")


class NoError(UserError):
    """What these tests are refused with."""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="module")
def undisturbed(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a function that gives a job's folder, its file operations and synchronised files."""
    made: dict[str, tuple[Path, int, int]] = {}

    def get(name: str) -> tuple[Path, int, int]:
        if name not in made:
            out = tmp_path_factory.mktemp("undisturbed") / name
            made[name] = (out, *count(name, inputs, out))
        return made[name]

    return get


@pytest.mark.parametrize("name", NAMES)
def test_a_killed_job_ends_with_the_same_files(
    name: str, inputs: Path, undisturbed: Any, tmp_path: Path
) -> None:
    made, operations, _ = undisturbed(name)
    out = tmp_path / "out"
    assert start(name, inputs, out, operations // 2).wait() == -signal.SIGKILL
    assert start(name, inputs, out).wait() == FINISHED
    assert content(out) == content(made)
    assert not list(out.rglob("*.tmp"))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", JOBS)
def test_killed_at_any_file_operation_it_ends_with_the_same_files(
    name: str, inputs: Path, undisturbed: Any, tmp_path: Path
) -> None:
    made, operations, _ = undisturbed(name)
    step = max(1, operations // 25)
    for kill_at in range(1, operations + 1, step):
        out = tmp_path / str(kill_at)
        assert start(name, inputs, out, kill_at).wait() == -signal.SIGKILL
        start(name, inputs, out, 1 + kill_at % 7).wait()
        assert start(name, inputs, out).wait() == FINISHED
        assert content(out) == content(made), f"killed at {kill_at}"


@pytest.mark.parametrize("name", NAMES)
def test_a_full_disk_is_one_line_and_the_job_goes_on(
    name: str, inputs: Path, undisturbed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _, synced = undisturbed(name)
    real = os.fsync
    for full_from in {max(1, synced // 2), *([1] if name == "ingest" else [])}:
        out, calls = tmp_path / str(full_from), 0

        def full(descriptor: int, full_from: int = full_from) -> None:
            nonlocal calls
            calls += stat.S_ISREG(os.fstat(descriptor).st_mode)
            if calls >= full_from:
                raise OSError(28, "No space left on device")
            real(descriptor)

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(UserError, match="No space left on device") as raised:
                JOBS[name](inputs, out)
        assert "\n" not in str(raised.value)
        assert not list(tmp_path.rglob("*.tmp"))
        JOBS[name](inputs, out)
        assert content(out) == content(made)


@pytest.mark.parametrize("name", JOBS)
def test_no_job_writes_into_a_folder_of_others(name: str, inputs: Path, tmp_path: Path) -> None:
    for theirs in THEIRS:
        out = tmp_path / theirs.replace("/", "-")
        (out / theirs).parent.mkdir(parents=True)
        (out / theirs).write_bytes(b"theirs")
        with pytest.raises(
            UserError, match=f"holds '{theirs.partition('/')[0]}', which is not part of"
        ):
            JOBS[name](inputs, out)
        assert datasets.content(out).keys() == {theirs}
        assert (out / theirs).read_bytes() == b"theirs"
    publish_result(tmp_path / "audit", AUDIT, "audit.json", {}, {})
    before = datasets.content(tmp_path / "audit")
    with pytest.raises(UserError, match="an audit, which is not part of"):
        JOBS[name](inputs, tmp_path / "audit")
    assert datasets.content(tmp_path / "audit") == before


@pytest.mark.parametrize("name", SEEDED)
def test_other_settings_and_a_second_process_are_refused(
    name: str, inputs: Path, undisturbed: Any, tmp_path: Path
) -> None:
    made, _, _ = undisturbed(name)
    out = Path(shutil.copytree(made, tmp_path / "finished"))
    with FileLock(out / ".lock"), pytest.raises(UserError, match="another process is writing"):
        JOBS[name](inputs, out)
    JOBS[name](inputs, out)
    assert content(out) == content(made)
    before = datasets.content(out)
    with pytest.raises(UserError, match=r"other settings|other inputs|a different run"):
        SEEDED[name](inputs, out, seed=1)
    assert datasets.content(out) == before


def test_files_of_others_beside_a_killed_build_stay(inputs: Path, tmp_path: Path) -> None:
    out, made = tmp_path / "out", tmp_path / "made"
    JOBS["ingest"](inputs, made)
    assert start("ingest", inputs, out, 30).wait() == -signal.SIGKILL
    (out / "notes.txt").write_text("theirs")
    (out / "games.parquet").write_text("theirs too")
    with pytest.raises(UserError, match=r"games\.parquet is not part of this build: move it away"):
        JOBS["ingest"](inputs, out)
    assert (out / "games.parquet").read_text() == "theirs too"
    (out / "games.parquet").unlink()
    JOBS["ingest"](inputs, out)
    assert content(out).keys() - content(made).keys() == {"notes.txt"}
    assert content(out).items() >= content(made).items()


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, ""),
        ({".DS_Store": "", "lost+found/.keep": "", ".lock": ""}, ""),
        ({"checkpoint.json": "", "notes.txt": ""}, ""),
        ({".hidden": ""}, "holds '.hidden', which is not part of a checkpoint"),
        ({".lock": "somebody's words"}, "holds '.lock'"),
        ({".x.123.tmp": ""}, "holds '.x.123.tmp'"),
        ({".building/mine": ""}, "holds '.building'"),
        ({"manifest.json": "{}", "train-00000-0.parquet": ""}, "holds 'manifest.json', a dataset"),
        ({"job.json": "[]"}, "holds 'job.json', which is not part of"),
        ({"job.json": '{"kind": "a match", "identity": {}}'}, "holds 'job.json', a match, which"),
    ],
)
def test_files_of_others_are_named(files: dict[str, str], says: str, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    if not says:
        JobFolder(tmp_path, CHECKPOINT, NoError).check()
        return
    with pytest.raises(NoError, match=says), JobFolder(tmp_path, CHECKPOINT, NoError).lock():
        raise AssertionError
    assert datasets.content(tmp_path).keys() | {".lock"} == files.keys() | {".lock"}


def test_links_and_stores_are_checked_as_folders_are(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    (tmp_path / "there").symlink_to(tmp_path / "full")
    (tmp_path / "gone").symlink_to(tmp_path / "nothing")
    file = "a file or a broken link"
    for name, problem in (("there", "holds 'x'"), ("gone", file), ("full/x", file)):
        with pytest.raises(NoError, match=problem):
            JobFolder(tmp_path / name, DATASET, NoError).check()
    folder = parse_path("memory://claims/out")
    JobFolder(folder, DATASET, NoError).check()
    (folder / "theirs.parquet").write_bytes(b"x")
    with pytest.raises(NoError, match=r"holds 'theirs.parquet'"):
        JobFolder(folder, DATASET, NoError).check()
    JobFolder(folder, DATASET, NoError).claim({})
    JobFolder(folder, DATASET, NoError).check()


def test_an_output_is_not_inside_an_input(tmp_path: Path) -> None:
    read = tmp_path / "positions"
    read.mkdir()
    (tmp_path / "link").symlink_to(read)
    require_apart(tmp_path / "positions-2", [read, tmp_path / "elsewhere"], NoError)
    for out in (read, read / "sub", tmp_path / "link", tmp_path / "x" / ".." / "positions"):
        with pytest.raises(NoError, match=r"is input .*positions or inside it"):
            require_apart(out, [read], NoError)
    with pytest.raises(NoError, match="or inside it"):
        require_apart(parse_path("memory://a/b"), [parse_path("memory://a/b/")], NoError)


def test_a_job_that_fails_before_its_first_result_leaves_nothing(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path / "new" / "deep", DATASET, NoError)

    def fail(note: bool) -> None:
        with folder.lock():
            folder.claim({"a": {"b": 1}})
            folder.make_notes_folder()
            if note:
                (folder.notes / "00000.json").write_text("{}")
            raise NoError("no")

    with pytest.raises(NoError, match="no"):
        fail(note=False)
    assert not list(tmp_path.iterdir())
    with pytest.raises(NoError, match="no"):
        fail(note=True)
    assert folder.has_notes()
    assert is_of_kind(folder.out, DATASET)
    assert folder.list_differences({"a": {"b": 2}, "c": 3}) == [
        "a.b was 1, not 2",
        "c was None, not 3",
    ]
