"""A generation of self-play, started, continued after a kill, and made into a dataset.

    checkpoint, configuration, datasets -> [process: games or searches -> journal] -> shards,
    manifest

job.json identifies the generation; a directory that was started with anything else is refused,
with the setting that differs. Until the manifest exists, `.journal/` holds what is finished. A game
or search depends on the seed, its number, the settings and the evaluator. So a killed generation
ends with the files of an uninterrupted one; only `selfplay.timing` in the manifest differs. (A
network's answer may differ in its last bits with the size of its batch, and a game with it.)
"""

import math
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from engine.compiling import announce_to_workers
from engine.cores import cores
from engine.encoding.planes import ENCODING_VERSION, moves_hash
from engine.progress import Progress, Stop, Tick, never, silent
from pipeline.dataset.files.columns import MANIFEST
from pipeline.dataset.files.manifest import read_manifest
from pipeline.errors import ConfigError, Stopped
from pipeline.executors.by_name import engine_of
from pipeline.executors.local import LOCAL, Engine, Failure, LocalEngine
from pipeline.selfplay.config import ExploreConfig, ExploreError
from pipeline.selfplay.dataset import build, count_games, count_searches, timing
from pipeline.selfplay.draw import DRAWN, draw, identify_datasets
from pipeline.selfplay.worker import ONNX, Journals, Task, Watch, read_journals, work_on
from pipeline.storage.job_folder import SELFPLAY, JobFolder

FORMAT_VERSION = 2
LATE_SECONDS = 10.0
"""How long a shared folder may take to show items that were finished."""
GRACE = 15.0
"""Seconds that processes have to finish their move and their journal before they are cancelled."""


def explore(
    checkpoint: Path | None,
    config: ExploreConfig,
    out: Path,
    *,
    datasets: Sequence[Path] = (),
    lineage: Mapping[str, Any] | None = None,
    finished_only: bool = False,
    exact_count: bool = True,
    engine: str = LOCAL,
    workers: int = 0,
    progress: Progress = silent,
    stop: Stop = never,
) -> dict[str, Any]:
    """Play games or search positions of `datasets` into the dataset `out`, and return its manifest.

    Finished games and searches are kept. `finished_only` builds the dataset from these without
    starting new ones; of games it favors short ones. Without `exact_count`, datasets that have
    fewer positions than `config.count` are searched whole. `lineage` is written into the manifest.
    `workers` are processes, 0 for one per core, or one where the network runs on a GPU. `engine` is
    what they run on, as in pipeline.executors.local: Ray's processes run on CPUs, one per core,
    and all its nodes see `out` and the checkpoint.

    Raises ExploreError for other settings than the directory was started with, a checkpoint without
    a value, datasets without positions, two jobs at once, and a full disk. Also DatasetError,
    CheckpointError, OnnxError, ConfigError (no such engine), IngestError (Ray was lost), and
    Stopped.
    """
    if workers < 0:
        raise ConfigError("workers must be 0 or more")
    if config.plays and datasets:
        raise ConfigError(
            "games need no datasets: leave them out, or choose the source people or near"
        )
    if not config.plays and not datasets:
        raise ConfigError(
            f"the source {config.source} searches positions of datasets: name at least one"
        )
    remote = None if engine == LOCAL else engine_of(engine, workers)
    if remote is not None and config.device not in ("auto", "cpu", ONNX):
        raise ConfigError(
            f"{engine} runs on CPUs: leave out the device {config.device}, or work without an "
            f"engine"
        )
    identity = _identify(checkpoint, config, datasets, lineage)
    reads = [path for path in (*datasets, checkpoint) if path is not None]
    folder = JobFolder(out, SELFPLAY, ExploreError, reads=reads)
    with folder.held():
        journal = out.absolute() / folder.journal.name
        # without results there is nothing that other settings could be mixed with
        has_results = (out / MANIFEST).exists() or (journal / DRAWN).exists()
        folder.claim(identity, has_results=has_results or bool(read_journals(journal).places))
        if folder.is_finished():
            return read_manifest(out)
        journal.mkdir(exist_ok=True)
        drawn: dict[str, Any] = {}
        if not config.plays:
            drawn = draw(datasets, config, journal, progress, stop, exact_count=exact_count)
        total, width = (config.games, 1) if config.plays else (drawn["positions"], config.width)
        task = Task(
            numbers=tuple(range(-(-total // width))),
            config=config,
            checkpoint=checkpoint.absolute() if checkpoint and config.uses_network else None,
            journal=journal,
            run_file=journal / f"run-{secrets.token_hex(8)}",
            owner=os.getpid(),
        )

        def show(items: int) -> Tick:
            return Tick(min(items * width, total), total, "games" if config.plays else "positions")

        if finished_only:
            found = read_journals(journal)
        else:
            found = complete(task, remote, workers, progress, stop, show)
        if not found.places:
            raise ExploreError(
                f"nothing is finished in {out}: run the same command without --finished-only"
            )
        described = _describe(found, drawn, identity, config)
        if finished_only:
            figures = described["selfplay"]
            done = figures["games"] if config.plays else figures["searched"] + figures["over"]
            figures["unfinished"] = total - done
        return build(folder, found, config, drawn, described)


def _identify(
    checkpoint: Path | None,
    config: ExploreConfig,
    datasets: Sequence[Path],
    lineage: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return a generation's identity; raises for a checkpoint that cannot be used."""
    player = None
    if config.uses_network:
        if checkpoint is None:
            raise ExploreError(
                f"the explorer {config.explorer} needs a checkpoint: name its directory"
            )
        from model.checkpoint import load

        # the checkpoint is opened here, so that an error is reported once, and not by every process
        network, card = load(checkpoint)
        if network.preset.value == "none":
            raise ExploreError(
                f"{checkpoint} has no value head: a search needs a network with a value"
            )
        player = {
            "weights_sha256": card["files"]["weights"]["sha256"],
            "preset": card["preset"]["name"],
            "step": card["step"],
        }
        if config.device == ONNX:
            from model.inference.onnx_evaluator import open_export

            player["onnx_sha256"] = open_export(checkpoint).sha256
    identity = {
        "format_version": FORMAT_VERSION,
        "encoding_version": ENCODING_VERSION,
        "moves_hash": moves_hash(),
        "checkpoint": player,
        "datasets": identify_datasets(datasets),
        "config": config,
        "lineage": dict(lineage or {}),
    }
    return to_jsonable_python(identity)  # type: ignore[no-any-return]


def _describe(
    found: Journals, drawn: Mapping[str, Any], identity: Mapping[str, Any], config: ExploreConfig
) -> dict[str, Any]:
    """Return the manifest's entries beside those of an ingest."""
    figures = count_games(found) if config.plays else count_searches(found, drawn["phases"])
    inputs = {name: identity[name] for name in ("checkpoint", "datasets")}
    return {
        "config": identity["config"],
        "lineage": {**identity["lineage"], **inputs},
        "selfplay": {**figures, "timing": timing(found.work, found.damaged)},
    }


def complete(
    task: Task,
    engine: Engine | None,
    workers: int,
    progress: Progress,
    stop: Stop,
    show: Callable[[int], Tick],
) -> Journals:
    """Do the unfinished items of a task, and return the journals of all its items.

    Each process runs its own network on all of its games at once, without a server of evaluations
    between them (docs/scale.md). With no engine `workers` processes of this machine work, 0 for as
    many as suit it. `show` makes a report of how many items are finished. Raises Stopped where
    `stop` returned True before the last one, and ExploreError where a process cannot go on, or this
    one does not see what others have finished.
    """
    found, wanted = read_journals(task.journal), len(task.numbers)
    missing = tuple(number for number in task.numbers if number not in found.places)
    if missing:
        began, watch, before = time.perf_counter(), Watch(task.journal), wanted - len(missing)

        def report() -> None:
            done = min(watch.count(), len(missing))
            tick, seconds = show(before + done), max(time.perf_counter() - began, 1e-9)
            progress(replace(tick, values={f"{tick.unit}/h": 3600.0 * show(done).done / seconds}))

        _run(replace(task, numbers=missing), engine, workers, report, stop)
        until = time.monotonic() + LATE_SECONDS
        found = read_journals(task.journal)
        while len(found.places) < wanted and not stop() and time.monotonic() < until:
            time.sleep(0.5)
            found = read_journals(task.journal)
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
    """Do a task's items in as many processes as suit; return early when `stop` returns True.

    A process that dies is replaced, and its unfinished items are begun anew.
    """
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
                _run_many(there, min(engine.slots(), items), engine, report, stop)
        elif (processes := min(workers or _suited(task), items)) == 1:
            work_on(task, report, stop)
        else:
            _run_many(task, processes, LocalEngine(processes), report, stop)
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


def _run_many(
    task: Task, processes: int, engine: Engine, report: Callable[[], None], stop: Stop
) -> None:
    """Deal a task's items out to processes of a connected engine, and watch their journal."""
    parts = [replace(task, numbers=task.numbers[first::processes]) for first in range(processes)]
    failed, asked = [], math.inf

    def is_out_of_patience() -> bool:
        nonlocal asked
        report()
        if stop():
            task.run_file.unlink(missing_ok=True)
            asked = min(asked, time.monotonic())
        return time.monotonic() - asked > GRACE

    with closing(engine.map(work_on, parts, is_out_of_patience)) as results:
        for _, status, value in results:
            if status != "ok":
                failed.append((status, value))
                task.run_file.unlink(missing_ok=True)  # the others need not finish first
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
