"""One process's part of a generation: games or searches, each written to the journal when it is
finished.

Before every move or search it checks that the file `run_file` exists: deleting a file works on a
full disk too. On the same machine it also checks that the process that started it is alive. So no
process works for a job that is gone. Ray itself ends the tasks of a dead driver.
"""

import os
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.evaluation.cache import CachedEvaluator
from engine.evaluation.evaluator import Evaluator
from engine.evaluation.handwritten import evaluate
from engine.progress import Stop, never
from engine.selfplay.generate import play_games
from pipeline.selfplay.config import ExploreConfig, ExploreError
from pipeline.selfplay.draw import POSITIONS
from pipeline.selfplay.journal import Journal, read_journals
from pipeline.selfplay.positions import search_groups
from pipeline.selfplay.records import game_entry

ONNX = "onnx"
"""The device of a network that onnxruntime runs, from the file beside the checkpoint's card."""
CACHE_MIB = 32
"""Evaluation cache of a process that plays with a network; the hand-written evaluator is as fast as
a cache."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """Numbered items for one process: games to play, or groups of positions to search."""

    numbers: tuple[int, ...]
    config: ExploreConfig
    checkpoint: Path | None
    journal: Path
    """The journal's folder, absolute: a process elsewhere may have another working directory."""
    run_file: Path
    """Workers stop when this file is deleted."""
    owner: int | None
    """Process that the work is done for; None on another machine, where Ray ends it."""

    @property
    def is_wanted(self) -> bool:
        """Return whether the job still waits for the work."""
        return self.owner in (None, os.getpid(), os.getppid()) and self.run_file.exists()


def _open_evaluator(task: Task) -> tuple[Evaluator, str]:
    """Return the evaluator of a task, and its device with its arithmetic."""
    if not task.config.uses_network:
        return evaluate, "compiled"
    assert task.checkpoint is not None, "a network needs a checkpoint"
    if task.config.device == ONNX:
        from model.inference.onnx_evaluator import open_export

        graph = open_export(task.checkpoint)
        return graph, f"cpu onnxruntime {graph.card.get('arithmetic', 'float32')}"
    import torch

    from model.inference.evaluator import evaluator

    if os.getpid() != task.owner:
        torch.set_num_threads(1)
    network = evaluator(task.checkpoint, device=task.config.device)
    return network, f"{network.device} {str(network.dtype).removeprefix('torch.')}"


def work_on(task: Task, report: Callable[[], None] = lambda: None, stop: Stop = never) -> None:
    """Do the unfinished items of a task; `report` is called after each.

    Raises ExploreError where the journal cannot be seen.
    """
    if not task.journal.is_dir():
        raise ExploreError(
            f"{socket.gethostname()} does not see {task.journal}: name an --out that all nodes "
            f"share"
        )
    missing = sorted(set(task.numbers) - read_journals(task.journal).places.keys())
    if not (missing and task.is_wanted):
        return
    evaluator, device = _open_evaluator(task)
    journal, began = Journal(task.journal), time.time()

    def work() -> dict[str, Any]:
        return {"began": round(began, 3), "ended": round(time.time(), 3), "device": device}

    try:
        for entry in _entries(task, evaluator, missing, lambda: stop() or not task.is_wanted):
            journal.add(entry)
            report()
            if journal.due:
                journal.sync(work())
        journal.sync(work())
    finally:
        journal.close()


def _entries(
    task: Task, evaluator: Evaluator, numbers: list[int], stop: Stop
) -> Iterator[dict[str, Any]]:
    """Yield the lines of games or groups of positions as they are finished."""
    config = task.config
    if not config.plays:
        positions = task.journal / POSITIONS
        yield from search_groups(evaluator, config, positions, numbers, stop)
        return
    player = CachedEvaluator(evaluator, CACHE_MIB) if config.uses_network else evaluator
    for game in play_games(
        player, config.search, config, games=numbers, seed=config.seed, stop=stop
    ):
        yield game_entry(game, config.explorer, config.seed)
