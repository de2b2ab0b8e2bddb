"""Progress as a terminal shows it: a real pseudo-terminal, and a clock that the test sets."""

import os
import pty
import select
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from engine.progress import Tick
from pipeline.cli import progress

ROOT = Path(__file__).parents[3]
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
    stage(progress, "eval", "positions", 10, 20)
    stage(progress, "eval", "positions", 10, 30)
"""


TRAINING = """
from engine.progress import Tick
from pipeline.cli import progress
progress.DRAW_SECONDS = 0
with progress.bar("train") as show:
    figures = {"step": 0, "loss": 2.3101, "top1": 0.3312, "positions_per_second": 2604.1}
    show(Tick(0, 120, "s", figures))
    show(Tick(50, 120, "s", figures | {"step": 1200}))
    show(Tick(120, 120, "s", figures | {"step": 3000, "validating": 1.0}))
"""


def shown(script: str, columns: int = 140) -> list[str]:
    """Run a script whose standard error is a terminal, and give the lines that are left on it."""
    return [line.split("\r")[-1].rstrip() for line in drawn(script, columns)]


def drawn(script: str, columns: int) -> list[str]:
    """Run a script whose standard error is a terminal, and give its lines with all that was drawn
    on each."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (40, columns))
    environment = os.environ | {"TQDM_MININTERVAL": "0"}
    with subprocess.Popen(
        [sys.executable, "-c", script], stderr=theirs, cwd=ROOT, env=environment
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
    assert shown(STAGES) == [
        f"finetune generation 1: {stage}"
        for stage in (
            "self-play 100 %|██████████| 5.00 games  00:04<00:00",
            "train 100 %|██████████| 3.00 steps  00:02<00:00, loss=2.5",
            "gate 100 %|██████████| 4.00 games  00:03<00:00",
            "gate 100 %|██████████| 2.00 games  00:00<?",
            "eval 100 %|██████████| 20.0 positions  00:10<00:00",
            "eval 100 %|██████████| 30.0 positions  00:20<00:00",
        )
    ]


@pytest.mark.parametrize("columns", [120, 80, 70, 44])
def test_training_says_where_it_is_in_any_width(columns: int) -> None:
    (text,) = drawn(TRAINING, columns)
    frames = [frame.rstrip() for frame in text.split("\r") if frame.strip()]
    whole = (
        "train  42 %|████▏     | 50.0 s  00:00<00:00, step=1.20k, loss=2.31, top1=0.331, "
        "positions_per_second=2.60k"
    )
    assert whole[: columns - 1].rstrip() in frames
    assert any(frame.startswith("train validating 100 %|") for frame in frames)
    assert max(map(len, frames)) < columns, "nothing wraps"


def test_without_a_terminal_a_line_is_printed_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    with progress.bar("ingest") as show:
        for second in range(100):
            clock[0] = float(second)
            show(
                Tick(
                    second * 10**7,
                    2 * 10**9,
                    "B",
                    {"positions": second * 10**5, "positions/s": 1.25e5},
                )
            )
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("fianchetto: ingest  22 %|##2       | 450MB  ")
    assert second.startswith("fianchetto: ingest  45 %|####5     | 900MB  ")
    assert second.endswith(", positions=9.00M, positions/s=125k")
