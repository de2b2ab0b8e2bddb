"""Training in two processes equals training in one, and uses each row once an epoch."""

import json
import os
import random
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from model.network.presets import presets
from model.training.config import TrainConfig
from model.training.distributed import World, WorldError, read_world
from model.training.monitor import read_metrics
from model.training.step import new_run, prepare_parts, take_step
from pipeline.dataset.batches import Batches
from pipeline.dataset.files import shards
from pipeline.dataset.files.shards import Batch
from pipeline.errors import ConfigError, DatasetError
from pipeline.ingest import manifest
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from pipeline.training.train import train_on_datasets
from tests import forked
from tests.conftest import REPOSITORY
from tests.model.synthetic import TINY, batch
from tests.pipeline.datasets import random_game
from tests.waiting import HANG_TIMEOUT_SECONDS

FROM_STEP = Batches.from_step
REPORT_STEPS = 1
SETTINGS: dict[str, Any] = {"epochs": 1.0, "batch_size": 32, "learning_rate": 0.002}
SETTINGS |= {"norm_rows": 16, "threads": 1, "amp": "off", "device": "cpu"}

JOB = """
import gc, json, os, sys
from pathlib import Path
import numpy as np
import torch
import torch.distributed as dist
import safetensors.torch
from engine.errors import UserError
from model.network.presets import presets
from model.training import loop
from model.training.config import TrainConfig
from model.training.distributed import read_world
from model.training.step import new_run, prepare_parts, take_step
from pipeline.dataset.batches import Batches
from pipeline.dataset.files import verify_files
from pipeline.training.train import train_on_datasets
from tests.model.synthetic import TINY, batch

presets()["tiny"] = TINY
loop.REPORT_STEPS = 1
verify_files.PATIENCE = float("inf")  # calls of `stop` are counted, and hashing must not call it
positions, folder = Path(sys.argv[1]), Path(sys.argv[2])
settings, runs = json.loads(sys.argv[3]), json.loads(sys.argv[4])
read, real_from_step, step = [], Batches.from_step, 0

def from_step(self, step):
    for batch in real_from_step(self, step):
        read.append(np.stack([batch["game"], batch["ply"]], 1))
        yield batch

def destroy_process_group(real=dist.destroy_process_group):
    wrapper = torch.nn.parallel.DistributedDataParallel
    assert not any(type(thing) is wrapper for thing in gc.get_objects()), (
        "it would hold the last reference to the group"
    )
    real()

Batches.from_step, dist.destroy_process_group = from_step, destroy_process_group
real_spike = loop.RunMonitor.describe_spike
for number, (name, steps, port) in enumerate(runs):
    fake_spike = lambda self, loss: "a spike"
    loop.RunMonitor.describe_spike = fake_spike if name == "spike" else real_spike
    os.environ |= {"MASTER_PORT": str(port)} if port else {}
    read.clear()
    steps_taken = 0
    calls = iter(range(10**6))
    try:
        card = train_on_datasets([positions], "tiny", TrainConfig(**settings), folder / name,
                        stop=lambda: next(calls) >= steps)
        # batches that were prefetched and not used are read again by the next run
        steps_taken, step = card["step"] - step, card["step"]
        outcome = [card["step"], card["positions"], card["finished"], card["processes"]]
    except UserError as error:
        outcome = [type(error).__name__, str(error)]
    np.save(folder / f"rows-{number}-{os.environ['RANK']}.npy", np.array(read[:steps_taken]))
    Path(folder / f"outcome-{number}-{os.environ['RANK']}.json").write_text(json.dumps(outcome))

world = read_world()
address = f"file://{folder / 'rendezvous'}"
dist.init_process_group("gloo", init_method=address, rank=world.rank, world_size=world.size)
for norm_rows in (12, 4):  # 1 and 3 microbatches in each process
    one_step = {"steps": 1, "epochs": None, "batch_size": 24, "norm_rows": norm_rows}
    run = new_run(TrainConfig(**settings | one_step), TINY, world)
    share = {name: column[world.rank :: world.size] for name, column in batch(24).items()}
    take_step(run, prepare_parts(run, share), 0.5)
    path = folder / f"step-{norm_rows}-{world.rank}.safetensors"
    state = {n: t.contiguous() for n, t in run.network.state_dict().items()}
    safetensors.torch.save_file(state, path)
    run.model = run.network
gc.collect()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def positions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Make a dataset of a few hundred rows in row groups of 64, and a small preset."""
    folder = tmp_path_factory.mktemp("ddp")
    (folder / "dump.pgn").write_text("\n".join(random_game(seed, plies=30) for seed in range(12)))
    with pytest.MonkeyPatch.context() as patch:
        for module in (shards, manifest):
            patch.setattr(module, "ROW_GROUP", 64)
        config = IngestConfig(test_share=0.0, val_share=0.0)
        ingest([str(folder / "dump.pgn")], folder / "positions", config, workers=1)
        patch.setitem(presets(), "tiny", TINY)
        yield folder / "positions"


def free_ports(count: int) -> list[int]:
    """Return free ports below the range from which the system takes ports for connections."""
    ports: list[int] = []
    for port in random.sample(range(15_000, 32_000), 1000):
        with socket.socket() as test_socket, suppress(OSError):
            test_socket.bind(("127.0.0.1", port))
            ports.append(port)
        if len(ports) == count:
            break
    return ports


@pytest.fixture(scope="module")
def pair(positions: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Let two processes do three runs, and return the folder of their results.

    The first run is stopped, the second continues it to its end, and the third fails in process 0.
    The processes are forked with torchrun's variables, because starting and importing would take
    nearly all of their time.
    """
    folder = tmp_path_factory.mktemp("pair")
    names_and_steps = (("two", 4), ("two", 10**6), ("spike", 10**6))
    runs = [(*run, port) for run, port in zip(names_and_steps, free_ports(3), strict=True)]
    command = [sys.executable, "-c", JOB, str(positions), str(folder)]
    command += [json.dumps(SETTINGS), json.dumps(runs)]
    variables = os.environ | {"MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "2"}
    processes = [
        forked.Popen(command, cwd=REPOSITORY, env=variables | {"RANK": str(rank)})
        for rank in (0, 1)
    ]
    assert [process.wait(HANG_TIMEOUT_SECONDS) for process in processes] == [0, 0]
    return folder


@pytest.mark.slow
def test_torchrun_starts_processes_that_train_together(positions: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", "--no-python", sys.executable, "-c", JOB]
    command += [str(positions), str(tmp_path), json.dumps(SETTINGS), '[["two", 1000000, 0]]']
    subprocess.run(command, cwd=REPOSITORY, check=True)
    steps = -(-Batches([positions]).rows // 32)
    assert outcome(tmp_path, 0) == [[steps, steps * 32, True, 2]] * 2


def outcome(folder: Path, run: int) -> list[list[object]]:
    return [json.loads((folder / f"outcome-{run}-{rank}.json").read_text()) for rank in (0, 1)]


def losses(out: Path) -> list[float]:
    return [line["loss"] for line in read_metrics(out) if "loss" in line]


def merge_processes(batches: Batches, step: int) -> Iterator[Batch]:
    """Yield batches in which the rows of two processes alternate: its two parts are theirs."""
    options = {"batch_size": batches.batch_size, "seed": batches.seed, "columns": batches.columns}
    folders = sorted({group.shard.path.parent for group in batches.groups})
    shares = [Batches(folders, rank=rank, world=2, **options) for rank in (0, 1)]
    for pair in zip(*(FROM_STEP(share, step) for share in shares), strict=True):
        yield {
            name: np.stack([part[name] for part in pair], 1).reshape(-1, *pair[0][name].shape[1:])
            for name in pair[0]
        }


def test_two_processes_train_as_one_and_use_each_row_once(
    positions: Path, pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = Batches([positions]).rows
    steps = -(-rows // 32)
    assert outcome(pair, 0) == [[4, 128, False, 2]] * 2
    assert outcome(pair, 1) == [[steps, steps * 32, True, 2]] * 2
    shares = [
        np.concatenate([np.load(pair / f"rows-{run}-{rank}.npy") for run in (0, 1)])
        for rank in (0, 1)
    ]
    assert shares[0].shape == shares[1].shape == (steps, 16, 2)
    order = np.stack(shares, 2).reshape(-1, 2)[:rows]
    assert len(np.unique(order, axis=0)) == rows, "each row once"

    monkeypatch.setattr(Batches, "from_step", merge_processes)
    one = train_on_datasets([positions], "tiny", TrainConfig(**SETTINGS), tmp_path / "one")
    monkeypatch.undo()
    assert one["processes"] == 1
    expected = losses(tmp_path / "one")
    assert losses(pair / "two") == pytest.approx(expected, abs=2e-3)
    assert expected[-1] < expected[0] - 0.2, "it learns"


@pytest.mark.parametrize("norm_rows", [12, 4])
def test_a_step_of_two_processes_equals_a_step_of_one(pair: Path, norm_rows: int) -> None:
    """Weights and the norms' statistics are equal, for one and for three microbatches each."""
    one_step = {"steps": 1, "epochs": None, "batch_size": 24, "norm_rows": norm_rows}
    run = new_run(TrainConfig(**SETTINGS | one_step), TINY)
    take_step(run, prepare_parts(run, batch(24)), 0.5)
    first, second = (
        safetensors.torch.load_file(pair / f"step-{norm_rows}-{rank}.safetensors")
        for rank in (0, 1)
    )
    for name, tensor in run.network.state_dict().items():
        assert torch.equal(first[name], second[name]), name
        assert torch.allclose(first[name], tensor, atol=1e-5), name


def test_an_error_in_the_first_process_ends_all(pair: Path) -> None:
    (error_0, message_0), (error_1, message_1) = outcome(pair, 2)
    assert (error_0, error_1) == ("DivergedError", "WorldError")
    assert "a spike in steps 0 to 1" in str(message_0)
    assert str(message_1).startswith(f"process 0: {str(message_0).split(';')[0]}")


def set_rank(monkeypatch: pytest.MonkeyPatch, rank: object, size: object) -> None:
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", str(size))


def test_processes_that_cannot_train_together_are_refused(
    positions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert read_world() == World(0, 1, 0)
    for size, error, words in (
        (16, DatasetError, r"\d row groups are too few for 16 processes"),
        (5, ConfigError, "a batch of 32 rows cannot be divided equally among 5 processes"),
    ):
        set_rank(monkeypatch, 0, size)
        with pytest.raises(error, match=words):
            train_on_datasets([positions], "tiny", TrainConfig(**SETTINGS), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    config = TrainConfig(**SETTINGS | {"epochs": None, "steps": 1, "batch_size": 64})
    with pytest.raises(WorldError, match="has 4 microbatches of at least 16 rows"):
        new_run(config, TINY, World(0, 3, 0))
    for rank, words in (
        (3, "start the processes with torchrun"),
        ("first", "must be whole numbers"),
    ):
        set_rank(monkeypatch, rank, 3)
        with pytest.raises(WorldError, match=words):
            read_world()
