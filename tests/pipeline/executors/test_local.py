"""The local engine: its guarantees, no process left behind; names of engines."""

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
from tests.processes import list_workers
from tests.waiting import until


def list_worker_ids() -> set[int]:
    """Return the ids of this process's workers."""
    return {worker.pid for worker in list_workers()}


@pytest.mark.parametrize("workers", [1, 2])
def test_the_guarantees_hold(workers: int, tmp_path: Path) -> None:
    guarantees.check_results(LocalEngine(workers), 4)
    if workers > 1:
        guarantees.check_retries(LocalEngine(workers), tmp_path)


def test_workers_are_single_threaded_and_one_worker_is_this_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert {value for _, _, value in LocalEngine(1).map(jobs.get_pid, range(3))} == {os.getpid()}
    monkeypatch.setenv("FIANCHETTO_TESTED", "later")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    names = ["FIANCHETTO_TESTED", "OMP_NUM_THREADS"]
    found = {value for _, _, value in LocalEngine(2).map(jobs.get_variables, [names] * 4)}
    assert found == {("later", "1")}
    assert os.environ["OMP_NUM_THREADS"] == "7", "this process keeps its own value"


def test_no_process_is_left_after_closing_and_errors() -> None:
    def items() -> Iterator[int]:
        yield from range(3)
        raise OSError("the disk is gone")

    before = list_worker_ids()
    stream = LocalEngine(2).map(jobs.sleep, [1, 0, 1, 1, 1, 1])
    next(stream)
    until(lambda: len(list_worker_ids() - before) == 2)
    stream.close()  # does not wait for the worker that sleeps
    assert list_worker_ids() == before
    with pytest.raises(OSError, match="the disk is gone"):
        list(LocalEngine(2).map(jobs.square, items()))
    assert list_worker_ids() == before
    with pytest.raises(WorkerError, match="exited with status 3"):  # it is not retried
        list(LocalEngine(2).map(jobs.exit_with, [3, 3]))
    assert list_worker_ids() == before


@pytest.mark.parametrize("workers", [1, 2])
def test_cancelled_work_ends_and_leaves_no_process(workers: int) -> None:
    answered: list[int] = []
    stream = LocalEngine(workers).map(jobs.sleep, [1, 1, 0, 0], lambda: len(answered) >= 2)
    for index, _, _ in stream:
        answered.append(index)
    assert sorted(answered) == [0, 1]
    assert list_worker_ids() == set()


def test_workers_ignore_ctrl_c_and_do_not_run_the_script(tmp_path: Path) -> None:
    """A script needs no `__main__` guard; workers that ran it would start more workers."""
    for name in ("chess", "signal", "psutil"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('the wrong module')")
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


def test_unknown_engines_and_a_missing_ray_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    unknown = dict.fromkeys(["", "dask", "ray:", "ray://", "tcp://1.2.3.4:5"], "unknown engine")
    missing = dict.fromkeys(["ray", "ray:10.0.0.1:6379", "ray://head:10001"], r"fianchetto\[ray\]")
    for name, words in (unknown | missing).items():
        with pytest.raises(ConfigError, match=words):
            make_engine(name)


def test_a_node_with_another_version_is_refused() -> None:
    version = ray._hash_kernel_sources()
    assert ray._run_versioned_item(jobs.square, 7, version) == ("ok", 49)
    status, failure = ray._run_versioned_item(jobs.square, 7, "0123456789abcdef")
    assert status == "error"
    assert "has a different version of Fianchetto" in failure.message
