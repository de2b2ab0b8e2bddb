"""Every job survives kills and full disks, and refuses folders that belong to something else."""

import os
import shutil
import signal
import stat
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from engine.errors import UserError
from pipeline.errors import ConfigError
from pipeline.storage.job_folder import (
    AUDIT_KIND,
    CHECKPOINT_KIND,
    DATASET_KIND,
    REPORT_KIND,
    JobFolder,
    is_of_kind,
    publish_result,
    require_apart,
)
from pipeline.storage.stores import parse_path
from tests.pipeline import datasets
from tests.pipeline.storage.jobs import FINISHED, JOBS, SEEDED, content, count, make_inputs, start

NAMES = [pytest.param(name, marks=[pytest.mark.slow] * (name == "imitate")) for name in JOBS]
FOREIGN_FILES = ("report.txt", "train-00000-0.parquet", "x/.y.tmp")


class RefusedError(UserError):
    """The refusal of the folders in these tests."""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="module")
def undisturbed(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a function that runs a job and returns its folder and what `count` returns."""
    made: dict[str, tuple[Path, int, int]] = {}

    def get(name: str) -> tuple[Path, int, int]:
        if name not in made:
            out = tmp_path_factory.mktemp("undisturbed") / name
            made[name] = (out, *count(name, inputs, out))
        return made[name]

    return get


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "kills", [1, pytest.param(25, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
)
def test_a_killed_job_ends_with_the_same_files(
    name: str, kills: int, inputs: Path, undisturbed: Any, tmp_path: Path
) -> None:
    made, operations, _ = undisturbed(name)
    step = max(1, operations // kills)
    for kill_at in range((step + 1) // 2, operations + 1, step):
        out = tmp_path / str(kill_at)
        assert start(name, inputs, out, kill_at).wait() == -signal.SIGKILL
        if kills > 1:
            start(name, inputs, out, 1 + kill_at % 7).wait()
        assert start(name, inputs, out).wait() == FINISHED
        assert content(out) == content(made), f"killed at {kill_at}"
        assert not list(out.rglob("*.tmp"))


@pytest.mark.parametrize("name", NAMES)
def test_a_job_resumes_after_a_full_disk(
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
def test_no_job_writes_into_a_foreign_folder(name: str, inputs: Path, tmp_path: Path) -> None:
    for foreign in FOREIGN_FILES:
        out = tmp_path / foreign.replace("/", "-")
        (out / foreign).parent.mkdir(parents=True)
        (out / foreign).write_bytes(b"foreign")
        entry = foreign.partition("/")[0]
        with pytest.raises(UserError, match=f"holds '{entry}', which is not part of"):
            JOBS[name](inputs, out)
        assert datasets.content(out).keys() == {foreign}
        assert (out / foreign).read_bytes() == b"foreign"
    publish_result(tmp_path / "audit", AUDIT_KIND, "audit.json", {}, {})
    before = datasets.content(tmp_path / "audit")
    with pytest.raises(UserError, match="an audit, which is not part of"):
        JOBS[name](inputs, tmp_path / "audit")
    assert datasets.content(tmp_path / "audit") == before


def test_a_result_is_not_published_without_its_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        publish_result(tmp_path, REPORT_KIND, "report.json", {}, {"missing/file": b""})
    assert not (tmp_path / "report.json").exists()


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


def test_foreign_files_beside_a_killed_build_are_kept(inputs: Path, tmp_path: Path) -> None:
    out, made = tmp_path / "out", tmp_path / "made"
    JOBS["ingest"](inputs, made)
    assert start("ingest", inputs, out, 30).wait() == -signal.SIGKILL
    (out / "notes.txt").write_text("foreign")
    (out / "games.parquet").write_text("foreign too")
    with pytest.raises(UserError, match=r"games\.parquet is not part of this build: move it away"):
        JOBS["ingest"](inputs, out)
    assert (out / "games.parquet").read_text() == "foreign too"
    (out / "games.parquet").unlink()
    JOBS["ingest"](inputs, out)
    assert content(out).keys() - content(made).keys() == {"notes.txt"}
    assert content(out).items() >= content(made).items()


@pytest.mark.parametrize(
    ("files", "words"),
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
def test_foreign_files_are_named(files: dict[str, str], words: str, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    if not words:
        JobFolder(tmp_path, CHECKPOINT_KIND, RefusedError).check()
        return
    with (
        pytest.raises(RefusedError, match=words),
        JobFolder(tmp_path, CHECKPOINT_KIND, RefusedError).lock(),
    ):
        raise AssertionError
    assert datasets.content(tmp_path).keys() | {".lock"} == files.keys() | {".lock"}


def test_links_and_stores_are_checked_like_folders(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    (tmp_path / "there").symlink_to(tmp_path / "full")
    (tmp_path / "gone").symlink_to(tmp_path / "nothing")
    file = "a file or a broken link"
    for name, problem in (("there", "holds 'x'"), ("gone", file), ("full/x", file)):
        with pytest.raises(RefusedError, match=problem):
            JobFolder(tmp_path / name, DATASET_KIND, RefusedError).check()
    folder = parse_path("memory://claims/out")
    JobFolder(folder, DATASET_KIND, RefusedError).check()
    (folder / "foreign.parquet").write_bytes(b"x")
    with pytest.raises(RefusedError, match=r"holds 'foreign.parquet'"):
        JobFolder(folder, DATASET_KIND, RefusedError).check()
    JobFolder(folder, DATASET_KIND, RefusedError).claim({})
    JobFolder(folder, DATASET_KIND, RefusedError).check()


def test_an_output_inside_an_input_is_refused(tmp_path: Path) -> None:
    read = tmp_path / "positions"
    read.mkdir()
    (tmp_path / "link").symlink_to(read)
    require_apart(tmp_path / "positions-2", [read, tmp_path / "elsewhere"], RefusedError)
    for out in (read, read / "sub", tmp_path / "link", tmp_path / "x" / ".." / "positions"):
        with pytest.raises(RefusedError, match=r"is input .*positions or inside it"):
            require_apart(out, [read], RefusedError)
    with pytest.raises(RefusedError, match="or inside it"):
        require_apart(parse_path("memory://a/b"), [parse_path("memory://a/b/")], RefusedError)


def test_a_job_that_fails_before_its_first_note_leaves_nothing(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path / "new" / "deep", DATASET_KIND, RefusedError)

    def fail(note: bool) -> None:
        with folder.lock():
            folder.claim({"a": {"b": 1}})
            folder.make_notes_folder()
            if note:
                (folder.notes / "00000.json").write_text("{}")
            raise RefusedError("no")

    with pytest.raises(RefusedError, match="no"):
        fail(note=False)
    assert not list(tmp_path.iterdir())
    with pytest.raises(RefusedError, match="no"):
        fail(note=True)
    assert folder.has_notes()
    assert is_of_kind(folder.out, DATASET_KIND)
    assert folder.list_differences({"a": {"b": 2}, "c": 3}) == [
        "a.b was 1, not 2",
        "c was None, not 3",
    ]
