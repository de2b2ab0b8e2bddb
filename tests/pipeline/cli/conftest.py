"""What tests of the command line share: a command called in this process, and one journey from PGN
to report."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from pipeline.cli.main import main
from tests.conftest import REPOSITORY
from tests.waiting import drop_slow_lines

SAMPLE = REPOSITORY / "datasets" / "sample" / "fianchetto_sample_2000.pgn.zst"
COMMAND = [sys.executable, "-c", "from pipeline.cli.main import main; main()"]


def call(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str
) -> tuple[int, str, str]:
    """Run a command in this process: give exit code, standard output, standard error."""
    monkeypatch.setattr(sys, "argv", ["fianchetto", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out, captured.err


SMALLEST = ["--preset", "fianchetto-xs"]
STEPS = ["--steps", "60", "--batch-size", "64"]
"""Enough to beat chance more than twice, and a sixteenth of the work of the batch that people's
runs have."""


@pytest.fixture(scope="session")
def journey(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> dict[str, Any]:
    """Ingest the embedded sample, train a few steps, report: the last lines as JSON, and the
    folders.

    The workers of one test run share it, and no test changes its folders.
    """
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "journey"
    with FileLock(f"{folder}.lock"):
        if not (folder / "results.json").exists():
            folder.mkdir(exist_ok=True)
            (folder / "results.json").write_text(json.dumps(travelled(folder)))
    results: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return results | {"folder": folder}


ONE_AFTER_ANOTHER = """
import json, sys
from pipeline.cli.main import main
for words in json.loads(sys.argv[1]):
    sys.argv = ["fianchetto", *words, "--json"]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code, words
    print("ended", flush=True)
"""
"""Commands in one process, which starts once."""


def travelled(folder: Path) -> dict[str, Any]:
    """Run the three commands in a folder, and give what each printed last."""
    ingest = ["ingest", str(SAMPLE), "--out", str(folder / "positions"), "--workers", "1"]
    train = [
        "train",
        "--positions",
        str(folder / "positions"),
        "--out",
        str(folder / "net"),
        *STEPS,
        *SMALLEST,
    ]
    report = [
        "report",
        "--checkpoint",
        str(folder / "net"),
        "--positions",
        str(folder / "positions"),
    ]
    commands = json.dumps(
        [ingest, train, [*report, "--limit", "2000", "--out", str(folder / "report")]]
    )
    words = [sys.executable, "-c", ONE_AFTER_ANOTHER, commands]
    done = subprocess.run(words, capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 0, done.stderr
    assert drop_slow_lines(done.stderr) == "", "a command is not quiet without a terminal"
    parts = done.stdout.split("ended\n")
    return {
        name: json.loads(part.splitlines()[-1])
        for name, part in zip(("ingest", "train", "report"), parts, strict=False)
    }
