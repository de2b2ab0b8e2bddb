"""A loop without games or training: stages that follow a script, write files as the real ones do,
and can be killed."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from engine.progress import Progress, Stop, Tick
from model.checkpoint import save
from model.network.network import build, count_parameters
from model.network.preset import preset_to_dict
from pipeline.errors import Stopped
from pipeline.finetune.stages import Stage, StageContext
from pipeline.finetune.state import STAGES
from pipeline.storage.stores import publish_json
from tests.model.synthetic import TINY

SCRIPT = {
    1: {"gate": "H1", "seed": 0.6, "top1": 0.40},
    2: {"gate": "H0", "seed": None, "top1": 0.40},
    3: {"gate": "undecided", "seed": None, "top1": 0.39},
    4: {"gate": "H1", "seed": 0.7, "top1": 0.38},
    5: {"gate": "H1", "seed": 0.45, "top1": 0.40},
    6: {"failed": "the loss is not finite at step 3"},
    7: {"gate": "H1", "seed": 0.75, "top1": 0.395, "control": 0.55},
}
"""Outcome of each generation; the seed's top-1 is 0.4. 1 and 7 are promoted, 4 and 5 undone."""


def network(directory: Path, seed: int) -> Path:
    """Write a checkpoint of a tiny untrained network."""
    directory.mkdir(parents=True)
    made = build(TINY, seed=seed)
    card: dict[str, Any] = {"preset": preset_to_dict(TINY), "parameters": count_parameters(made)}
    card |= {"step": 3, "positions": 48, "seconds": 1.0, "finished": True}
    card |= {"metrics": {}, "config": {}, "data": {"datasets": []}}
    save(directory, card, {"weights": made.state_dict()})
    return directory


def networks(folder: Path, count: int = 8) -> Path:
    """Write the checkpoints that training is going to make, `folder/0` being the seed's."""
    for number in range(count):
        network(folder / str(number), number)
    return folder


def match(verdict: str, score: float) -> dict[str, Any]:
    """Return a match's summary, as far as it is read."""
    elo = 800 * (score - 0.5)
    sprt = {"verdict": verdict, "llr": 1.5}
    figures = {"elo": elo, "elo_low": elo - 50, "elo_high": elo + 50}
    return {"games": 100, "score": score, **figures, "sprt": sprt, "finished": True}


class Script:
    """The stages; `seen` lists their calls."""

    def __init__(self, made: Path, script: Mapping[int, Mapping[str, Any]] = SCRIPT) -> None:
        self.made, self.script = made, script
        self.seen: list[tuple[int, str, int, tuple[str, ...]]] = []
        self.spent: dict[int, dict[str, float]] = {}
        self.fail: Callable[[int, str], None] = lambda number, stage: None

    def stages(self) -> dict[str, Stage]:
        """Return the stages by name."""
        return {name: getattr(self, name) for name in STAGES}

    def begin(self, context: StageContext, stage: str, progress: Progress, stop: Stop) -> None:
        """Work in two steps whose files are kept, as every stage does."""
        best, buffer = context.lineage["played_by"], [path.parent.name for path in context.buffer]
        self.seen.append((context.number, stage, best, tuple(buffer)))
        folder = context.folder / stage
        folder.mkdir(exist_ok=True)
        for left in folder.glob(".*.tmp"):
            left.unlink()
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
        if "failed" in self.script[context.number]:
            return {"failed": self.script[context.number]["failed"]}
        shutil.copytree(self.made / str(context.number), context.candidate, dirs_exist_ok=True)
        self.spent[context.number] = dict(context.spent)
        spent = {**context.spent, f"rows of {context.number}": 1.0}
        return {"step": 3, "positions": 48, "loss": 1.0, "spent": spent}

    def arena(self, context: StageContext, progress: Progress, stop: Stop) -> dict[str, Any]:
        self.begin(context, "arena", progress, stop)
        outcome = self.script[context.number]
        gate = match(outcome["gate"], 0.6 if outcome["gate"] == "H1" else 0.48)
        seed = None if outcome["seed"] is None else match("undecided", outcome["seed"])
        control = seed and match("undecided", outcome.get("control", 0.6))
        return {"best": gate, "seed": seed, "control": control}

    def eval(self, context: StageContext, progress: Progress, stop: Stop) -> dict[str, Any]:
        self.begin(context, "eval", progress, stop)
        top1 = self.script[context.number]["top1"] if context.number else 0.4
        return {"top1": top1, "cross_entropy": 2.0}
