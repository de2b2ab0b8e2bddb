"""The launcher's health check, and a run that is interrupted as Terminate does it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import psutil
import pytest
from dagster._core.events import EngineEventData
from dagster._core.launcher import WorkerStatus

from pipeline.defs.launcher import WatchfulRunLauncher, is_alive
from tests.pipeline.defs.conftest import prepared
from tests.pipeline.defs.served.server import wait
from tests.waiting import LONG


def reported(instance: dg.DagsterInstance, pid: int) -> dg.DagsterRun:
    """A run whose worker said that it is the process `pid`."""
    run = instance.create_run_for_job(dg.GraphDefinition(name="nothing", node_defs=[]).to_job())
    instance.report_engine_event("Started process for run.", run, EngineEventData.in_process(pid))
    return run


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dg.DagsterInstance]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        prepared(tmp_path_factory.mktemp("launcher"), monkeypatch)
        yield dg.DagsterInstance.get()


def test_the_settings_name_this_launcher(instance: dg.DagsterInstance) -> None:
    assert isinstance(instance.run_launcher, WatchfulRunLauncher)
    assert instance.run_launcher.supports_check_run_worker_health
    assert instance.run_monitoring_enabled
    assert not instance.telemetry_enabled


def test_a_dead_worker_is_told_from_a_live_one(instance: dg.DagsterInstance) -> None:
    worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    launcher, run = instance.run_launcher, reported(instance, worker.pid)
    assert launcher.check_run_worker_health(run).status == WorkerStatus.RUNNING
    worker.kill()
    wait(lambda: psutil.Process(worker.pid).status() == psutil.STATUS_ZOMBIE, LONG)
    health = launcher.check_run_worker_health(run)
    assert health.status == WorkerStatus.FAILED
    assert f"process {worker.pid} of the run has died" in str(health)
    worker.wait()
    assert launcher.check_run_worker_health(run).status == WorkerStatus.FAILED


def test_another_process_with_the_same_number_is_not_the_worker() -> None:
    assert is_alive(os.getpid(), time.time())
    assert not is_alive(os.getpid(), psutil.Process().create_time() - 3600)


def test_a_process_that_may_not_be_looked_at_is_not_called_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def denied(process: psutil.Process) -> str:
        raise psutil.AccessDenied(process.pid)

    monkeypatch.setattr(psutil.Process, "status", denied)
    assert is_alive(os.getpid(), time.time())


def test_a_run_that_named_no_process_yet_is_left_alone(instance: dg.DagsterInstance) -> None:
    run = instance.create_run_for_job(dg.GraphDefinition(name="nothing", node_defs=[]).to_job())
    assert instance.run_launcher.check_run_worker_health(run).status == WorkerStatus.RUNNING


@pytest.mark.slow
def test_an_interrupted_run_saves_its_checkpoint_and_leaves_no_process(copied: Path) -> None:
    code = (
        "import dagster as dg; from tests.pipeline.defs.conftest import execute\n"
        "from pipeline.defs.child import run_child; run_child.__kwdefaults__['grace'] = 240.0\n"
        "train = {'batch_size': 16, 'threads': 1}\n"
        "with dg.DagsterInstance.get() as instance:\n"
        "    network = {'name': 'long', 'preset': 'fianchetto-xs', 'minutes': 30.0}\n"
        "    network['train'] = train\n"
        "    execute('train', instance, {'training_set': {'audit': False}, 'checkpoint': network})"
    )
    worker = subprocess.Popen([sys.executable, "-c", code])
    out = copied / "checkpoints" / "long"
    wait(
        lambda: (out / "metrics.jsonl").exists() and (out / "metrics.jsonl").stat().st_size > 100,
        LONG,
    )
    below = psutil.Process(worker.pid).children(recursive=True)
    assert below
    worker.send_signal(signal.SIGINT)
    worker.wait(LONG)
    _, left = psutil.wait_procs(below, LONG)
    assert not left
    card = json.loads((out / "checkpoint.json").read_text())
    assert (card["finished"], card["step"] > 0) == (False, True)
    assert sorted(path.name for path in out.iterdir() if path.name != ".lock") == sorted(
        [
            "checkpoint.json",
            "metrics.jsonl",
            *(entry["name"] for entry in card["files"].values()),
        ]
    )
    with dg.DagsterInstance.get() as instance:
        assert instance.get_runs()[0].status != dg.DagsterRunStatus.SUCCESS
