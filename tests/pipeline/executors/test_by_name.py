"""An engine is one setting, and Ray is not touched unless it is asked for."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from model.training.config import Device, TrainConfig
from pipeline.errors import ConfigError
from pipeline.executors import ray as ray_engine
from pipeline.executors.by_name import engine_of
from pipeline.executors.local import Failure, LocalEngine
from pipeline.training import ray as ray_train
from pipeline.training.by_name import trainer_of
from pipeline.training.train import train_on
from tests.conftest import REPOSITORY
from tests.pipeline.executors import jobs


def test_local_is_processes_of_this_machine() -> None:
    engine = engine_of("local", 3)
    assert isinstance(engine, LocalEngine)
    assert engine.workers == 3


@pytest.mark.parametrize("name", ["", "Local", "dask", "ray:", "ray://", "rays", "tcp://1.2.3.4:5"])
def test_another_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="an engine is local, ray"):
        engine_of(name)


@pytest.mark.parametrize("name", ["ray", "ray:10.0.0.1:6379", "ray://head:10001"])
def test_where_ray_is_absent_the_extra_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # what Python itself takes for: it cannot be imported
    with pytest.raises(ConfigError, match=r"fianchetto\[ray\]"):
        engine_of(name)


def test_nothing_of_ray_is_imported_unless_asked_for() -> None:
    code = "import sys, pipeline.cli.main, pipeline.ingest.job, pipeline.executors.by_name as e; e.engine_of('local')\n"
    code += "sys.exit(any(name.partition('.')[0] == 'ray' for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=False).returncode == 0


def test_training_imports_nothing_of_ray_unless_asked_to(tmp_path: Path) -> None:
    code = "import sys; from pipeline.cli.main import main\ntry: main()\nexcept SystemExit as ended: assert ended.code == 2\n"
    code += "assert 'torch' in sys.modules, 'it did not come to training'\n"
    code += "sys.exit(any(name.partition('.')[0] == 'ray' for name in sys.modules))"
    command = [sys.executable, "-c", code, "train", "--positions", str(tmp_path / "none"), "--steps", "1"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path)], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "none" in done.stderr


def test_a_node_with_other_kernels_is_refused() -> None:
    assert ray_engine._work(jobs.square, 7, ray_engine._version()) == ("ok", 49)
    status, failure = ray_engine._work(jobs.square, 7, "0123456789abcdef")
    assert status == "error"
    assert isinstance(failure, Failure)
    assert "has another Fianchetto" in failure.message


def test_training_is_local_unless_ray_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert trainer_of("local") is train_on
    with pytest.raises(ConfigError, match="torchrun --nproc-per-node 2"):
        trainer_of("local", 2)
    for name in ("dask", "ray:", "ray://"):
        with pytest.raises(ConfigError, match="an engine is local, ray"):
            trainer_of(name)


def ray_trains(name: str, processes: int = 0) -> None:
    trainer_of(name, processes)([Path("none")], "fianchetto-xs", TrainConfig(steps=1), Path("none"))


def test_training_by_ray_names_the_extra_that_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"fianchetto\[ray\]"):
        ray_trains("ray")
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    monkeypatch.setitem(sys.modules, "ray.train", None)
    with pytest.raises(ConfigError, match=r"needs Ray Train: pip install \"fianchetto\[ray\]\""):
        ray_trains("ray")


def test_ray_and_torchrun_do_not_both_start_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="without torchrun"):
        ray_trains("ray", 2)
    with pytest.raises(ConfigError, match="processes is -1"):
        ray_trains("ray", -1)


def node(cpus: float, gpus: float = 0, alive: bool = True) -> dict[str, object]:
    return {"Alive": alive, "Resources": {"CPU": cpus} | ({"GPU": gpus} if gpus else {})}


@pytest.mark.parametrize(
    ("nodes", "settings", "processes", "room"),
    [
        ([node(4)], {}, 0, (1, 4, False)),
        ([node(4)], {}, 2, (2, 2, False)),
        ([node(4)], {"threads": 1}, 2, (2, 1, False)),
        ([node(4), node(4), node(4), node(64, alive=False)], {}, 6, (6, 2, False)),
        ([node(0), node(4), node(8)], {}, 2, (2, 4, False)),
        ([node(2), node(8)], {}, 8, (8, 1, False)),
        ([node(16, 2), node(16, 2), node(64)], {}, 0, (4, 8, True)),
        ([node(16, 2)], {"device": "cpu"}, 0, (1, 16, False)),
        ([node(16, 2)], {"device": "cuda"}, 1, (1, 16, True)),
    ],
)
def test_processes_get_what_nodes_have(
    nodes: list[dict[str, object]], settings: dict[str, Any], processes: int, room: tuple[int, int, bool]
) -> None:
    found = ray_train._room(nodes, TrainConfig(steps=1, **settings), processes)
    assert (found.processes, found.cpus, found.gpu) == room


@pytest.mark.parametrize(
    ("nodes", "device", "processes", "said"),
    [
        ([node(4)], "cuda", 0, "Ray has no GPU"),
        ([node(4, 1)], "auto", 2, "2 processes want a GPU each, and Ray has 1"),
        ([node(4)], "auto", 5, "5 processes want a core each, and Ray has 4"),
        ([node(0)], "auto", 0, "1 processes want a core each, and Ray has 0"),
    ],
)
def test_processes_that_have_no_room_are_refused(
    nodes: list[dict[str, object]], device: Device, processes: int, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        ray_train._room(nodes, TrainConfig(steps=1, device=device), processes)
