"""Progress bars as a terminal shows them: a real pseudo-terminal, and a clock that the test sets."""

import os
import pty
import re
import select
import subprocess
import sys
import termios
from pathlib import Path

ROOT = Path(__file__).parents[3]
STAGES = """
import time
clock = [1000.0]
time.time = lambda: clock[0]
from engine.progress import Tick
from pipeline.cli.progress import bar

def stage(progress, unit, first, total, values={}):
    for done in range(first, total + 1):
        clock[0] += 1.0
        progress(Tick(done, total, unit, {"generation": 1, **values}))
    clock[0] += 3600.0  # a stage compiles, or writes, and says nothing

with bar("finetune") as progress:
    stage(progress, "games", 1, 5)
    stage(progress, "steps", 1, 3, {"loss": 2.5})
    stage(progress, "games", 1, 4)
    stage(progress, "games", 2, 2)
    stage(progress, "positions", 10, 20)
    stage(progress, "positions", 10, 30)
"""


def shown(script: str) -> list[str]:
    """Run a script whose standard error is a terminal, and give the lines that are left on it."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (40, 140))
    environment = os.environ | {"TQDM_MININTERVAL": "0"}
    with subprocess.Popen([sys.executable, "-c", script], stderr=theirs, cwd=ROOT, env=environment) as process:
        text, over = b"", False
        while not over:
            over = process.poll() is not None  # what was written before is read once more
            while select.select([ours], [], [], 0.1)[0]:
                text += os.read(ours, 65536)
    assert process.returncode == 0
    os.close(ours)
    os.close(theirs)
    lines = text.decode().replace("\x1b[A", "").split("\n")
    return [line.rstrip("\r").split("\r")[-1].rstrip() for line in lines if line.strip()]


def test_a_finished_stage_keeps_its_bar_and_its_time() -> None:
    found = [re.search(r"finetune: +100%.*? ([\d.]+)/([\d.]+) \[([\d:]+)<", line) for line in shown(STAGES)]
    told = [match and match.groups() for match in found]
    assert told == [
        ("5.00", "5.00", "00:04"),
        ("3.00", "3.00", "00:02"),
        ("4.00", "4.00", "00:03"),
        ("2.00", "2.00", "00:00"),
        ("20.0", "20.0", "00:10"),
        ("30.0", "30.0", "00:20"),
    ]
