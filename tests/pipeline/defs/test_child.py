"""The child process of a run: results, errors, stops, and no process that stays; the launcher."""

import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import dagster as dg
import psutil
import pytest
from dagster._core.events import EngineEventData
from dagster._core.launcher import WorkerStatus

from engine import compiling
from engine.errors import UserError
from engine.progress import Tick
from pipeline.defs import launcher, ui
from pipeline.defs.child import ChildError, run_child
from tests.pipeline.defs import stand_in
from tests.processes import is_alive
from tests.waiting import HANG_TIMEOUT_SECONDS, until


def read_pids(folder: Path) -> list[int]:
    """Wait until the stand-in works, and return the process IDs of the child and its worker."""
    until(lambda: (folder / "state").exists())
    return [int(word) for word in (folder / "pids").read_text().split()]


class Interrupted(BaseException):
    """Like the exception by which Dagster terminates a run, not a subclass of Exception."""


def interrupt(tick: Tick) -> None:
    raise Interrupted


def test_user_errors_bugs_and_kills_are_distinguished(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match=r"^the folder is taken$") as error:
        run_child(partial(stand_in.fail, "user error"))
    assert error.value.code == "taken"
    with pytest.raises(ChildError, match="status 1"):
        run_child(partial(stand_in.fail, "bug"))
    assert "ZeroDivisionError: a bug" in capfd.readouterr().err
    with pytest.raises(ChildError, match="status -9"):
        run_child(partial(stand_in.fail, "kill"))


@pytest.mark.parametrize("stubborn", [False, True])
def test_an_interrupt_stops_child_and_workers(tmp_path: Path, stubborn: bool) -> None:
    grace = 1.5 if stubborn else HANG_TIMEOUT_SECONDS
    with pytest.raises(Interrupted):
        run_child(partial(stand_in.work, tmp_path, stubborn), progress=interrupt, grace=grace)
    until(lambda: not any(is_alive(pid) for pid in read_pids(tmp_path)))
    assert (tmp_path / "saved").exists() is not stubborn
    assert int((tmp_path / "state").read_text()) > 0


def test_work_without_a_stop_parameter_is_interrupted_at_once() -> None:
    with pytest.raises(Interrupted):
        run_child(stand_in.sleep, progress=interrupt, grace=3600.0)


@pytest.mark.parametrize("stubborn", [False, True])
def test_the_child_of_a_killed_run_process_ends(tmp_path: Path, stubborn: bool) -> None:
    code = (
        "from functools import partial; from pathlib import Path\n"
        "from pipeline.defs.child import run_child; from tests.pipeline.defs.stand_in import work\n"
        f"work = partial(work, Path({str(tmp_path)!r}), {stubborn})\n"
        f"run_child(work, grace={1.0 if stubborn else HANG_TIMEOUT_SECONDS})"
    )
    run_process = subprocess.Popen([sys.executable, "-c", code])
    pids = read_pids(tmp_path)
    run_process.kill()
    run_process.wait()
    until(lambda: not any(is_alive(pid) for pid in pids))
    assert (tmp_path / "saved").exists() is not stubborn


def test_an_output_has_one_writer_at_a_time(tmp_path: Path) -> None:
    errors, lock = [], tmp_path / "folder" / "out"

    def run_first_child() -> None:
        try:
            run_child(partial(stand_in.work, tmp_path), lock=lock)
        except (UserError, ChildError) as error:
            errors.append(error)

    thread = threading.Thread(target=run_first_child)
    thread.start()
    child = read_pids(tmp_path)[0]
    with pytest.raises(UserError, match="another process is writing"):
        run_child(partial(stand_in.count_to_three, 1), lock=lock, grace=-4)
    os.kill(child, signal.SIGTERM)
    thread.join()
    assert "stopped early" in str(errors[0])


def test_results_progress_and_logs_arrive(capfd: pytest.CaptureFixture[str]) -> None:
    ticks = list[Tick]()
    work = partial(stand_in.count_to_three, [1, 2])
    assert run_child(work, progress=ticks.append) == {"given": [1, 2]}
    assert ticks[-1] == Tick(3, 3, "things", {"loss": 1 / 3}, "counting")
    printed = capfd.readouterr()
    assert "a stray print" in printed.out
    assert {"a step takes long", compiling.COMPILING_MESSAGE} <= set(printed.err.splitlines())


ENDS_AFTER_OTHER = """
import pathlib, signal, sys, time
mine, other = map(pathlib.Path, sys.argv[1:])
def end(*_):
    mine.with_suffix(".stopped").touch()
    while not other.with_suffix(".stopped").exists(): time.sleep(0.01)
    mine.with_suffix(".ended").touch()
    sys.exit()
signal.signal(signal.SIGTERM, end)
mine.touch()
while True: time.sleep(0.01)
"""


def test_the_processes_of_the_ui_are_stopped_at_the_same_time(tmp_path: Path) -> None:
    """A process that is stopped ends only after the other has been told to stop."""
    names = [str(tmp_path / "daemon"), str(tmp_path / "server")]
    command = [sys.executable, "-c", ENDS_AFTER_OTHER]
    processes = [subprocess.Popen([*command, *order]) for order in (names, names[::-1])]
    until(lambda: all(Path(name).exists() for name in names))
    ui.stop(processes)
    assert all(Path(name).with_suffix(".ended").exists() for name in names), "none was killed"


@pytest.mark.usefixtures("data_folder")
def test_the_launcher_detects_that_a_run_process_died() -> None:
    empty_job = dg.GraphDefinition(name="nothing", node_defs=[]).to_job()
    with dg.DagsterInstance.get() as instance:
        run_launcher, run = instance.run_launcher, instance.create_run_for_job(empty_job)
        assert isinstance(run_launcher, launcher.WatchfulRunLauncher)
        assert run_launcher.supports_check_run_worker_health
        assert instance.run_monitoring_enabled
        assert not instance.telemetry_enabled
        assert run_launcher.check_run_worker_health(run).status == WorkerStatus.RUNNING
        worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
        instance.report_engine_event(
            "Started process for run.", run, EngineEventData.in_process(worker.pid)
        )
        assert run_launcher.check_run_worker_health(run).status == WorkerStatus.RUNNING
        worker.kill()
        until(lambda: not is_alive(worker.pid))
        health = run_launcher.check_run_worker_health(run)
        assert health.status == WorkerStatus.FAILED
        assert f"process {worker.pid} of the run has died" in str(health)
        worker.wait()
    assert launcher.is_alive(os.getpid(), time.time())
    # a process that started later and has the same ID is not the run's
    assert not launcher.is_alive(os.getpid(), psutil.Process().create_time() - 3600)
