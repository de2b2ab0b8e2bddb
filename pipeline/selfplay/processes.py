"""A generation's items spread over processes: a process that dies is replaced, and its unfinished
items begun anew.

Each process runs its own network on all of its games at once, without a server of evaluations
between them (docs/scale.md).
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace

from engine.compiling import announce_to_workers
from engine.cores import cores
from engine.progress import Progress, Stop, Tick
from pipeline.errors import Stopped
from pipeline.executors.local import Engine, Failure, LocalEngine
from pipeline.selfplay.config import ExploreError
from pipeline.selfplay.journal import Journals, Watch, read_journals
from pipeline.selfplay.worker import ONNX, Task, work_on

LATE_SECONDS = 10.0
"""How long a shared folder may take to show items that were finished."""
GRACE = 15.0
"""Seconds that processes have to finish their move and their journal before they are cancelled."""


def complete(
    task: Task,
    engine: Engine | None,
    workers: int,
    progress: Progress,
    stop: Stop,
    show: Callable[[int], Tick],
) -> Journals:
    """Do the unfinished items of a task, and return the journals of all its items.

    With no engine `workers` processes of this machine work, 0 for as many as suit it. `show` makes
    a report of how many items are finished. Raises Stopped where `stop` returned True before the
    last one, and ExploreError where a process cannot go on, or this one does not see what others
    have finished.
    """
    found, wanted = read_journals(task.journal), len(task.numbers)
    missing = tuple(number for number in task.numbers if number not in found.places)
    if missing:
        began, watch, before = time.perf_counter(), Watch(task.journal), wanted - len(missing)

        def report() -> None:
            done = min(watch.count(), len(missing))
            tick, rate = (
                show(before + done),
                show(done).done / max(time.perf_counter() - began, 1e-9),
            )
            progress(replace(tick, values={f"{tick.unit}/h": 3600.0 * rate}))

        _run(replace(task, numbers=missing), engine, workers, report, stop)
        until = time.monotonic() + LATE_SECONDS
        while (
            len((found := read_journals(task.journal)).places) < wanted
            and not stop()
            and time.monotonic() < until
        ):
            time.sleep(0.5)
    if len(found.places) < wanted:
        tick = show(len(found.places))
        counted = f"{tick.done:,} of {tick.total:,} {tick.unit}"
        if stop():
            raise Stopped(f"stopped after {counted}; run the same command to continue")
        raise ExploreError(
            f"only {counted} are visible in {task.journal}: use a folder that all nodes share, and "
            f"run the same command again"
        )
    return found


def _run(
    task: Task, engine: Engine | None, workers: int, report: Callable[[], None], stop: Stop
) -> None:
    """Do a task's items in as many processes as suit; return early when `stop` returns True."""
    items = len(task.numbers)
    for left in task.journal.glob("run-*"):  # processes of a job that is gone stop without it
        left.unlink(missing_ok=True)
    task.run_file.touch()
    announce_to_workers("puct")
    try:
        if engine is not None:
            with engine.connected():
                device = ONNX if task.config.device == ONNX else "cpu"
                there = replace(task, owner=None, config=replace(task.config, device=device))
                _run_many(_parts(there, min(engine.slots(), items)), engine, report, stop)
        elif (processes := min(workers or _suited(task), items)) == 1:
            with _one_thread(task):
                work_on(task, report, stop)
        else:
            _run_many(_parts(task, processes), LocalEngine(processes), report, stop)
    finally:
        with suppress(OSError):
            task.run_file.unlink()


def _suited(task: Task) -> int:
    """Return how many processes suit this machine: one for a network on a GPU."""
    if task.config.uses_network and task.config.device != ONNX:
        from model.training.precision import device_for

        if device_for(task.config.device).type != "cpu":
            return 1
    return cores()


def _parts(task: Task, processes: int) -> list[Task]:
    """Deal a task's items out to processes."""
    return [replace(task, numbers=task.numbers[first::processes]) for first in range(processes)]


def _run_many(
    tasks: Sequence[Task], engine: Engine, report: Callable[[], None], stop: Stop
) -> None:
    """Run tasks in processes of a connected engine, and watch their journal."""
    run_file, failed = tasks[0].run_file, []
    asked = math.inf

    def is_out_of_patience() -> bool:
        nonlocal asked
        report()
        if stop():
            run_file.unlink(missing_ok=True)
            asked = min(asked, time.monotonic())
        return time.monotonic() - asked > GRACE

    with closing(engine.map(work_on, tasks, is_out_of_patience)) as results:
        for _, status, value in results:
            if status != "ok":
                failed.append((status, value))
                run_file.unlink(missing_ok=True)  # the others need not finish first
    report()
    for status, value in failed:
        raise _failure(status, value)


def _failure(status: str, value: Failure | None) -> Exception:
    """Return the error that ends the job when a process failed."""
    kept = "what was finished is kept, run again to continue"
    if status == "lost" or value is None:
        return ExploreError(
            f"a process was killed three times (out of memory?): try fewer --workers; {kept}"
        )
    if value.system or value.mistake:
        return ExploreError(f"{value.message}: {kept}")
    return RuntimeError(f"a process failed: {value.message}\n{value.traceback}")


@contextmanager
def _one_thread(task: Task) -> Iterator[None]:
    """Limit torch to one thread in this process."""
    if not task.config.uses_network:
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
