"""Temporary files: unique names, and deletion of abandoned files."""

import os
import time
from pathlib import Path

import pytest

from engine import temporaries
from engine.temporaries import (
    ABANDONED_SECONDS,
    is_abandoned,
    is_temporary,
    list_abandoned,
    replace_file,
    temporary_name,
)
from tests.processes import UNUSED_PID


def test_temporary_names_are_unique_and_recognized() -> None:
    names = {temporary_name("train-00000-0.parquet") for _ in range(1000)}
    assert len(names) == 1000
    for name in (*names, temporary_name("ü" * 400)):
        assert is_temporary(name)
        assert len(name.encode()) < 256
    for name in (".x.tmp", "x.fianchetto-01234567-1-01234567.tmp"):
        assert not is_temporary(name)


def test_only_files_of_dead_writers_are_abandoned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, elsewhere = temporaries.machine_id(), "0" * 8
    cases = {
        f".mine.fianchetto-{here}-{os.getpid()}-00000000.tmp": False,
        f".dead.fianchetto-{here}-{UNUSED_PID}-00000000.tmp": True,
        # of another machine
        f".other.fianchetto-{elsewhere}-{UNUSED_PID}-00000000.tmp": False,
        f".stranger.{UNUSED_PID}.tmp": False,
        ".notes.tmp": False,
    }
    for name in cases:
        (tmp_path / name).touch()
    dead = {name for name, is_dead in cases.items() if is_dead}
    assert {path.name for path in list_abandoned(tmp_path)} == dead
    late = time.time() + ABANDONED_SECONDS + 60
    monkeypatch.setattr(time, "time", lambda: late)
    temporary = {name for name in cases if "fianchetto" in name}
    assert {path.name for path in list_abandoned(tmp_path)} == temporary
    assert not is_abandoned(tmp_path / f".no-more.fianchetto-{elsewhere}-1-00000000.tmp")


def test_a_writer_deletes_the_files_of_killed_writers(tmp_path: Path) -> None:
    abandoned = temporary_name("report.json").replace(f"-{os.getpid()}-", f"-{UNUSED_PID}-")
    ours, other = temporary_name("in progress"), ".report.json.tmp"
    for name in (abandoned, ours, other):
        (tmp_path / name).touch()
    for name in ("a", os.fsdecode(b"\xff")):
        with replace_file(tmp_path / name) as file:
            file.write(b"1")
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"a", os.fsdecode(b"\xff"), ours, other}
