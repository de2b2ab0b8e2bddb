"""What `Engine.map` guarantees: every item answered once, bounded tries, losses named, nothing left
running."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.executors.local import Failure, LocalEngine, WorkerError
from tests.conftest import REPOSITORY
from tests.pipeline.executors import jobs
from tests.processes import workers_of
from tests.waiting import until


def children() -> set[int]:
    """Give the living worker processes of this one."""
    return {worker.pid for worker in workers_of()}


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_every_item_is_answered_once(workers: int) -> None:
    results = list(LocalEngine(workers).map(jobs.square, range(20)))
    assert sorted(results) == [(index, "ok", index * index) for index in range(20)]


def test_items_are_taken_a_few_at_a_time() -> None:
    taken = 0

    def items() -> Iterator[int]:
        nonlocal taken
        for number in range(1000):
            taken += 1
            yield number

    answered = 0
    for _ in LocalEngine(2).map(jobs.square, items()):
        answered += 1
        assert taken <= answered + 4
        if answered == 25:
            break
    assert answered == 25


def test_workers_are_other_processes_and_one_worker_is_this_one() -> None:
    assert {value for _, _, value in LocalEngine(1).map(jobs.pid, range(3))} == {os.getpid()}
    others = {value for _, _, value in LocalEngine(2).map(jobs.pid, range(30))}
    assert 1 <= len(others) <= 2
    assert os.getpid() not in others


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_is_a_result_and_the_others_are_answered(workers: int) -> None:
    results = {
        index: (status, value)
        for index, status, value in LocalEngine(workers).map(jobs.inverse, [1, 0, 2])
    }
    assert results[0] == ("ok", 1.0)
    assert results[2] == ("ok", 0.5)
    status, failure = results[1]
    assert status == "error"
    assert isinstance(failure, Failure)
    assert (failure.kind, failure.message) == ("ZeroDivisionError", "division by zero")
    assert "inverse" in failure.traceback


def test_the_item_of_a_killed_worker_is_done_again(tmp_path: Path) -> None:
    markers = [tmp_path / "two", tmp_path / "six"]
    items = [
        (number, str(markers[number // 4]) if number in (2, 6) else "") for number in range(10)
    ]
    results = list(LocalEngine(2).map(jobs.die_once, items))
    assert all(marker.exists() for marker in markers), "no worker was killed"
    assert sorted(results) == [(index, "ok", index) for index in range(10)]


def test_an_item_that_kills_its_workers_is_lost_after_its_attempts_and_the_others_are_not(
    tmp_path: Path,
) -> None:
    items = [(number, str(tmp_path)) for number in range(10)]
    results = {
        index: (status, value) for index, status, value in LocalEngine(2).map(jobs.poison, items)
    }
    tries = [path.name.partition("-")[0] for path in tmp_path.iterdir()]
    assert results.pop(5) == ("lost", None)
    assert tries.count("5") == 3
    assert results == {index: ("ok", index) for index in range(10) if index != 5}


def test_a_worker_that_ends_by_itself_is_not_tried_again() -> None:
    before = children()
    with pytest.raises(WorkerError, match="exit status 3"):
        list(LocalEngine(2).map(jobs.leave, [3, 3]))
    assert children() == before


def test_closing_the_iterator_leaves_no_process() -> None:
    before = children()
    stream = LocalEngine(2).map(jobs.slow, [1, 0, 1, 1, 1, 1])
    next(stream)
    until(lambda: len(children() - before) == 2)
    stream.close()  # does not wait for the worker that sleeps
    assert children() - before == set()


def test_an_error_in_the_items_leaves_no_process() -> None:
    def items() -> Iterator[int]:
        yield from range(3)
        raise OSError("the disk is gone")

    before = children()
    with pytest.raises(OSError, match="the disk is gone"):
        list(LocalEngine(2).map(jobs.square, items()))
    assert children() - before == set()


@pytest.mark.parametrize("workers", [1, 2])
def test_what_is_cancelled_ends_and_leaves_nothing_running(workers: int) -> None:
    answered: list[int] = []
    for index, _, _ in LocalEngine(workers).map(
        jobs.slow, [1, 1, 0, 0], lambda: len(answered) >= 2
    ):
        answered.append(index)
    assert sorted(answered) == [0, 1]
    assert children() == set()


def test_workers_have_the_environment_of_now_and_one_thread_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    list(LocalEngine(2).map(jobs.square, range(4)))
    monkeypatch.setenv("FIANCHETTO_TESTED", "later")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    names = ["FIANCHETTO_TESTED", "OMP_NUM_THREADS"]
    assert {value for _, _, value in LocalEngine(2).map(jobs.variables, [names] * 4)} == {
        ("later", "1")
    }
    assert os.environ["OMP_NUM_THREADS"] == "7", "this process's own is as it was"


def program(text: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a program as the installed command is run: the current folder is not on its path."""
    imports = "import os, signal, sys; from pipeline.executors.local import *; "
    imports += "from tests.pipeline.executors.jobs import square, slow\n"
    return subprocess.run(
        [sys.executable, "-P", "-c", imports + text],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )


SQUARES = "sorted(value for _, _, value in LocalEngine(2).map(square, range(3)))"


def test_a_module_of_the_current_folder_is_not_taken_for_what_workers_need(tmp_path: Path) -> None:
    for name in ("chess", "signal", "psutil"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('not that one')")
    said = program(f"print({SQUARES})", tmp_path)
    assert (said.stdout, said.stderr) == ("[0, 1, 4]\n", "")


def test_workers_do_not_hear_ctrl_c_even_while_they_start(tmp_path: Path) -> None:
    text = "real = subprocess.Popen\n"
    text += "def start(*words, **options):\n"
    text += "    worker = real(*words, **options)\n    worker.send_signal(signal.SIGINT)\n"
    text += "    return worker\n"
    text += "subprocess.Popen = start\n"
    said = program(f"{text}print({SQUARES})", REPOSITORY)
    assert (said.stdout, said.stderr) == ("[0, 1, 4]\n", "")
