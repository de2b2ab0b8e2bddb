"""One process's part of a generation: games played, each written to the journal as it ends.

It looks at two things before every move: whether the file that says "go on" is still there (taking one away works on a full
disk too), and, on the same machine, whether the process that began it is still alive; so nobody plays on for a job that is
gone. Ray ends the tasks of a driver that is gone by itself.
"""

import multiprocessing
import os
import socket
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event, Lock
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from engine.evaluation.cache import Cached
from engine.evaluation.evaluator import Evaluator, uniform
from engine.evaluation.handwritten import evaluate
from engine.match.openings import Opening
from engine.progress import Stop, never
from engine.search import SearchConfig
from engine.selfplay.generate import play_games
from pipeline.selfplay.config import ExploreConfig, ExploreError
from pipeline.selfplay.groups import side_by_side
from pipeline.selfplay.journal import Journal, read_journals
from pipeline.selfplay.records import entry_of

COMPILED = "compiled"
"""What the evaluators that are no networks run on."""

ONNX = "onnx"
"""The device of a network that onnxruntime runs, from the file beside the checkpoint's card."""


class Settings(Protocol):
    """What a process must know of a configuration to make its evaluator."""

    @property
    def device(self) -> str:
        """Where the network runs: auto, cpu, cuda or onnx."""
        ...

    @property
    def amp(self) -> str:
        """The network's arithmetic."""
        ...

    @property
    def uses_network(self) -> bool:
        """Whether a checkpoint is needed."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerTask:
    """Numbered items for one process: games to play (`Task`), or positions to search (pipeline/reanalyse)."""

    numbers: tuple[int, ...]
    """Those that are finished already are not done again."""
    config: Settings
    search: SearchConfig
    seed: int
    checkpoint: Path | None
    journal: Path
    """The journal's folder."""
    go_on: Path
    """While this file is there."""
    owner: int | None
    """Process that the work is done for; None where it is on another machine: the engine ends what it left."""

    @property
    def wanted(self) -> bool:
        """Return whether the work is still waited for."""
        parent = multiprocessing.parent_process()  # the driver, also where a server forked this process for it
        driven = parent is not None and parent.pid == self.owner and parent.is_alive()
        alive = driven or self.owner is None or self.owner == os.getpid()
        return alive and self.go_on.exists()

    def missing(self) -> list[int]:
        """Return the numbers that no journal has, nothing where nobody waits; ExploreError where the journal is not seen."""
        if not self.journal.is_dir():
            raise ExploreError(
                f"{socket.gethostname()} does not see {self.journal}: name an --out that all nodes share"
            )
        return sorted(set(self.numbers) - read_journals(self.journal).places.keys()) if self.wanted else []


@dataclass(frozen=True, kw_only=True, slots=True)
class Task(WorkerTask):
    """Games for one process; search and seed are the generation's."""

    config: ExploreConfig
    generation: int
    openings: tuple[Opening, ...]


class Timed:
    """An evaluator that answers one thread at a time, and counts what it is asked and how long it takes."""

    def __init__(self, evaluator: Evaluator) -> None:
        self.evaluator, self.lock = evaluator, Lock()
        self.seconds, self.rows, self.batches = 0.0, 0, 0

    def __call__(self, planes_BP: NDArray[np.uint64]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Ask the evaluator."""
        with self.lock:
            began = time.perf_counter()
            said = self.evaluator(planes_BP)
            self.seconds += time.perf_counter() - began
            self.rows += len(planes_BP)
            self.batches += 1
        return said


def evaluator_of(explorer: str, task: WorkerTask) -> tuple[Evaluator, str]:
    """Return an explorer's evaluator, and on what it runs: a device and its arithmetic, or COMPILED."""
    if explorer != "network":
        return (uniform if explorer == "uniform" else evaluate), COMPILED
    assert task.checkpoint is not None, "a network is a checkpoint's"
    if task.config.device == ONNX:
        from model.inference.onnx_evaluator import open_export

        graph = open_export(task.checkpoint)
        return graph, f"cpu onnxruntime {graph.card.get('arithmetic', 'float32')}"
    import torch

    from model.inference.evaluator import evaluator

    if os.getpid() != task.owner:
        torch.set_num_threads(1)
    network = evaluator(task.checkpoint, device=task.config.device, amp=task.config.amp)
    return network, f"{network.device} {str(network.dtype).removeprefix('torch.')}"


def checkpoint_identity(checkpoint: Path, card: Mapping[str, Any], device: str) -> dict[str, Any]:
    """Return what tells a checkpoint from others; raises OnnxError where the device is ONNX and it has no export."""
    said = {
        "weights_sha256": card["files"]["weights"]["sha256"],
        "preset": card["preset"]["name"],
        "step": card["step"],
    }
    if device == ONNX:
        from model.inference.onnx_evaluator import open_export

        # what is wrong with it is said here, once, and not by every process
        said["onnx_sha256"] = open_export(checkpoint).sha256
    return said


def play_task(task: Task, told: Callable[[], None] = lambda: None, stop: Stop = never) -> int:
    """Play what is missing of a task's games, and give how many that were; `told` is called after every game."""
    by_explorer: dict[str, list[int]] = {}
    if not (missing := task.missing()):
        return 0
    for number in missing:
        by_explorer.setdefault(task.config.explorer_of(number, task.seed), []).append(number)
    journal, games = Journal(task.journal), 0
    try:
        player = _Player(task, stop)
        for explorer, numbers in sorted(by_explorer.items()):
            with closing(player.play(explorer, numbers)) as entries:
                for entry in entries:
                    if entry is not None:
                        journal.add(entry)
                        games += 1
                        told()
                    if journal.due:
                        journal.sync(player.work())
        journal.sync(player.work())
    finally:
        journal.close()
    return games


class _Player:
    """Plays, and knows what it has cost."""

    def __init__(self, task: Task, stop: Stop) -> None:
        self.task, self.asked = task, stop
        self.began, self.clock = time.time(), time.perf_counter()
        self.timed: list[Timed] = []
        self.devices: list[str] = []
        self.loading = 0.0
        self.over = Event()

    def stop(self) -> bool:
        """Return whether to leave it at that; asked before every move."""
        return self.over.is_set() or self.asked() or not self.task.wanted

    def play(self, explorer: str, numbers: list[int]) -> Generator[dict[str, Any] | None, None, None]:
        """Play the games of one explorer: give their journal lines as they end, and now and then None."""
        before = time.perf_counter()
        evaluator, device = evaluator_of(explorer, self.task)
        self.loading += time.perf_counter() - before
        self.timed.append(Timed(evaluator))
        self.devices.append(device)
        on_device = not device.startswith(("cpu", COMPILED))
        groups = min(self.task.config.groups or 1 + on_device, self.task.config.width, len(numbers))
        self.over.clear()
        return side_by_side(
            [self._group(explorer, numbers[first::groups], groups) for first in range(groups)], self.over
        )

    def _group(self, explorer: str, numbers: list[int], groups: int) -> Iterator[dict[str, Any]]:
        """Play some of the games with an explorer's evaluator, which other groups ask too."""
        task, evaluator = self.task, self.timed[-1]
        cached = explorer == "network" and task.config.cache_mib > 0  # the others are as quick as the cache
        games = play_games(
            Cached(evaluator, max(1, task.config.cache_mib // groups)) if cached else evaluator,
            task.search,
            replace(task.config, width=-(-task.config.width // groups)),
            games=numbers,
            seed=task.seed,
            openings=task.openings,
            stop=self.stop,
        )
        for game in games:
            yield entry_of(game, explorer, task.generation)

    def work(self) -> dict[str, Any]:
        """Say what was done so far: moments are seconds since 1970, the rest seconds and counts."""
        return work_of(self.began, time.perf_counter() - self.clock - self.loading, self.timed, self.devices)


def work_of(began: float, seconds: float, timed: Sequence[Timed], devices: Sequence[str]) -> dict[str, Any]:
    """Return what a process has done since `began`, for its journal: moments in seconds since 1970, seconds and counts."""
    return {
        "began": round(began, 3),
        "ended": round(time.time(), 3),
        "seconds": round(seconds, 3),
        "evaluator_seconds": round(sum(each.seconds for each in timed), 3),
        "evaluations": sum(each.rows for each in timed),
        "batches": sum(each.batches for each in timed),
        "devices": list(devices),
    }
