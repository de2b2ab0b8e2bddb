"""Run a generation of self-play, resume it after a kill, and turn it into a dataset.

    checkpoint, settings, datasets
      -> [each process: games or searches -> journal]
      -> shards, manifest

job.json identifies the generation. If a directory has results of other inputs or settings, the job
fails and names the difference. Until the manifest exists, `.journal/` has the finished items, which
are games or groups of positions.

A game or search depends only on the seed, its number, the settings and the evaluator. So a killed
and resumed generation writes the same files as an uninterrupted one; only `selfplay.timing` in the
manifest differs. (The last bits of a network's outputs may depend on the batch size, which can
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

from engine.compiling import announce_worker_compiling
from engine.cores import count_cores
from engine.encoding.planes import ENCODING_VERSION, moves_hash
from engine.progress import Progress, Stop, Tick, never, silent
from pipeline.dataset.files.columns import MANIFEST
from pipeline.dataset.files.manifest import read_manifest
from pipeline.errors import ConfigError, Stopped
from pipeline.executors.by_name import make_engine
from pipeline.executors.local import LOCAL, Engine, Failure, LocalEngine
from pipeline.selfplay.config import ONNX_DEVICE, ExploreConfig, ExploreError
from pipeline.selfplay.dataset import (
    build_dataset,
    summarize_games,
    summarize_searches,
    summarize_timing,
)
from pipeline.selfplay.draw import DRAWN_FILE, draw_positions, identify_datasets
from pipeline.selfplay.worker import JournalCounter, Journals, Task, read_journals, run_task
from pipeline.storage.job_folder import SELFPLAY_KIND, JobFolder

LOG = logging.getLogger(__name__)

FORMAT_VERSION = 2
MAX_LATE_SECONDS = 10.0
"""Maximum number of seconds to wait until a shared folder shows the items of other nodes."""
GRACE_SECONDS = 15.0
"""Seconds in which stopped processes may finish their move and journal, before they are killed."""
GPU_SAMPLE_SECONDS = 5.0
"""Interval at which the GPU's utilization is sampled."""
GPU_PROCESS_BYTES = HOST_PROCESS_BYTES = 3 << 30
"""GPU memory and main memory needed by a process that runs a network on a GPU."""


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
    favors short games. If the datasets have fewer positions than `config.count`, all of them are
    searched; with `exact_count`, that is an error. `lineage` is copied to the manifest. `workers`
    is the number of processes: 0 for one per core, or fewer if memory for a GPU's processes is
    short. `engine` selects where they run (pipeline/executors/by_name.py); all nodes of Ray must
    see `out` and the checkpoint.

    Raises ExploreError if the checkpoint is missing or has no value head, the datasets have too few
    positions, the directory is in use or has other results, a process fails, or the disk is full.
    Also raises DatasetError, CheckpointError, OnnxError, ConfigError, IngestError and Stopped.
    """
    if config.plays_games and datasets:
        raise ConfigError("the source games needs no datasets: remove --reanalyse")
    if not config.plays_games and not datasets:
        raise ConfigError(f"the source {config.source} needs datasets: name them with --reanalyse")
    remote = None if engine == LOCAL else make_engine(engine, workers)
    if remote is not None and config.device not in ("auto", "cpu", ONNX_DEVICE):
        raise ConfigError(
            f"{engine} runs on CPUs: remove the device {config.device}, or use the engine {LOCAL}"
        )
    identity = _identify_generation(checkpoint, config, datasets, lineage)
    reads = [path for path in (*datasets, checkpoint) if path is not None]
    folder = JobFolder(out, SELFPLAY_KIND, ExploreError, reads=reads)
    with folder.lock():
        journal = out.absolute() / folder.journal.name
        # until there are results, the job may be restarted with other settings
        has_results = (out / MANIFEST).exists() or (journal / DRAWN_FILE).exists()
        folder.claim(identity, has_results=has_results or bool(read_journals(journal).finished))
        if folder.is_finished():
            return read_manifest(out)
        journal.mkdir(exist_ok=True)
        drawn: dict[str, Any] = {}
        total, width, unit = config.games, 1, "games"
        if not config.plays_games:
            drawn = draw_positions(
                datasets, config, journal, progress, stop, exact_count=exact_count
            )
            total, width, unit = drawn["positions"], config.width, "positions"
        task = Task(
            numbers=tuple(range(-(-total // width))),
            config=config,
            checkpoint=checkpoint.absolute() if checkpoint and config.uses_network else None,
            journal=journal,
            run_file=journal / f"run-{secrets.token_hex(8)}",
            owner=os.getpid(),
        )

        def make_tick(items: int) -> Tick:
            return Tick(min(items * width, total), total, unit)

        if finished_only:
            journals = read_journals(journal)
        else:
            journals = finish_items(task, remote, workers, progress, stop, make_tick)
        if not journals.finished:
            raise ExploreError(
                f"nothing is finished in {out}: run the same command without --finished-only"
            )
        if config.plays_games:
            figures = summarize_games(journals)
            done = figures["games"]
        else:
            figures = summarize_searches(journals, drawn["phases"])
            done = figures["searched"] + figures["over"]
        if finished_only:
            figures["unfinished"] = total - done
        inputs = {name: identity[name] for name in ("checkpoint", "datasets")}
        entries = {
            "config": identity["config"],
            "lineage": {**identity["lineage"], **inputs},
            "selfplay": {**figures, "timing": summarize_timing(journals)},
        }
        return build_dataset(folder, journals, config, drawn, entries)


def _identify_generation(
    checkpoint: Path | None,
    config: ExploreConfig,
    datasets: Sequence[Path],
    lineage: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return the identity of a generation, which a resumed one must share.

    Raises DatasetError, and ExploreError, CheckpointError or OnnxError for an unusable checkpoint.
    """
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
    """Measure the share of time in which the first GPU is busy, with nvidia-smi."""

    def __init__(self) -> None:
        self.samples: list[float] = []
        self.sampled_at = 0.0

    def read(self) -> dict[str, float]:
        """Sample the GPU every few seconds; return the mean so far as `gpu_busy`, or {}."""
        if time.monotonic() - self.sampled_at >= GPU_SAMPLE_SECONDS:
            self.sampled_at = time.monotonic()
            self.samples += self._sample()
        return {"gpu_busy": sum(self.samples) / len(self.samples)} if self.samples else {}

    def _sample(self) -> list[float]:
        import torch

        gpu = torch.cuda.get_device_properties(0).uuid
        command = ["nvidia-smi", f"--id=GPU-{gpu}", "--query-gpu=utilization.gpu"]
        command.append("--format=csv,noheader,nounits")
        try:
            output = subprocess.check_output(
                command, stderr=subprocess.DEVNULL, text=True, timeout=GPU_SAMPLE_SECONDS
            )
            return [float(output) / 100]
        except (OSError, ValueError, subprocess.SubprocessError):
            return []


def finish_items(
    task: Task,
    engine: Engine | None,
    workers: int,
    progress: Progress,
    stop: Stop,
    make_tick: Callable[[int], Tick],
) -> Journals:
    """Finish the remaining items of a task, and return the journals of all its items.

    Each process evaluates all of its games in one batch with its own network; there is no
    evaluation server (docs/scale.md). Without an engine, `workers` local processes are started, 0
    for the default number. `make_tick` turns a number of finished items into a progress report.
    Raises Stopped, and ExploreError if a process fails or its results are not visible to this one.
    """
    journals, total = read_journals(task.journal), len(task.numbers)
    missing = tuple(number for number in task.numbers if number not in journals.finished)
    if missing:
        counter, before = JournalCounter(task.journal), total - len(missing)
        started, meter = time.perf_counter(), None
        if engine is None and task.uses_gpu:
            meter = GpuMeter()

        def report() -> None:
            done = min(counter.count(), len(missing))
            tick, seconds = make_tick(before + done), max(time.perf_counter() - started, 1e-9)
            values = {f"{tick.unit}/h": 3600.0 * make_tick(done).done / seconds}
            values |= meter.read() if meter else {}
            progress(replace(tick, values=values))

        _run_workers(replace(task, numbers=missing), engine, workers, report, stop)
        until = time.monotonic() + MAX_LATE_SECONDS
        journals = read_journals(task.journal)
        while len(journals.finished) < total and not stop() and time.monotonic() < until:
            time.sleep(0.5)
            journals = read_journals(task.journal)
    if len(journals.finished) < total:
        tick = make_tick(len(journals.finished))
        finished = f"{tick.done:,} of {tick.total:,} {tick.unit}"
        if stop():
            raise Stopped(f"stopped after {finished}; run the same command to continue")
        raise ExploreError(
            f"only {finished} are visible in {task.journal}: use a folder that all nodes share, "
            "and run the same command again"
        )
    return journals


def _run_workers(
    task: Task, engine: Engine | None, workers: int, report: Callable[[], None], stop: Stop
) -> None:
    """Distribute a task's items over processes; return early when `stop` returns True.

    A process that dies is replaced, and its unfinished items are restarted.
    """
    items = len(task.numbers)
    for stale in task.journal.glob("run-*"):  # stop workers that survived a killed job
        stale.unlink(missing_ok=True)
    task.run_file.touch()
    announce_worker_compiling("puct")
    try:
        if engine is not None:
            with engine.connect():
                device = ONNX_DEVICE if task.config.device == ONNX_DEVICE else "cpu"
                remote = replace(task, owner=None, config=replace(task.config, device=device))
                _run_processes(remote, min(engine.count_slots(), items), engine, report, stop)
        elif (processes := min(workers or _default_processes(task), items)) == 1:
            run_task(task, report, stop)
        else:
            LOG.info("%d processes", processes)
            _run_processes(task, processes, LocalEngine(processes), report, stop)
    finally:
        with suppress(OSError):
            task.run_file.unlink()


def _default_processes(task: Task) -> int:
    """Return the default number of processes: one per core, on a GPU as many as memory allows."""
    cores = count_cores()
    if not task.uses_gpu:
        return cores
    import psutil
    import torch

    gpu_bytes: int = torch.cuda.mem_get_info()[0]
    host_bytes: int = psutil.virtual_memory().available
    return max(1, min(cores, gpu_bytes // GPU_PROCESS_BYTES, host_bytes // HOST_PROCESS_BYTES))


def _run_processes(
    task: Task, processes: int, engine: Engine, report: Callable[[], None], stop: Stop
) -> None:
    """Distribute a task's items over processes of a connected engine, and report their progress."""
    parts = [replace(task, numbers=task.numbers[first::processes]) for first in range(processes)]
    failures, stopped_at = [], math.inf

    def should_cancel() -> bool:
        nonlocal stopped_at
        report()
        if stop():
            task.run_file.unlink(missing_ok=True)
            stopped_at = min(stopped_at, time.monotonic())
        return time.monotonic() - stopped_at > GRACE_SECONDS

    with closing(engine.map(run_task, parts, should_cancel)) as results:
        for _, status, value in results:
            if status != "ok":
                failures.append((status, value))
                task.run_file.unlink(missing_ok=True)  # stops the other processes
    report()
    if failures:
        raise _make_error(*failures[0])


def _make_error(status: str, failure: Failure | None) -> Exception:
    remedy = "finished work is kept, run the same command to continue"
    if status == "lost" or failure is None:
        return ExploreError(
            f"a process was killed three times (out of memory?): try fewer --workers; {remedy}"
        )
    if failure.is_system_error or failure.is_user_error:
        return ExploreError(f"{failure.message}: {remedy}")
    return RuntimeError(f"a process failed: {failure.message}\n{failure.traceback}")
