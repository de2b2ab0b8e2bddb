"""Training by Ray Train: the losses of one process, whatever worker dies. Slow; needs fianchetto[ray]."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file

from engine.progress import Tick
from model.training.config import TrainConfig
from model.training.records.metrics_log import read_metrics
from pipeline.cli.commands.training import Train
from pipeline.cli.main import guarded
from pipeline.dataset.batches import Batches
from pipeline.dataset.files import shards
from pipeline.executors.ray import RayEngine
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from pipeline.training import ray as ray_train
from pipeline.training.by_name import trainer_of
from pipeline.training.train import train_on
from tests.conftest import REPOSITORY
from tests.model.training.test_distributed import both_processes
from tests.pipeline.datasets import random_game

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None or importlib.util.find_spec("pandas") is None,
        reason="Ray Train is not installed: fianchetto[ray]",
    ),
]

SETTINGS: dict[str, Any] = {
    "steps": 120,
    "batch_size": 32,
    "threads": 1,
    "amp": "off",
    "device": "cpu",
    "report_every_steps": 1,
    "save_every_seconds": 0.0,
    "learning_rate": 0.002,
    "parts": 2,
}
CONFIG = TrainConfig(**SETTINGS)
WORKER = "ray::RayTrainWorker"


@pytest.fixture(scope="module")
def positions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a dataset of a few hundred rows in row groups of 64."""
    folder = tmp_path_factory.mktemp("ray-train")
    (folder / "dump.pgn").write_text("\n".join(random_game(seed, plies=30) for seed in range(12)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "ROW_GROUP", 64)
        config = IngestConfig(test_share=0.0, val_share=0.0)
        ingest([str(folder / "dump.pgn")], folder / "positions", config, workers=1)
    return folder / "positions"


@pytest.fixture(scope="module")
def embedded() -> Iterator[None]:
    """Hold one embedded Ray of four cores for all tests, which is what takes long; `connected` uses one that stands."""
    with RayEngine(workers=4).connected():
        yield


def workers() -> list[psutil.Process]:
    """Give the processes that train: Ray writes the actor's class as their title."""
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            if WORKER in " ".join(child.cmdline()):
                found.append(child)
        except psutil.NoSuchProcess:
            continue
    return found


def listening() -> set[str]:
    """Give the addresses that the processes below this one listen on."""
    found = set()
    for child in psutil.Process().children(recursive=True):
        try:
            sockets = child.net_connections(kind="inet")
        except psutil.Error:
            continue
        found |= {socket.laddr.ip for socket in sockets if socket.status == psutil.CONN_LISTEN}
    return found


@pytest.fixture(scope="module")
def undisturbed(embedded: None, positions: Path) -> tuple[Path, list[Tick], set[str]]:
    """Let two workers train to the end; give the checkpoint, the ticks that came back and the addresses listened on."""
    ticks: list[Tick] = []
    addresses: set[str] = set()

    def watch(tick: Tick) -> None:
        ticks.append(tick)
        addresses.update(listening())

    out = positions.parent / "undisturbed"
    card = trainer_of("ray", 2)([positions], "fianchetto-xs", CONFIG, out, watch)
    assert (card["step"], card["finished"], card["processes"]) == (120, True, 2)
    assert card["message"].startswith("finished: 120 steps")
    return out, ticks, addresses


def losses(out: Path) -> list[float]:
    return [line["loss"] for line in read_metrics(out) if "loss" in line]


def weights(out: Path) -> dict[str, np.ndarray]:
    card = json.loads((out / "checkpoint.json").read_text())
    return load_file(out / card["files"]["weights"]["name"])


def test_two_workers_are_one_process_with_the_same_batch(
    positions: Path, undisturbed: tuple[Path, list[Tick], set[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two, ticks, _ = undisturbed
    monkeypatch.setattr(Batches, "from_step", both_processes)
    one = train_on([positions], "fianchetto-xs", CONFIG, tmp_path / "one")
    assert one["processes"] == 1
    monkeypatch.undo()
    assert losses(two)[:24] == pytest.approx(losses(tmp_path / "one")[:24], abs=2e-3)  # rounding grows from there
    assert len(losses(two)) == len(losses(tmp_path / "one")) == 120
    assert losses(two)[-1] < losses(two)[0] - 0.5, "there was something to learn"
    assert ticks, "worker 0's progress came back"
    assert {(tick.total, tick.unit) for tick in ticks} == {(120, "steps")}
    smaller = TrainConfig(**SETTINGS | {"batch_size": 16, "parts": 1, "steps": 4})
    train_on([positions], "fianchetto-xs", smaller, tmp_path / "half")
    apart = np.abs(np.array(losses(tmp_path / "half")) - losses(two)[:4]).max()
    assert apart > 0.02, "half the batch is another curve"


def test_what_listens_while_two_workers_train(undisturbed: tuple[Path, list[Tick], set[str]]) -> None:
    assert undisturbed[2] <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


class Killer:
    """A progress callback that kills the worker that writes, and in a later group the other one."""

    def __init__(self, lock: Path) -> None:
        self.lock = str(lock)
        self.killed: list[tuple[bool, int]] = []
        self.groups: set[frozenset[int]] = set()

    def __call__(self, tick: Tick) -> None:
        running = workers()
        pids = frozenset(process.pid for process in running)
        known = {pid for group in self.groups for pid in group}
        if len(pids) != 2 or pids & known or tick.done < 20 * (1 + len(self.killed)):
            return
        self.groups.add(pids)
        if len(self.killed) == 2:
            return
        writes = [self.lock in {file.path for file in process.open_files()} for process in running]
        assert sorted(writes) == [False, True]
        victim = running[writes.index(not self.killed)]
        victim.send_signal(signal.SIGKILL)
        self.killed.append((not self.killed, victim.pid))


def test_a_killed_worker_changes_nothing(
    positions: Path, undisturbed: tuple[Path, list[Tick], set[str]], tmp_path: Path
) -> None:
    killer = Killer(tmp_path / "killed" / ".lock")
    card = trainer_of("ray", 2)([positions], "fianchetto-xs", CONFIG, tmp_path / "killed", killer)
    assert [writer for writer, _ in killer.killed] == [True, False], "one of each was killed in the middle"
    assert not any(psutil.pid_exists(pid) for _, pid in killer.killed)
    assert len(killer.groups) >= 2, "another group took over"
    assert card["step"] == 120
    assert card["finished"]
    assert "2 lost groups were replaced (the last: worker 1 died)" in card["message"]
    assert losses(tmp_path / "killed") == losses(undisturbed[0])
    ours, theirs = weights(tmp_path / "killed"), weights(undisturbed[0])
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the groups that are started."""
    started: list[int] = []
    attempt: Callable[..., Any] = ray_train._attempt

    def counted(*arguments: Any) -> Any:
        started.append(len(started))
        return attempt(*arguments)

    monkeypatch.setattr(ray_train, "_attempt", counted)
    return started


def test_a_mistake_is_one_line_and_is_not_tried_again(
    embedded: None, positions: Path, tmp_path: Path, groups: list[int], capfd: pytest.CaptureFixture[str]
) -> None:
    command = Train(
        positions=(str(positions),),
        out=tmp_path / "out",
        engine="ray",
        processes=3,
        train=CONFIG,
    )
    assert guarded(command.run) == 2
    said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("fianchetto:")]
    assert said == ["fianchetto: a batch of 32 cannot be divided among 3 processes (this is number 0)"]
    assert groups == [0]


def test_ctrl_c_leaves_a_saved_run_that_another_engine_finishes(positions: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [
        sys.executable,
        "-c",
        "from pipeline.cli.main import main; main()",
        "train",
        "--positions",
        str(positions),
    ]
    command += ["--out", str(out), "--preset", "fianchetto-xs", "--engine", "ray", "--processes", "2"]
    for name, value in (SETTINGS | {"steps": 100_000}).items():
        command += ["--set", f"{name}={value}"]
    paths = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    driver = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": paths},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    end = time.monotonic() + 600
    while not (out / "checkpoint.json").exists() or json.loads((out / "checkpoint.json").read_text())["step"] < 5:
        assert driver.poll() is None, driver.communicate()[1]
        assert time.monotonic() < end
        time.sleep(0.1)
    below = psutil.Process(driver.pid).children(recursive=True)
    assert any(WORKER in " ".join(process.cmdline()) for process in below)
    os.killpg(driver.pid, signal.SIGINT)  # a terminal sends it to all of them
    _, said = driver.communicate(timeout=300)
    assert driver.returncode == 128 + signal.SIGINT, said
    assert "run the same command to continue" in said
    _, alive = psutil.wait_procs(below, timeout=240)
    assert alive == []
    step = json.loads((out / "checkpoint.json").read_text())["step"]
    card = train_on([positions], "fianchetto-xs", TrainConfig(**SETTINGS | {"steps": 100_000}), out, stop=lambda: True)
    assert card["step"] == step > 5
    assert read_metrics(out)[-1]["step"] == step
