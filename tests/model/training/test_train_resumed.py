"""A run that is killed with SIGKILL, again and again and anywhere, ends with the weights of one that never was."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from model.checkpoint import CARD, load, read_card
from model.training.records.metrics_log import read_metrics
from tests.conftest import REPOSITORY

KILLS = 12

RUN = """
from pathlib import Path
import matplotlib.backends.backend_agg, matplotlib.figure
from engine.progress import silent
from model.training.config import TrainConfig
from model.training.train import train
from tests.model.synthetic import TINY, batch, stream

config = TrainConfig(steps=120, batch_size=16, threads=1, amp="off", device="cpu", save_every_seconds=0.03,
                     report_every_steps=20, validation_every_steps=25, patience=100)
rows = [batch(16, seed) for seed in range(4)]

def batches(step):
    while True:
        yield rows[step % 4]
        step += 1

def run(out):
    train(config, TINY, batches, out, validation=lambda: iter(rows[:1]), data={}, progress=silent, stop=lambda: False)
"""

SERVER = """
import os, sys
from pathlib import Path
import torch
import torch._dynamo  # as the first optimizer does, for a second: here once, and not in each child
torch.set_num_threads(1)
for line in sys.stdin:
    pid = os.fork()  # a process of its own without the seconds that importing takes; no thread was started yet
    if not pid:
        run(Path(line.strip()))
        os._exit(0)
    print(pid, flush=True)
    print(os.waitpid(pid, 0)[1], flush=True)
"""


class Trainer:
    """Starts training runs in processes of their own: calls of the code's function `run` with the directory."""

    def __init__(self, code: str, *arguments: Path) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        self.server = subprocess.Popen(
            [sys.executable, "-c", code + SERVER, *map(str, arguments)],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def start(self, out: Path) -> int:
        """Start a run and give its process id."""
        assert self.server.stdin is not None
        self.server.stdin.write(f"{out}\n")
        self.server.stdin.flush()
        return int(self._line())

    def end(self) -> int:
        """Wait for the run and give the signal that ended it, 0 for none."""
        status = int(self._line())
        assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0
        return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0

    def _line(self) -> str:
        assert self.server.stdout is not None
        return self.server.stdout.readline()


@contextmanager
def served(code: str, *arguments: Path) -> Iterator[Trainer]:
    server = Trainer(code, *arguments)
    try:
        yield server
    finally:
        server.server.communicate(timeout=60)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_killed_a_dozen_times_ends_with_the_same_weights(tmp_path: Path) -> None:
    chance = random.Random(5)
    with served(RUN) as runs:
        runs.start(tmp_path / "whole")
        assert runs.end() == 0
        whole = read_card(tmp_path / "whole")
        killed, lost, number, finished = 0, 0, 0, []
        while killed < KILLS or not finished:
            out = tmp_path / str(number)
            pid = runs.start(out)
            if killed < KILLS:
                time.sleep(chance.uniform(0.05, 0.3) * whole["seconds"])
                with suppress(ProcessLookupError):  # it was faster, and is finished
                    os.kill(pid, signal.SIGKILL)
            if runs.end() == signal.SIGKILL:
                killed += 1
                lost += bool(list(out.glob("*.tmp")))
                if (out / CARD).exists():
                    load(out)  # whatever moment it was, what is there is whole
            else:
                finished.append(out)
                number += 1
    assert killed == KILLS
    for out in finished:
        card = read_card(out)
        assert card["finished"]
        assert card["files"]["weights"]["sha256"] == whole["files"]["weights"]["sha256"]
        assert card["watch"]["best"] == whole["watch"]["best"]
        measured = [line["step"] for line in read_metrics(out) if "validation_top1" in line]
        assert measured == sorted(set(measured)) == [25, 50, 75, 100, 120]
        assert not list(out.glob("*.tmp"))
