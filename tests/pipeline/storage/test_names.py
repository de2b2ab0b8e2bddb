"""Names that libraries read as something else, and disks without room: a command works, or one line
says what is wrong."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.temporaries import new_file
from pipeline.cli.main import guarded, printable
from pipeline.dataset.files.shards import reading
from pipeline.dumps.fetch import fetch
from pipeline.errors import DatasetError
from pipeline.ingest.job import ingest
from pipeline.matches.match import Journal
from pipeline.storage.preflight import ConfigError
from tests.conftest import REPOSITORY
from tests.pipeline import datasets, hostile
from tests.pipeline.cli.conftest import call
from tests.pipeline.storage import elsewhere

COMMAND = [sys.executable, "-m", "pipeline"]


def run_command(folder: Path, words: list[str | bytes]) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {
        "PYTHONPATH": str(REPOSITORY),
        "FIANCHETTO_CACHE": str(folder / "cache"),
    }
    return subprocess.run(
        [*COMMAND, *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )


def test_a_relative_folder_whose_name_has_a_colon_is_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FIANCHETTO_CACHE", str(tmp_path / "cache"))
    hostile.workplace(tmp_path / "run:1")
    (tmp_path / "c:").mkdir()
    dump = datasets.dump(tmp_path / "c:" / "games.pgn", 30)
    month, net = "run:1/positions/2014.05", "run:1/net"
    commands = [
        [
            "ingest",
            str(dump.relative_to(tmp_path)),
            "--out",
            "s3:b",
            "--set",
            "ingest.test_share=0.3",
            "--workers",
            "2",
        ],
        ["train", "--positions", "s3:b", "--out", "t:1", *elsewhere.TRAINING],
        ["report", "--checkpoint", net, "--positions", "s3:b", "--out", "r:1"],
        ["verify", "s3:b"],
        ["audit", month, "--out", "a:1"],
        ["rows", month, "--out", "rows:1.parquet"],
        ["join", month, "run:1/positions/2014.06", "--out", "j:1"],
    ]
    for words in commands:
        code, _, error = call(capsys, monkeypatch, *words)
        assert code == 0, (words, error)


NOT_UTF8 = b"bad\xff"


@pytest.mark.parametrize("place", ["dump", "out"])
def test_a_name_that_is_not_utf8_is_refused_before_any_work(tmp_path: Path, place: str) -> None:
    dump = datasets.dump(tmp_path / "games.pgn", 3)
    bad = os.fsdecode(NOT_UTF8 + b".pgn")
    dump.rename(tmp_path / bad) if place == "dump" else None
    source, out = (bad, "out") if place == "dump" else ("games.pgn", bad)
    done = run_command(tmp_path, ["ingest", os.fsencode(source), "--out", os.fsencode(out)])
    assert done.returncode == 2
    assert (
        done.stderr
        == "fianchetto: 'bad\\\\xff.pgn' is not UTF-8: rename the file or folder, as convmv does\n"
    )
    assert not (tmp_path / out).exists()
    with pytest.raises(ConfigError, match="is not UTF-8"):
        ingest([str(tmp_path / source)], tmp_path / out)


@pytest.mark.parametrize("words", [["rows"], ["report", "--checkpoint"]])
def test_no_command_takes_a_name_that_is_not_utf8(tmp_path: Path, words: list[str]) -> None:
    done = run_command(tmp_path, [*words, NOT_UTF8])
    assert done.returncode == 2
    assert "is not UTF-8" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        ["rows", "here/positions/2014.05", "--out", "full/rows.parquet"],
        ["audit", "here/positions/2014.05", "--out", "full/u"],
        ["export", "--checkpoint", "here/net", "--out", "full/e.onnx"],
    ],
    ids=lambda words: " ".join(words[:1]),
)
@pytest.mark.slow
def test_a_full_disk_is_said_with_the_path(tmp_path: Path, words: list[str]) -> None:
    hostile.workplace(tmp_path / "here")
    datasets.dump(tmp_path / "games.pgn", 30)
    (tmp_path / "full").mkdir()
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)); "
        "sys.argv[0] = 'fianchetto'; "
    )
    code += "from pipeline.cli.main import main; main()"
    environment = os.environ | {
        "PYTHONPATH": str(REPOSITORY),
        "FIANCHETTO_CACHE": str(tmp_path / "cache"),
    }
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    # what a command writes first: `export` and `audit` write to a temporary folder
    named = {"export": "model.onnx", "audit": "temporary files cannot be written in"}.get(
        words[0], "full/"
    )
    assert named in done.stderr, done.stderr
    assert "File too large" in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr


def test_a_full_disk_of_the_kernel_cache_is_not_a_damaged_shard(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left"), reading(tmp_path / "train-00000-0.parquet"):
        raise OSError(errno.ENOSPC, "No space left on device")
    with (
        pytest.raises(DatasetError, match="cannot be read as a shard"),
        reading(tmp_path / "train-00000-0.parquet"),
    ):
        raise OSError(errno.EIO, "Input/output error")


def test_an_address_space_in_which_libraries_abort_is_refused(tmp_path: Path) -> None:
    dump = datasets.dump(tmp_path / "games.pgn", 3)
    limited = [
        "bash",
        "-c",
        'ulimit -v 2000000; exec "$@"',
        "bash",
        *COMMAND,
        "ingest",
        str(dump),
        "--out",
        "o",
    ]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        limited, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "address space (ulimit -v): raise the limit to 4 GiB" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        MemoryError("Unable to allocate 3 GiB"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_memory_that_is_not_there_is_said_in_one_line(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    def work() -> None:
        raise error

    assert guarded(work) == 2
    assert capsys.readouterr().err.startswith("fianchetto: not enough memory: ")
    with pytest.raises(RuntimeError, match="a bug"):
        guarded(lambda: (_ for _ in ()).throw(RuntimeError("a bug")))


def test_errors_of_writing_have_the_path(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space") as raised, new_file(tmp_path / "a"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert raised.value.filename == str(tmp_path / "a")
    with pytest.raises(OSError, match="No space") as raised, new_file(tmp_path / "a"):
        raise OSError(errno.ENOSPC, "No space left on device", "b")
    assert raised.value.filename == "b"


def test_errors_of_a_journal_have_the_path() -> None:
    full = Path("/dev/full")
    journal = object.__new__(Journal)
    journal.file = full.open("ab")
    journal.file.write(b"a line")
    with pytest.raises(OSError, match="No space") as raised:
        journal.close()
    assert raised.value.filename == str(full)


def test_names_write_no_escape_codes_into_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> None:
        raise ConfigError("http://a/\x1b[2J\x9b31m\r does not exist")

    assert guarded(work) == 2
    assert capsys.readouterr().err == "fianchetto: http://a/?[2J?31m? does not exist\n"
    assert printable("a table\n\tfor é\x07") == "a table\n\tfor é?"


@pytest.mark.parametrize(
    "word", ["http://[user:secret@a/b", "ftp://user:secret@a/b?key=secret", "user//me:secret@a"]
)
def test_a_word_that_is_no_url_shows_no_password(tmp_path: Path, word: str) -> None:
    with pytest.raises(ConfigError) as raised:
        fetch([word], tmp_path)
    assert "secret" not in str(raised.value)
