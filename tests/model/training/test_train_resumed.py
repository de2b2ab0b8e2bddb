"""A repeatedly killed run ends with the weights of an uninterrupted one."""

import os
import random
import signal
import sys
from pathlib import Path

import pytest

from model.checkpoint import CARD_FILE, load, read_card
from model.training.monitor import read_metrics
from tests import forked
from tests.conftest import REPOSITORY

RUN = """
import sys
from pathlib import Path
from engine.progress import silent
from model.training import loop
from model.training.config import TrainConfig
from tests.model.synthetic import TINY, batch

config = TrainConfig(steps=15, batch_size=16, threads=1, amp="off", device="cpu",
                     validation_every_steps=6, patience=100, save_seconds=0.0)
loop.REPORT_STEPS = 5
rows = [batch(16, seed) for seed in range(4)]

def batches(step):
    while True:
        yield rows[step % 4]
        step += 1

loop.train(config, TINY, batches, Path(sys.argv[1]), validation=lambda: iter(rows[:1]), data={},
           progress=silent, stop=lambda: False)
"""


def train_forked(out: Path, kill_at: int = 0) -> int:
    """Train in a process, killed at file operation `kill_at` if given, and return its status."""
    variables = {"OMP_NUM_THREADS": "1"} | ({forked.KILL_AT: str(kill_at)} if kill_at else {})
    command = [sys.executable, "-c", RUN, str(out)]
    return forked.Popen(command, cwd=REPOSITORY, env=os.environ | variables).wait()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.parametrize("kills", [3, pytest.param(30, marks=pytest.mark.slow)])
def test_a_repeatedly_killed_run_ends_with_the_same_weights(tmp_path: Path, kills: int) -> None:
    random_operation = random.Random(5)
    assert train_forked(tmp_path / "whole") == 0
    whole = read_card(tmp_path / "whole")
    killed, finished = 0, list[Path]()
    while killed < kills or not finished:
        out = tmp_path / str(len(finished))
        # about ten file operations a step
        status = train_forked(out, random_operation.randrange(1, 90) if killed < kills else 0)
        if status == -signal.SIGKILL:
            killed += 1
            if (out / CARD_FILE).exists():
                load(out)  # a checkpoint is never left damaged
        else:
            assert status == 0
            finished.append(out)
    for out in finished:
        card = read_card(out)
        assert card["finished"]
        assert card["files"]["weights"]["sha256"] == whole["files"]["weights"]["sha256"]
        assert card["monitor"]["best"] == whole["monitor"]["best"]
        validated = [line["step"] for line in read_metrics(out) if "validation_top1" in line]
        assert validated == [6, 12, 15]
        names = [{path.name for path in folder.iterdir()} for folder in (out, tmp_path / "whole")]
        assert names[0] == names[1]
