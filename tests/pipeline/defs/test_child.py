"""The child process: what it answers, and that nothing of it is left however it ends."""

import json
import os
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import psutil
import pytest

from engine import compiling
from engine.errors import UserError
from engine.progress import Tick
from model.training.config import TrainConfig
from pipeline.defs.child import STOPPED, ChildError, run_child
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from tests.pipeline.datasets import random_game
from tests.pipeline.defs import stand_in
from tests.waiting import LONG, until


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def pids(folder: Path) -> list[int]:
    until(lambda: (folder / "state").exists())
    return [int(word) for word in (folder / "pids").read_text().split()]


class Interrupted(BaseException):
    """What Dagster raises in the run worker at Terminate is no Exception either."""


def test_a_result_and_ticks_come_back(capfd: pytest.CaptureFixture[str]) -> None:
    ticks: list[Tick] = []
    assert run_child(partial(stand_in.count, [1, 2]), progress=ticks.append) == {"counted": [1, 2]}
    assert ticks[-1] == Tick(3, 3, "things", {"loss": 1 / 3}, "counting")
    assert "a stray print" in capfd.readouterr().out


@pytest.mark.parametrize("inner", ["", "inner"])
def test_a_users_mistake_comes_back_as_one_and_leaves_no_empty_output(
    tmp_path: Path, inner: str
) -> None:
    out = tmp_path / "out"
    if inner:
        out.mkdir()
    with pytest.raises(UserError, match=r"^the games are no games$"):
        run_child(partial(stand_in.refuse_late, out / inner), lock=out)
    assert (out / inner).is_dir() == bool(inner), "what can be resumed stays"


def test_a_bug_or_a_kill_is_no_success_and_its_traceback_is_in_the_runs_output(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(ChildError, match="status 1"):
        run_child(stand_in.crash)
    assert "ZeroDivisionError: a bug" in capfd.readouterr().err
    with pytest.raises(ChildError, match="status -9"):
        run_child(stand_in.vanish)


@pytest.mark.parametrize("stubborn", [False, True])
def test_an_interrupt_stops_child_and_workers(tmp_path: Path, stubborn: bool) -> None:
    def interrupt(tick: Tick) -> None:
        raise Interrupted

    with pytest.raises(Interrupted):
        run_child(
            partial(stand_in.work, tmp_path, stubborn),
            progress=interrupt,
            grace=1.5 if stubborn else LONG,
        )
    until(lambda: all(gone(pid) for pid in pids(tmp_path)))
    assert (tmp_path / "saved").exists() is not stubborn
    assert int((tmp_path / "state").read_text()) > 0


@pytest.mark.slow
def test_terminate_inside_of_a_step_of_training_saves_after_it(
    tmp_path: Path,
) -> None:
    """As Dagster's Terminate does it: an exception in the run worker, and a grace."""
    dump, positions, out = tmp_path / "dump.pgn", tmp_path / "positions", tmp_path / "net"
    dump.write_text("\n".join(random_game(seed) for seed in range(6)))
    ingest([str(dump)], positions, IngestConfig(test_share=0.0, val_share=0.0), workers=1)
    config = TrainConfig(steps=9, batch_size=128, norm_rows=2, threads=1, device="cpu", amp="off")
    work = partial(stand_in.train, tmp_path, 3 * 64 + 5, positions, config)
    worker = threading.Thread(target=_until_slow, args=(tmp_path, os.getpid()))
    before = signal.signal(signal.SIGUSR1, _interrupted)
    try:
        worker.start()
        with pytest.raises(Interrupted):
            run_child(work, grace=50.0)
    finally:
        signal.signal(signal.SIGUSR1, before)
        worker.join()
    card = json.loads((out / "checkpoint.json").read_text())
    assert (card["step"], card["finished"]) == (4, False)


def _until_slow(folder: Path, pid: int) -> None:
    until(lambda: (folder / "slow").exists())
    os.kill(pid, signal.SIGUSR1)


def _interrupted(*_: object) -> None:
    raise Interrupted


def test_what_the_project_logs_is_in_the_runs_output(capfd: pytest.CaptureFixture[str]) -> None:
    run_child(stand_in.log_and_compile)
    lines = capfd.readouterr().err.splitlines()
    assert "a step takes long" in lines
    assert compiling.MESSAGE in lines, "a minute in which nothing else is seen"


def test_work_that_asks_nothing_is_interrupted_at_once() -> None:
    def interrupt(tick: Tick) -> None:
        raise Interrupted

    with pytest.raises(Interrupted):
        # the test's own time is shorter
        run_child(stand_in.sleep, progress=interrupt, grace=3600.0)


@pytest.mark.parametrize("stubborn", [False, True])
def test_a_killed_run_worker_takes_its_child_along(tmp_path: Path, stubborn: bool) -> None:
    code = (
        "from functools import partial; from pathlib import Path; from pipeline.defs.child import "
        "run_child\n"
        f"from tests.pipeline.defs.stand_in import work; out = Path({str(tmp_path)!r})\n"
        f"run_child(partial(work, out, {stubborn}), grace={1.0 if stubborn else LONG})"
    )
    worker = subprocess.Popen([sys.executable, "-c", code])
    started = pids(tmp_path)
    worker.kill()
    worker.wait()
    until(lambda: all(gone(pid) for pid in started))
    assert (tmp_path / "saved").exists() is not stubborn


def test_one_output_has_one_writer(tmp_path: Path) -> None:
    errors = []

    def first() -> None:
        try:
            run_child(partial(stand_in.work, tmp_path), lock=tmp_path / "out")
        except (UserError, ChildError) as error:
            errors.append(error)

    thread = threading.Thread(target=first)
    thread.start()
    child = pids(tmp_path)[0]
    with pytest.raises(UserError, match="another process is writing"):
        run_child(partial(stand_in.count, 1), lock=tmp_path / "out", grace=-4)
    os.kill(child, signal.SIGTERM)
    thread.join()
    assert "stopped early" in str(errors[0])
    assert run_child(partial(stand_in.count, 1), lock=tmp_path / "out") == {"counted": 1}


def test_a_stopped_child_exits_non_zero(tmp_path: Path) -> None:
    assert STOPPED not in (0, 1, 2)
    with pytest.raises(UserError, match="stopped early"):
        run_child(partial(stand_in.work, tmp_path), progress=lambda tick: _terminate(tmp_path))


def _terminate(folder: Path) -> None:
    if not (folder / "saved").exists():
        os.kill(int((folder / "pids").read_text().split()[0]), signal.SIGTERM)
