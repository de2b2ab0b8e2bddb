"""The local engine: one result for each item, bounded attempts, no process left; engine names."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.errors import ConfigError
from pipeline.executors import ray
from pipeline.executors.by_name import make_engine
from pipeline.executors.local import LocalEngine, WorkerError
from tests.conftest import REPOSITORY
from tests.pipeline.executors import guarantees, jobs
from tests.processes import workers_of
from tests.waiting import until


def children() -> set[int]:
    """Return the ids of this process's workers."""
    return {worker.pid for worker in workers_of()}


@pytest.mark.parametrize("workers", [1, 2])
def test_the_guarantees_hold(workers: int, tmp_path: Path) -> None:
    guarantees.each_item_has_one_result_and_few_are_read_ahead(LocalEngine(workers), 4)
    guarantees.an_error_is_a_result(LocalEngine(workers))
    if workers > 1:
        guarantees.killed_items_are_tried_three_times(LocalEngine(workers), tmp_path)


def test_workers_are_single_threaded_processes_and_one_worker_is_this_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert {value for _, _, value in LocalEngine(1).map(jobs.pid, range(3))} == {os.getpid()}
    monkeypatch.setenv("FIANCHETTO_TESTED", "later")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    names = ["FIANCHETTO_TESTED", "OMP_NUM_THREADS"]
    found = {value for _, _, value in LocalEngine(2).map(jobs.variables, [names] * 4)}
    assert found == {("later", "1")}
    assert os.environ["OMP_NUM_THREADS"] == "7", "this process's own is as it was"


def test_a_worker_that_exits_is_not_retried() -> None:
    before = children()
    with pytest.raises(WorkerError, match="exited with status 3"):
        list(LocalEngine(2).map(jobs.leave, [3, 3]))
    assert children() == before


def test_closing_the_iterator_and_an_error_in_the_items_leave_no_process() -> None:
    def items() -> Iterator[int]:
        yield from range(3)
        raise OSError("the disk is gone")

    before = children()
    stream = LocalEngine(2).map(jobs.slow, [1, 0, 1, 1, 1, 1])
    next(stream)
    until(lambda: len(children() - before) == 2)
    stream.close()  # does not wait for the worker that sleeps
    assert children() - before == set()
    with pytest.raises(OSError, match="the disk is gone"):
        list(LocalEngine(2).map(jobs.square, items()))
    assert children() - before == set()


@pytest.mark.parametrize("workers", [1, 2])
def test_cancelled_work_ends_and_leaves_no_process(workers: int) -> None:
    answered: list[int] = []
    stream = LocalEngine(workers).map(jobs.slow, [1, 1, 0, 0], lambda: len(answered) >= 2)
    for index, _, _ in stream:
        answered.append(index)
    assert sorted(answered) == [0, 1]
    assert children() == set()


def test_workers_ignore_ctrl_c_and_do_not_run_the_script(tmp_path: Path) -> None:
    """A script needs no `__main__` guard; workers that ran it would start more workers."""
    for name in ("chess", "signal", "psutil"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('not that one')")
    program = """
import os, signal, sys
from pipeline.executors.local import *
from tests.pipeline.executors.jobs import square
real = subprocess.Popen
def start(*words, **options):
    worker = real(*words, **options)
    worker.send_signal(signal.SIGINT)
    return worker
subprocess.Popen = start
print(sorted(value for _, _, value in LocalEngine(2).map(square, range(3))))
"""
    (tmp_path / "script.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "-P", "script.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("[0, 1, 4]\n", "")


def test_an_unknown_engine_is_refused_and_ray_must_be_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    unknown = dict.fromkeys(["", "dask", "ray:", "ray://", "tcp://1.2.3.4:5"], "unknown engine")
    without = dict.fromkeys(["ray", "ray:10.0.0.1:6379", "ray://head:10001"], r"fianchetto\[ray\]")
    for name, words in (unknown | without).items():
        with pytest.raises(ConfigError, match=words):
            make_engine(name)


def test_a_node_with_another_version_is_refused() -> None:
    assert ray._run_versioned_item(jobs.square, 7, ray._hash_kernel_sources()) == ("ok", 49)
    status, failure = ray._run_versioned_item(jobs.square, 7, "0123456789abcdef")
    assert status == "error"
    assert "has a different version of Fianchetto" in failure.message
