"""Progress as a terminal shows it: a real pseudo-terminal, and a clock that the test sets."""

import os
import pty
import select
import subprocess
import sys
import termios
import time

import pytest

from engine.progress import Tick
from pipeline.cli import progress
from tests.conftest import REPOSITORY

STAGES = """
import time
clock = [1000.0]
time.time = lambda: clock[0]
from engine.progress import Tick
from pipeline.cli.progress import bar

def stage(progress, name, unit, first, total, values={}):
    for done in range(first, total + 1):
        clock[0] += 1.0
        progress(Tick(done, total, unit, {"generation": 1, **values}, f"generation 1: {name}"))
    clock[0] += 3600.0  # a stage compiles, or writes, and says nothing

with bar("finetune") as progress:
    stage(progress, "self-play", "games", 1, 5)
    stage(progress, "train", "steps", 1, 3, {"loss": 2.5})
    stage(progress, "gate", "games", 1, 4)
    stage(progress, "gate", "games", 2, 2)
"""


def draw(script: str, columns: int) -> list[str]:
    """Run a script whose standard error is a terminal; return its lines with all that was drawn on
    each."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (40, columns))
    environment = os.environ | {"TQDM_MININTERVAL": "0"}
    with subprocess.Popen(
        [sys.executable, "-c", script], stderr=theirs, cwd=REPOSITORY, env=environment
    ) as process:
        text, over = b"", False
        while not over:
            over = process.poll() is not None  # what was written before is read once more
            while select.select([ours], [], [], 0.1)[0]:
                text += os.read(ours, 65536)
    assert process.returncode == 0
    os.close(ours)
    os.close(theirs)
    lines = text.decode().replace("\x1b[A", "").split("\n")
    return [line.rstrip("\r") for line in lines if line.strip()]


def test_a_finished_stage_keeps_its_line_and_its_time() -> None:
    left = [line.split("\r")[-1].rstrip() for line in draw(STAGES, 140)]
    assert left == [
        "finetune generation 1: self-play 100 %|██████████| 5.00 games  00:04<00:00",
        "finetune generation 1: train 100 %|██████████| 3.00 steps  00:02<00:00, loss=2.5",
        "finetune generation 1: gate 100 %|██████████| 4.00 games  00:03<00:00",
        "finetune generation 1: gate 100 %|██████████| 2.00 games  00:00<?",
    ]


def test_without_a_terminal_a_line_is_printed_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    with progress.bar("ingest") as show:
        for second in range(100):
            clock[0] = float(second)
            figures = {"positions": second * 10**5, "positions/s": 1.25e5}
            show(Tick(second * 10**7, 2 * 10**9, "B", figures))
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("fianchetto: ingest  22 %|##2       | 450MB  ")
    assert second.startswith("fianchetto: ingest  45 %|####5     | 900MB  ")
    assert second.endswith(", positions=9.00M, positions/s=125k")
