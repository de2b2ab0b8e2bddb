"""Stages for a loop without games or training: they follow a script, write files like the real
stages, and can be killed."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.progress import Progress, Stop, Tick
from pipeline.errors import Stopped
from pipeline.finetune.stages import Stage, StageContext
from pipeline.finetune.state import STAGES
from pipeline.storage.stores import publish_json
from tests.model.test_checkpoint import make

SCRIPT: dict[int, dict[str, Any]] = {
    1: {"gate": "H1", "seed": 0.6, "top1": 0.40},
    2: {"gate": "H0", "seed": None, "top1": 0.40},
    3: {"gate": "undecided", "seed": None, "top1": 0.39},
    4: {"gate": "H1", "seed": 0.7, "top1": 0.38},
    5: {"gate": "H1", "seed": 0.45, "top1": 0.40},
    6: {"failed": "the loss is not finite at step 3"},
    7: {"gate": "H1", "seed": 0.75, "top1": 0.395, "control": 0.55},
}
"""Outcome of each generation. The supervised network's top-1 is 0.4; 1 and 7 are promoted, 4 and 5
undone."""


def write_networks(folder: Path, count: int = 8) -> Path:
    """Write the supervised checkpoint, `folder/0`, and those that training is going to make."""
    for number in range(count):
        make(folder / str(number), seed=number)
    return folder


def match(verdict: str, score: float) -> dict[str, Any]:
    """Return the fields of a match's summary that the loop reads."""
    elo = 800 * (score - 0.5)
    interval = {"elo": elo, "elo_low": elo - 50, "elo_high": elo + 50}
    return {"games": 100, "score": score, **interval, "sprt": {"verdict": verdict, "llr": 1.5}}


class Script:
    """Scripted stages. `calls` has generation, stage, best generation and buffer of each call."""

    def __init__(self, networks: Path) -> None:
        self.networks = networks
        self.calls: list[tuple[int, str, int, tuple[str, ...]]] = []
        self.spent: dict[int, dict[str, float]] = {}
        self.fail: Callable[[int, str], None] = lambda number, stage: None

    def stages(self) -> dict[str, Stage]:
        """Return the stages by name."""
        return {name: getattr(self, name) for name in STAGES}

    def begin(self, context: StageContext, stage: str, progress: Progress, stop: Stop) -> None:
        """Work in two steps, and skip those whose file exists, like the real stages."""
        best, buffer = context.lineage["played_by"], [path.parent.name for path in context.buffer]
        self.calls.append((context.number, stage, best, tuple(buffer)))
        folder = context.folder / stage
        folder.mkdir(exist_ok=True)
        for temporary in folder.glob(".*.tmp"):
            temporary.unlink()
        for step in ("one.json", "two.json"):
            if stop():
                raise Stopped("stopped inside a stage")
            self.fail(context.number, stage)
            progress(Tick(1, 2, "steps", {}))
            if not (folder / step).exists():
                publish_json(folder, step, {"number": context.number, "step": step, "best": best})

    def explore(self, context: StageContext, progress: Progress, stop: Stop) -> dict[str, Any]:
        self.begin(context, "explore", progress, stop)
        return {"games": 10 * context.number, "decisive_share": 0.5, "resignations": 3}

    def train(self, context: StageContext, progress: Progress, stop: Stop) -> dict[str, Any]:
        self.begin(context, "train", progress, stop)
        if "failed" in SCRIPT[context.number]:
            return {"failed": SCRIPT[context.number]["failed"]}
        source = self.networks / str(context.number)
        shutil.copytree(source, context.candidate, dirs_exist_ok=True)
        self.spent[context.number] = dict(context.spent)
        spent = {**context.spent, f"rows of {context.number}": 1.0}
        return {"step": 3, "positions": 48, "loss": 1.0, "spent": spent}

    def arena(self, context: StageContext, progress: Progress, stop: Stop) -> dict[str, Any]:
        self.begin(context, "arena", progress, stop)
        outcome = SCRIPT[context.number]
        gate = match(outcome["gate"], 0.6 if outcome["gate"] == "H1" else 0.48)
        seed = None if outcome["seed"] is None else match("undecided", outcome["seed"])
        control = seed and match("undecided", outcome.get("control", 0.6))
        return {"best": gate, "seed": seed, "control": control}

    def eval(self, context: StageContext, progress: Progress, stop: Stop) -> dict[str, Any]:
        self.begin(context, "eval", progress, stop)
        top1 = SCRIPT[context.number]["top1"] if context.number else 0.4
        return {"top1": top1, "cross_entropy": 2.0}
