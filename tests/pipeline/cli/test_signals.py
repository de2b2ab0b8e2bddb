"""Ctrl-C and SIGTERM: one line, nothing left, what was done kept, and the signal as the exit
status."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import forked
from tests.conftest import REPOSITORY
from tests.pipeline.cli.conftest import COMMAND, SAMPLE, SMALLEST
from tests.waiting import LONG, until


def test_ctrl_c_while_training_saves_and_is_the_exit_status(
    journey: dict[str, Any], tmp_path: Path
) -> None:
    positions = str(journey["folder"] / "positions")
    words = ["train", "--positions", positions, "--out", str(tmp_path), "--minutes", "10"]
    words += [*SMALLEST, "--batch-size", "16"]
    run = forked.Popen([*COMMAND, *words], stderr=subprocess.PIPE, text=True)
    journal = tmp_path / "metrics.jsonl"
    until(lambda: journal.exists() and journal.read_text().count("\n") > 0)
    run.send_signal(signal.SIGINT)
    _, error = run.communicate(timeout=LONG)
    assert run.returncode == 128 + signal.SIGINT
    assert "Traceback" not in error
    assert "run the same command to continue" in error
    card = json.loads((tmp_path / "checkpoint.json").read_text())
    assert card["step"] > 0
    assert not card["finished"]


REPORT = ["report", "--checkpoint", "{net}", "--pgn", str(SAMPLE)]
INGEST = ["ingest", str(SAMPLE), "--out", "positions", "--workers", "2"]
INTERRUPTED = {
    "report": (REPORT, "pipeline.evaluation.report:measure_rows"),
    "ingest": (INGEST, "pipeline.ingest.job:part_name"),
    "uci": (["uci", "--evaluator", "uniform"], "engine.uci.commands:parse_position"),
}
"""Commands, and a function that each calls in the middle of its work."""


@pytest.mark.parametrize(
    ("command", "number"),
    [("report", signal.SIGTERM), ("ingest", signal.SIGINT), ("uci", signal.SIGTERM)],
)
def test_a_signal_ends_any_command_with_one_line(
    command: str, number: int, journey: dict[str, Any], tmp_path: Path
) -> None:
    """In the terminal's whole group: no traceback, of its workers neither, and nothing left."""
    words, function = INTERRUPTED[command]
    words = [word.format(net=journey["folder"] / "net") for word in words]
    held = ["-m", "tests.pipeline.held_command", str(tmp_path / "held"), function]
    run = forked.Popen(
        [sys.executable, *held, *words],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY), "TMPDIR": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert run.stdin is not None
    if command == "uci":
        run.stdin.write("position startpos\n")
        run.stdin.flush()
    until(lambda: (tmp_path / "held").exists() or run.poll() is not None)
    os.killpg(run.pid, number)
    _, error = run.communicate(timeout=LONG)
    assert "Traceback" not in error, error
    by_default = command == "uci" and number == signal.SIGTERM
    assert run.returncode == (-number if by_default else 128 + number), error
    assert not list(tmp_path.glob("fianchetto-report-*")), "temporary folders go"


def test_a_signal_while_torch_is_imported_ends_at_once() -> None:
    """Its C++ code would answer an exception by an abort; a module stands for it here."""
    code = (
        "import importlib.machinery as m, os, signal, sys, time, types\n"
        "from pipeline.cli.commands.base import interrupted\n"
        "torch = sys.modules['torch'] = types.ModuleType('torch')\n"
        "torch.__spec__ = m.ModuleSpec('torch', None)\n"
        "torch.__spec__._initializing = True\n"
        "signal.signal(signal.SIGTERM, interrupted)\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "time.sleep(10)\n"
    )
    done = forked.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True)
    assert done.returncode == 128 + signal.SIGTERM
    assert done.stderr == b"fianchetto: interrupted\n"
