"""Run a generation of self-play, resume it after a kill, and turn it into a dataset.

    checkpoint, configuration, datasets
      -> [each process: games or searches -> journal]
      -> shards, manifest

job.json identifies the generation. If a directory was started with other inputs, the job fails and
names the setting that differs. Until the manifest exists, `.journal/` holds the finished items.

A game or search depends only on the seed, its number, the settings and the evaluator. So a killed
and resumed generation writes the same files as an uninterrupted one; only `selfplay.timing` in the
manifest differs. (A network's outputs may differ in the last bits with the batch size. That can
change a game.)
"""

import logging
import math
import os
import secrets
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from engine.compiling import announce_to_workers
from engine.cores import count_cores
from engine.encoding.planes import ENCODING_VERSION, moves_hash
from engine.progress import Progress, Stop, Tick, never, silent
from pipeline.dataset.files.columns import MANIFEST
from pipeline.dataset.files.manifest import read_manifest
from pipeline.errors import ConfigError, Stopped
from pipeline.executors.by_name import make_engine
from pipeline.executors.local import LOCAL, Engine, Failure, LocalEngine
from pipeline.selfplay.config import ONNX_DEVICE, ExploreConfig, ExploreError
from pipeline.selfplay.dataset import build_dataset, count_games, count_searches, summarize_timing
from pipeline.selfplay.draw import DRAWN, draw_positions, identify_datasets
from pipeline.selfplay.worker import Journals, JournalWatch, Task, read_journals, work_on
from pipeline.storage.job_folder import SELFPLAY_KIND, JobFolder

LOG = logging.getLogger(__name__)

FORMAT_VERSION = 2
MAX_LATE_SECONDS = 10.0
"""Maximum number of seconds that a shared folder may take to show all finished items."""
GRACE_SECONDS = 15.0
"""Seconds in which processes may finish their move and their journal before they are cancelled."""
METER_SECONDS = 5.0
"""Seconds between two samples of a GPU's use."""
GPU_PROCESS_BYTES = HOST_PROCESS_BYTES = 3 << 30
"""Memory of one process with a network on a GPU, in bytes: of the GPU, and of the machine."""


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
    """Play games or search positions of `datasets`, write the dataset `out`, return its manifest.

    `finished_only` builds the dataset from the finished items without starting new ones, which
    favors short games. Without `exact_count`, every position is searched if the datasets have fewer
    than `config.count`. `lineage` is copied to the manifest. `workers` is the number of processes:
    0 for one per core, or fewer if a GPU has memory for fewer. `engine` selects where they run, as
    in pipeline.executors.local; all nodes of Ray must see `out` and the checkpoint.

    Raises ExploreError if the directory was started with other settings, the checkpoint has no
    value head, the datasets have no positions, another job is running, or the disk is full. Also
    raises DatasetError, CheckpointError, OnnxError, ConfigError, IngestError and Stopped.
    """
    if workers < 0:
        raise ConfigError("workers must be 0 or more")
    if config.plays and datasets:
        raise ConfigError(
            "self-play games need no datasets: remove them (--reanalyse), or choose the source "
            "people or near"
        )
    if not config.plays and not datasets:
        raise ConfigError(
            f"the source {config.source} searches positions of datasets: name at least one dataset"
        )
    remote = None if engine == LOCAL else make_engine(engine, workers)
    if remote is not None and config.device not in ("auto", "cpu", ONNX_DEVICE):
        raise ConfigError(
            f"{engine} runs on CPUs: remove the device {config.device}, or use the engine {LOCAL}"
        )
    identity = _identify(checkpoint, config, datasets, lineage)
    reads = [path for path in (*datasets, checkpoint) if path is not None]
    folder = JobFolder(out, SELFPLAY_KIND, ExploreError, reads=reads)
    with folder.lock():
        journal = out.absolute() / folder.journal.name
        # without results, the settings may still change
        has_results = (out / MANIFEST).exists() or (journal / DRAWN).exists()
        folder.claim(identity, has_results=has_results or bool(read_journals(journal).finished))
        if folder.is_finished():
            return read_manifest(out)
        journal.mkdir(exist_ok=True)
        drawn: dict[str, Any] = {}
        if not config.plays:
            drawn = draw_positions(
                datasets, config, journal, progress, stop, exact_count=exact_count
            )
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
        if not found.finished:
            raise ExploreError(
                f"nothing is finished in {out}: run the same command without --finished-only"
            )
        figures = count_games(found) if config.plays else count_searches(found, drawn["phases"])
        if finished_only:
            done = figures["games"] if config.plays else figures["searched"] + figures["over"]
            figures["unfinished"] = total - done
        inputs = {name: identity[name] for name in ("checkpoint", "datasets")}
        more = {
            "config": identity["config"],
            "lineage": {**identity["lineage"], **inputs},
            "selfplay": {**figures, "timing": summarize_timing(found)},
        }
        return build_dataset(folder, found, config, drawn, more)


def _identify(
    checkpoint: Path | None,
    config: ExploreConfig,
    datasets: Sequence[Path],
    lineage: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return the identity of a generation; raises if the checkpoint cannot be used."""
    player = None
    if config.uses_network:
        if checkpoint is None:
            raise ExploreError(
                f"the explorer {config.explorer} needs a checkpoint: name its directory"
            )
        from model.checkpoint import load

        # open the checkpoint here, so that an error is reported once and not by every process
        network, card = load(checkpoint)
        if network.preset.value == "none":
            raise ExploreError(
                f"{checkpoint} has no value head: choose a network with one, since search needs it"
            )
        player = {
            "weights_sha256": card["files"]["weights"]["sha256"],
            "preset": card["preset"]["name"],
            "step": card["step"],
        }
        if config.device == ONNX_DEVICE:
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


class GpuMeter:
    """Measure the share of time that the first GPU is busy, with the driver's nvidia-smi."""

    def __init__(self) -> None:
        self.shares: list[float] = []
        self.asked = 0.0

    def read(self) -> dict[str, float]:
        """Return the mean share as `gpu_busy`, sampled every few seconds; {} if not known."""
        if time.monotonic() - self.asked >= METER_SECONDS:
            self.asked = time.monotonic()
            self.shares += self._sample()
        return {"gpu_busy": sum(self.shares) / len(self.shares)} if self.shares else {}

    def _sample(self) -> list[float]:
        import torch

        gpu = torch.cuda.get_device_properties(0).uuid
        words = ["nvidia-smi", f"--id=GPU-{gpu}", "--query-gpu=utilization.gpu"]
        words.append("--format=csv,noheader,nounits")
        try:
            answer = subprocess.run(words, capture_output=True, text=True, timeout=METER_SECONDS)
            return [float(answer.stdout) / 100]
        except (OSError, ValueError, subprocess.TimeoutExpired):
            return []


def complete(
    task: Task,
    engine: Engine | None,
    workers: int,
    progress: Progress,
    stop: Stop,
    show: Callable[[int], Tick],
) -> Journals:
    """Finish the remaining items of a task, and return the journals of all its items.

    Each process evaluates all of its games in one batch with its own network; there is no
    evaluation server (docs/scale.md). Without an engine, `workers` local processes are started, 0
    for the default number. `show` turns a number of finished items into a progress report. Raises
    Stopped, and ExploreError if a process fails or its results are not visible to this one.
    """
    found, wanted = read_journals(task.journal), len(task.numbers)
    missing = tuple(number for number in task.numbers if number not in found.finished)
    if missing:
        watch, before = JournalWatch(task.journal), wanted - len(missing)
        began, meter = time.perf_counter(), None
        if engine is None and task.uses_gpu:
            meter = GpuMeter()

        def report() -> None:
            done = min(watch.count(), len(missing))
            tick, seconds = show(before + done), max(time.perf_counter() - began, 1e-9)
            values = {f"{tick.unit}/h": 3600.0 * show(done).done / seconds}
            values |= meter.read() if meter else {}
            progress(replace(tick, values=values))

        _run(replace(task, numbers=missing), engine, workers, report, stop)
        until = time.monotonic() + MAX_LATE_SECONDS
        found = read_journals(task.journal)
        while len(found.finished) < wanted and not stop() and time.monotonic() < until:
            time.sleep(0.5)
            found = read_journals(task.journal)
    if len(found.finished) < wanted:
        tick = show(len(found.finished))
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
    """Distribute a task's items over processes; return early when `stop` returns True.

    A process that dies is replaced, and its unfinished items are restarted.
    """
    items = len(task.numbers)
    for left in task.journal.glob("run-*"):  # deleting it stops the workers of a dead job
        left.unlink(missing_ok=True)
    task.run_file.touch()
    announce_to_workers("puct")
    try:
        if engine is not None:
            with engine.connect():
                device = ONNX_DEVICE if task.config.device == ONNX_DEVICE else "cpu"
                there = replace(task, owner=None, config=replace(task.config, device=device))
                _run_many(there, min(engine.count_slots(), items), engine, report, stop)
        elif (processes := min(workers or _default_processes(task), items)) == 1:
            work_on(task, report, stop)
        else:
            LOG.info("%d processes", processes)
            _run_many(task, processes, LocalEngine(processes), report, stop)
    finally:
        with suppress(OSError):
            task.run_file.unlink()


def _default_processes(task: Task) -> int:
    """Return the default number of local processes: one per core, if a GPU has the memory."""
    count = count_cores()
    if not task.uses_gpu:
        return count
    import psutil
    import torch

    free: int = torch.cuda.mem_get_info()[0]
    host: int = psutil.virtual_memory().available
    return max(1, min(count, free // GPU_PROCESS_BYTES, host // HOST_PROCESS_BYTES))


def _run_many(
    task: Task, processes: int, engine: Engine, report: Callable[[], None], stop: Stop
) -> None:
    """Distribute a task's items over processes of a connected engine, and watch the journals."""
    parts = [replace(task, numbers=task.numbers[first::processes]) for first in range(processes)]
    failed, stopped_at = [], math.inf

    def is_grace_over() -> bool:
        nonlocal stopped_at
        report()
        if stop():
            task.run_file.unlink(missing_ok=True)
            stopped_at = min(stopped_at, time.monotonic())
        return time.monotonic() - stopped_at > GRACE_SECONDS

    with closing(engine.map(work_on, parts, is_grace_over)) as results:
        for _, status, value in results:
            if status != "ok":
                failed.append((status, value))
                task.run_file.unlink(missing_ok=True)  # stops the other processes
    report()
    for status, value in failed:
        raise _make_failure(status, value)


def _make_failure(status: str, value: Failure | None) -> Exception:
    kept = "finished work is kept, run the same command to continue"
    if status == "lost" or value is None:
        return ExploreError(
            f"a process was killed three times (out of memory?): try fewer --workers; {kept}"
        )
    if value.is_system_error or value.is_user_error:
        return ExploreError(f"{value.message}: {kept}")
    return RuntimeError(f"a process failed: {value.message}\n{value.traceback}")
