"""Games of a generation, or positions to search, spread over processes: one that dies is replaced, its unfinished items begun
anew.

Each process asks its own network for all of its games at once: no server of evaluations stands between them (docs/scale.md).
"""

import time
from collections.abc import Callable, Container, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

from engine.compiling import announce_to_workers
from engine.progress import Progress, Stop, Tick
from pipeline.errors import Stopped
from pipeline.executors.local import Engine, Failure, LocalEngine, Result, available_cores, one_thread_each
from pipeline.selfplay.config import ExploreError
from pipeline.selfplay.journal import Journals, Watch, read_journals
from pipeline.selfplay.worker import ONNX, WorkerTask
from pipeline.storage.stores import temporaries

T = TypeVar("T", bound=WorkerTask)

LATE_SECONDS = 10.0
"""How long a shared folder may take to show items that were finished."""

POLL = 0.5
"""Seconds between two looks at what the processes have done."""
GRACE = 15.0
"""Seconds that players have to end their move and their journal; then those that have not even begun are cancelled too."""


Work = Callable[..., int]
"""(task, what is called after every item, stop): does what is missing of a task; a top-level function, as `play_task`."""
Shown = Callable[[int, int, float, int], Tick]
"""Items done now, of all runs together, of this run, its seconds, its evaluations -> what is shown."""


def games_shown(total: int) -> Shown:
    """Return what shows the progress of games."""

    def shown(finished: int, done: int, seconds: float, _evaluations: int) -> Tick:
        return Tick(finished, total, "games", {"games/h": 3600.0 * done / seconds})

    return shown


def tidy(journal: Path) -> None:
    """Make a journal's folder, and delete the files that a killed run left open there and beside it."""
    journal.mkdir(exist_ok=True)
    for folder in (journal.parent, journal):
        for left in temporaries(folder):
            left.unlink(missing_ok=True)


def completed(
    task: T,
    work: Work,
    engine: Engine | None,
    workers: int,
    progress: Progress,
    stop: Stop,
    shown: Shown,
    counted: Callable[[int], str],
) -> Journals:
    """Do what is missing of a task, and return the journals of all its items.

    `counted` says how many some items are: `7 of 9 games`. Raises Stopped where `stop` said so before the last one, and
    ExploreError where a process cannot go on, or this one does not see what others have finished.
    """
    found, wanted = read_journals(task.journal), len(task.numbers)
    if len(found.places) < wanted:
        spread(task, work, found.places.keys(), engine, workers, progress, stop, shown)
        until = time.monotonic() + LATE_SECONDS
        while len((found := read_journals(task.journal)).places) < wanted and not stop() and time.monotonic() < until:
            time.sleep(0.5)
    if len(found.places) < wanted:
        told = counted(len(found.places))
        if stop():
            raise Stopped(f"stopped after {told}; run the same command to continue")
        raise ExploreError(f"{told} are seen in {task.journal}: let all nodes share it, and run the same command again")
    return found


def spread(
    task: T,
    work: Work,
    done: Container[int],
    engine: Engine | None,
    workers: int,
    progress: Progress,
    stop: Stop,
    shown: Shown,
) -> None:
    """Do those of a task's items that are not `done`; raises ExploreError when a process cannot.

    With no engine `workers` processes of this machine work, 0 for as many as suit it. Comes back early when `stop` says so.
    """
    total = len(task.numbers)
    task = replace(task, numbers=tuple(number for number in task.numbers if number not in done))
    missing, before = len(task.numbers), total - len(task.numbers)
    for left in task.journal.glob("go-on-*"):  # whoever still plays for a job that is gone stops
        left.unlink(missing_ok=True)
    began, finished, watch = time.perf_counter(), before, Watch(task.journal)

    def tick() -> None:
        nonlocal finished
        finished = min(max(finished, before + watch.look()), total)
        seconds = max(time.perf_counter() - began, 1e-9)
        progress(shown(finished, finished - before, seconds, watch.evaluations))

    task.go_on.touch()
    announce_to_workers("simulate")
    try:
        if engine is not None:
            with one_thread_each(), engine.connected():
                device = ONNX if task.config.device == ONNX else "cpu"
                there = replace(task, owner=None, config=replace(cast("Any", task.config), device=device))
                _many(_parts(there, min(engine.slots(), missing)), work, engine, tick, stop)
        elif (processes := min(workers or _suited(task), missing)) == 1:
            with _one_thread(task):
                work(task, tick, stop)
        else:
            _many(_parts(task, processes), work, LocalEngine(processes), tick, stop)
    finally:
        with suppress(OSError):
            task.go_on.unlink()


def _suited(task: WorkerTask) -> int:
    """Return how many processes suit this machine: one where the network runs on a GPU, so that it is asked large batches."""
    if task.config.uses_network and task.config.device != ONNX:
        from model.training.precision import device_for

        if device_for(task.config.device).type != "cpu":
            return 1
    return available_cores()


def _parts(task: T, processes: int) -> list[T]:
    """Deal the items out."""
    return [replace(task, numbers=task.numbers[first::processes]) for first in range(processes)]


def _many(tasks: Sequence[T], work: Work, engine: Engine, tick: Callable[[], None], stop: Stop) -> None:
    """Work in several processes of a connected engine, looking at their journal meanwhile."""
    go_on = tasks[0].go_on

    def collect() -> list[Result]:
        results = []
        for result in engine.map(work, tasks, out_of_patience):
            results.append(result)
            if result[1] != "ok":
                go_on.unlink(missing_ok=True)  # the others need not play to the end first
        return results

    asked: float | None = None

    def out_of_patience() -> bool:
        return asked is not None and time.monotonic() - asked > GRACE

    with ThreadPoolExecutor(1, "self-play") as thread:
        future = thread.submit(collect)
        try:
            while wait([future], timeout=POLL).not_done:
                tick()
                if stop():
                    break
        finally:
            asked = time.monotonic()
            go_on.unlink(missing_ok=True)
        results = future.result()
    tick()
    for _, status, value in results:
        if status != "ok":
            raise _failure(status, value)


def _failure(status: str, value: Failure | None) -> Exception:
    """Make the error that ends the job from what a process left."""
    kept = "what was finished is kept, run again to continue"
    if status == "lost" or value is None:
        return ExploreError(f"a process was killed three times (out of memory?): try fewer --workers; {kept}")
    if value.system or value.mistake:
        return ExploreError(f"{value.message}: {kept}")
    return RuntimeError(f"a process failed: {value.message}\n{value.traceback}")


@contextmanager
def _one_thread(task: WorkerTask) -> Iterator[None]:
    """Let torch use one thread in this process meanwhile."""
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
