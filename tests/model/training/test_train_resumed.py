"""A run that is killed with SIGKILL, again and again and anywhere, ends with the weights of one that never was."""

import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest

from model.checkpoint import CARD, load, read_card
from model.training.records.metrics_log import read_metrics
from tests import forked
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


def begun(code: str, out: Path, *arguments: Path) -> forked.Popen:
    """Begin a process that calls the code's function `run` with a directory."""
    words = [sys.executable, "-c", code + "\nimport sys\nrun(Path(sys.argv[-1]))", *map(str, arguments), str(out)]
    return forked.Popen(words, cwd=REPOSITORY, env=os.environ | {"OMP_NUM_THREADS": "1"})


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_killed_a_dozen_times_ends_with_the_same_weights(tmp_path: Path) -> None:
    chance = random.Random(5)
    assert begun(RUN, tmp_path / "whole").wait() == 0
    whole = read_card(tmp_path / "whole")
    killed, lost, number, finished = 0, 0, 0, []
    while killed < KILLS or not finished:
        out = tmp_path / str(number)
        process = begun(RUN, out)
        if killed < KILLS:
            time.sleep(chance.uniform(0.05, 0.3) * whole["seconds"])
            process.kill()
        if (ended := process.wait()) == -signal.SIGKILL:
            killed += 1
            lost += bool(list(out.glob("*.tmp")))
            if (out / CARD).exists():
                load(out)  # whatever moment it was, what is there is whole
        else:
            assert ended == 0
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
