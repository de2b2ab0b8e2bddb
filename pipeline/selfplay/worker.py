"""One process's part of a generation: games played, each written to the journal as it ends.

It looks at two things before every move: whether the file that says "go on" is still there (taking one away works on a full
disk too), and whether the process that began it is still alive; so nobody plays on for a job that is gone.
"""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.evaluation_cache import Cached
from engine.evaluators import Evaluator, uniform
from engine.handwritten import evaluate
from engine.openings import Opening
from engine.search import SearchConfig
from engine.selfplay import play_games
from pipeline.selfplay.config import ExploreConfig
from pipeline.selfplay.journal import Journal, read_journals
from pipeline.selfplay.records import entry_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """Games for one process."""

    numbers: tuple[int, ...]
    """Those that are finished already are not played again."""
    config: ExploreConfig
    search: SearchConfig
    """The generation's."""
    seed: int
    """The generation's."""
    generation: int
    openings: tuple[Opening, ...]
    checkpoint: Path | None
    journal: Path
    """The journal's folder."""
    go_on: Path
    """While this file is there."""
    owner: int
    """Process that the games are played for."""


class Timed:
    """An evaluator that counts what it is asked and how long it takes."""

    def __init__(self, evaluator: Evaluator) -> None:
        self.evaluator = evaluator
        self.seconds, self.rows, self.batches = 0.0, 0, 0

    def __call__(self, planes_BP: NDArray[np.uint64]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Ask the evaluator."""
        began = time.perf_counter()
        said = self.evaluator(planes_BP)
        self.seconds += time.perf_counter() - began
        self.rows += len(planes_BP)
        self.batches += 1
        return said


def evaluator_of(explorer: str, task: Task) -> tuple[Evaluator, str]:
    """Give an explorer's evaluator, and on what it runs."""
    if explorer != "network":
        return (uniform if explorer == "uniform" else evaluate), "compiled"
    import torch

    from model.evaluator import evaluator

    if os.getpid() != task.owner:
        torch.set_num_threads(1)

    assert task.checkpoint is not None, "a network is a checkpoint's"
    network = evaluator(task.checkpoint, device=task.config.device, amp=task.config.amp)
    return network, f"{network.device} {str(network.dtype).removeprefix('torch.')}"


def play_task(
    task: Task, told: Callable[[], None] = lambda: None, stop: Callable[[], bool] = lambda: False
) -> dict[str, Any]:
    """Play what is missing of a task's games, and give what that took; `told` is called after every game."""
    missing = sorted(set(task.numbers) - read_journals(task.journal).places.keys())
    by_explorer: dict[str, list[int]] = {}
    for number in missing:
        by_explorer.setdefault(task.config.explorer_of(number, task.seed), []).append(number)
    journal = Journal(task.journal)
    try:
        player = _Player(task, journal, stop)
        for explorer, numbers in sorted(by_explorer.items()):
            for entry in player.play(explorer, numbers):
                journal.add(entry)
                told()
        journal.sync(player.work())
    finally:
        journal.close()
    return player.work()


class _Player:
    """Plays, and knows what it has cost."""

    def __init__(self, task: Task, journal: Journal, stop: Callable[[], bool]) -> None:
        self.task, self.journal, self.asked = task, journal, stop
        self.began, self.clock = time.time(), time.perf_counter()
        self.timed: list[Timed] = []
        self.devices: list[str] = []
        self.loading = 0.0

    def stop(self) -> bool:
        """Put on the disk what has waited long enough, and tell whether to leave it at that; asked before every move."""
        if self.journal.due:
            self.journal.sync(self.work())
        mine = os.getpid() == self.task.owner or os.getppid() == self.task.owner
        return self.asked() or not mine or not self.task.go_on.exists()

    def play(self, explorer: str, numbers: list[int]) -> Iterator[dict[str, Any]]:
        """Play the games of one explorer: give their journal lines as they end."""
        before = time.perf_counter()
        evaluator, device = evaluator_of(explorer, self.task)
        self.loading += time.perf_counter() - before
        self.timed.append(Timed(evaluator))
        self.devices.append(device)
        config = self.task.config
        cached = explorer == "network" and config.cache_mib > 0  # the others are as quick as the cache
        played = play_games(
            Cached(self.timed[-1], config.cache_mib) if cached else self.timed[-1],
            self.task.search,
            config,
            games=numbers,
            seed=self.task.seed,
            openings=self.task.openings,
            stop=self.stop,
        )
        for game in played:
            yield entry_of(game, explorer, self.task.generation)

    def work(self) -> dict[str, Any]:
        """Say what was done so far: moments are seconds since 1970, the rest seconds and counts."""
        return {
            "began": round(self.began, 3),
            "ended": round(time.time(), 3),
            "seconds": round(time.perf_counter() - self.clock - self.loading, 3),
            "evaluator_seconds": round(sum(timed.seconds for timed in self.timed), 3),
            "evaluations": sum(timed.rows for timed in self.timed),
            "batches": sum(timed.batches for timed in self.timed),
            "devices": self.devices,
        }
