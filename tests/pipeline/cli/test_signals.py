"""Ctrl-C and SIGTERM: one line, nothing left, what was done kept, and the signal as the exit status."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests import forked
from tests.conftest import REPOSITORY
from tests.pipeline.cli.conftest import COMMAND, SAMPLE, SMALLEST


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_signal_while_training_saves_and_is_the_exit_status(
    number: int, journey: dict[str, Any], tmp_path: Path
) -> None:
    words = ["train", "--positions", str(journey["folder"] / "positions"), "--out", str(tmp_path), "--minutes", "10"]
    words += [*SMALLEST, "--batch-size", "16", "--report-every-steps", "5", "--validation-positions", "64"]
    run = forked.Popen([*COMMAND, *words], stderr=subprocess.PIPE, text=True)
    journal = tmp_path / "metrics.jsonl"
    for _ in range(600):
        if journal.exists() and journal.read_text().count("\n"):
            break
        time.sleep(0.1)
    run.send_signal(number)
    _, error = run.communicate(timeout=60)
    assert run.returncode == 128 + number
    assert "Traceback" not in error
    assert "run the same command to continue" in error
    card = json.loads((tmp_path / "checkpoint.json").read_text())
    assert card["step"] > 0
    assert not card["finished"]


INTERRUPTED = {
    "report": ["report", "--checkpoint", "{net}", "--pgn", str(SAMPLE)],
    "export": ["export", "--checkpoint", "{net}", "--out", "net.onnx"],
    "ingest": ["ingest", str(SAMPLE), "--out", "positions", "--workers", "2"],
    "uci": ["uci", "--evaluator", "uniform"],
}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("command", INTERRUPTED)
def test_a_signal_ends_any_command_with_one_line(
    command: str, number: int, journey: dict[str, Any], tmp_path: Path
) -> None:
    """A moment after it has begun, in the terminal's whole group: no traceback, of its workers neither, and nothing left."""
    words = [word.format(net=journey["folder"] / "net") for word in INTERRUPTED[command]]
    for moment in (1.5, 0.7, 0.3):  # seconds: a quick machine may be done before the first
        run = subprocess.Popen(
            [sys.executable, "-m", "pipeline", *words],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(REPOSITORY), "TMPDIR": str(tmp_path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        time.sleep(moment)
        if run.poll() is None:
            os.killpg(run.pid, number)
        _, error = run.communicate(timeout=60)
        if run.returncode:
            break
        for product in ("positions", "net.onnx"):
            path = tmp_path / product
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    assert "Traceback" not in error, error
    assert run.returncode in (128 + number, -number if number == signal.SIGTERM else 128 + number), error
    assert not list(tmp_path.glob("fianchetto-report-*")), "temporary folders go"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_torch_is_imported_ends_at_once(number: int) -> None:
    """Its C++ code would answer an exception by an abort; here it stands for itself as a module that is being imported."""
    code = (
        "import importlib.machinery as m, os, signal, sys, time, types\n"
        "from pipeline.cli.commands.base import interrupted\n"
        "torch = sys.modules['torch'] = types.ModuleType('torch')\n"
        "torch.__spec__ = m.ModuleSpec('torch', None)\n"
        "torch.__spec__._initializing = True\n"
        f"signal.signal({number}, interrupted)\n"
        f"os.kill(os.getpid(), {number})\n"
        "time.sleep(10)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (128 + number, "fianchetto: interrupted\n")
