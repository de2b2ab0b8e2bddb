"""With odd names, foreign text and full machines, a command works or says why not."""

import csv
import errno
import io
import os
import resource
from functools import partial
from pathlib import Path

import pytest

from engine.temporaries import replace_file
from pipeline.cli.main import replace_control_characters, run_and_report_errors
from pipeline.dataset.files.shards import convert_damage_errors
from pipeline.errors import ConfigError, DatasetError
from pipeline.ingest.job import ingest
from pipeline.storage.tables import format_csv
from tests.pipeline import datasets, hostile
from tests.pipeline.cli.conftest import invoke


def test_relative_folders_may_have_a_colon_in_their_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FIANCHETTO_CACHE", str(tmp_path / "cache"))
    hostile.workplace(tmp_path / "run:1")
    (tmp_path / "c:").mkdir()
    datasets.dump(tmp_path / "c:" / "games.pgn", 30)
    month = "run:1/positions/2014.05"
    shares = ["--set", "ingest.test_share=0.3", "--workers", "1"]
    commands = [
        ["ingest", "c:/games.pgn", "--out", "s3:b", *shares],
        ["report", "--checkpoint", "run:1/net", "--positions", "s3:b", "--out", "r:1"],
        ["verify", "s3:b"],
        ["audit", month, "--out", "a:1"],
        ["rows", month, "--out", "rows:1.parquet"],
        ["join", month, "run:1/positions/2014.06", "--out", "j:1"],
    ]
    for words in commands:
        code, _, error = invoke(*words)
        assert code == 0, (words, error)


def test_names_that_are_not_utf8_are_refused_first(tmp_path: Path) -> None:
    bad = os.fsdecode(b"bad\xff.pgn")
    for source, out in ((bad, "out"), ("games.pgn", bad)):
        datasets.dump(tmp_path / source, 3)
        with pytest.raises(ConfigError, match=r"bad.*\.pgn' is not UTF-8: rename"):
            ingest([str(tmp_path / source)], tmp_path / out, workers=1)
        assert not (tmp_path / out).exists()
        (tmp_path / source).unlink()
    code, _, error = invoke("report", "--checkpoint", bad)
    assert code == 2
    assert "is not UTF-8" in error


def test_a_small_address_space_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (2_000_000 << 10, 0))
    code, _, error = invoke("ingest", "games.pgn", "--out", "o")
    assert code == 2
    assert "address space (ulimit -v): raise the limit to 4 GiB" in error


def fail(error: Exception) -> None:
    raise error


def test_errors_of_disks_and_memory_state_their_cause(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train-00000-0.parquet"
    with pytest.raises(OSError, match="No space left"), convert_damage_errors(path):
        raise OSError(errno.ENOSPC, "No space left on device")  # of the kernel cache
    with (
        pytest.raises(DatasetError, match="cannot be read as a shard"),
        convert_damage_errors(path),
    ):
        raise OSError(errno.EIO, "Input/output error")
    for name, expected in ((None, str(path)), ("b", "b")):
        with pytest.raises(OSError, match="No space") as raised, replace_file(path):
            raise OSError(errno.ENOSPC, "No space left on device", name)
        assert raised.value.filename == expected
    for error in (MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")):
        assert run_and_report_errors(partial(fail, error)) == 2
        assert capsys.readouterr().err.startswith("fianchetto: not enough memory: ")
    with pytest.raises(RuntimeError, match="a bug"):
        run_and_report_errors(partial(fail, RuntimeError("a bug")))


def test_errors_print_no_escape_codes(capsys: pytest.CaptureFixture[str]) -> None:
    error = ConfigError("http://a/\x1b[2J\x9b31m\r does not exist")
    assert run_and_report_errors(partial(fail, error)) == 2
    assert capsys.readouterr().err == "fianchetto: http://a/?[2J?31m? does not exist\n"
    assert replace_control_characters("a table\n\tfor é\x07") == "a table\n\tfor é?"


FORMULAS = ('=HYPERLINK("http://evil","x")', "+1+cmd|' /C calc'!A0", "-2+3", "@SUM(1)", "\t=1")


def test_csv_quotes_formulas_and_line_ends() -> None:
    texts = {text: f"'{text}" for text in FORMULAS} | {"engine\r=1+1\n=2": "engine =1+1\n=2"}
    written = format_csv(["name", "points"], [{"name": text, "points": -0.5} for text in texts])
    found = list(csv.DictReader(io.StringIO(written, newline="")))
    assert found == [{"name": text, "points": "-0.5"} for text in texts.values()]
