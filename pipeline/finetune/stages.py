"""The four stages of a generation as the loop calls them: each is one call of the library, and can be gone on with.

A stage is given its turn, works in folders of its own and gives figures that JSON can hold. Called again after a kill it
continues; it raises Stopped where it was asked to stop.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.progress import Progress
from pipeline.errors import Stopped
from pipeline.executors.by_name import LOCAL
from pipeline.finetune.config import FinetuneConfig
from pipeline.finetune.evaluation import evaluate
from pipeline.finetune.gate import matches
from pipeline.finetune.pictures import write_samples


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """What a stage is told: which generation it works for, and who is who."""

    number: int
    """Of the generation; 0 is the supervised seed."""
    folder: Path
    """The generation's own."""
    candidate: Path
    """Checkpoint of this generation, or where it will be."""
    best: Path
    """Checkpoint of the best so far."""
    best_number: int
    """Its generation."""
    seed: Path
    """The supervised checkpoint."""
    buffer: tuple[Path, ...]
    """Self-play datasets that TRAIN may read, the newest last."""
    human: tuple[Path, ...]
    """Human datasets."""
    config: FinetuneConfig
    """The loop's."""
    accepted: bool
    """Whether the gate has let the candidate through; the seed is."""
    lineage: Mapping[str, Any]
    """What the games' manifest tells of the loop."""
    spent: Mapping[str, float]
    """How often the best's trainings have used the rows of datasets, by their manifests' hashes."""


Stage = Callable[[Turn, Progress, Callable[[], bool]], dict[str, Any]]


def explore_stage(turn: Turn, progress: Progress, stop: Callable[[], bool]) -> dict[str, Any]:
    """EXPLORE: play the generation's games, by whom `explore` says; a network is the best so far."""
    from pipeline.selfplay.play import explore

    config = replace(turn.config.explore, seed=turn.config.seed + turn.number)
    if turn.number == 1 and turn.config.first_explorer != "same":
        config = replace(config, explorer=turn.config.first_explorer)
    manifest = explore(
        turn.best,
        config,
        turn.folder / "selfplay",
        generation=min(turn.number, turn.config.anneal) - 1,
        generations=turn.config.anneal,
        lineage=dict(turn.lineage),
        engine=turn.config.engine or LOCAL,
        workers=turn.config.workers,
        progress=progress,
        stop=stop,
    )
    write_samples(turn.folder / "selfplay" / "games.pgn", turn.folder / "eval")
    return {**manifest["selfplay"], "positions": manifest["positions"]["train"]}


def train_stage(turn: Turn, progress: Progress, stop: Callable[[], bool]) -> dict[str, Any]:
    """TRAIN: make the candidate of the buffer's rows and human ones, from the best; a diverged run is a failed candidate.

    A row's uses are those by trainings that led to the best: what a rejected candidate has seen, nobody has seen.
    """
    from model.training.state import DivergedError
    from pipeline.training.tune import spent_after, tune_on

    settings = turn.config
    begin, end = (_pulled(settings, turn.number - 1), _pulled(settings, turn.number))
    config = replace(settings.train, seed=settings.seed, seed_kl_weight=begin, seed_kl_final=end)
    try:
        card = tune_on(
            turn.buffer,
            turn.human,
            turn.seed,
            turn.best,
            config,
            turn.candidate,
            human_share=settings.human_share if turn.human else 0.0,
            most_uses=settings.most_uses,
            spent=turn.spent,
            progress=progress,
            stop=stop,
        )
    except DivergedError as error:
        return {"failed": str(error)}
    if not card["finished"]:
        raise Stopped(f"stopped at step {card['step']}")
    told = {"step": card["step"], "positions": card["positions"], "weights_sha256": card["files"]["weights"]["sha256"]}
    return {**told, **card["metrics"], "uses": card["uses"], "spent": spent_after(card, turn.spent)}


def _pulled(config: FinetuneConfig, done: int) -> float:
    """Give the weight of the pull to the seed after `done` generations, on the line from its first to its last value."""
    share = min(done, config.anneal) / config.anneal
    return config.train.seed_kl_weight + share * (config.train.seed_kl_final - config.train.seed_kl_weight)


def arena_stage(turn: Turn, progress: Progress, stop: Callable[[], bool]) -> dict[str, Any]:
    """ARENA: the candidate against the best, and against the seed when it is let through."""
    out, seed = turn.folder / "arena", 1000 * turn.config.seed + turn.number
    return matches(turn.candidate, turn.best, turn.seed, turn.config.gate, out, seed=seed, progress=progress, stop=stop)


def eval_stage(turn: Turn, progress: Progress, stop: Callable[[], bool]) -> dict[str, Any]:
    """EVAL: measure the candidate; outsiders are met by the seed and by those that the gate has let through."""
    return evaluate(
        turn.candidate,
        turn.seed,
        turn.human,
        turn.config.eval,
        turn.config.gate,
        turn.folder / "eval",
        outside=turn.accepted,
        progress=progress,
        stop=stop,
    )


def real() -> dict[str, Stage]:
    """Give the stages by their names."""
    return {"explore": explore_stage, "train": train_stage, "arena": arena_stage, "eval": eval_stage}


def datasets(human: Sequence[Path]) -> list[dict[str, str]]:
    """Identify the human datasets by name and hash."""
    from pipeline.dataset.files.shards import MANIFEST, file_hash, read_manifest
    from pipeline.dataset.files.vouch import vouch
    from pipeline.errors import DatasetError

    found = []
    for directory in human:
        manifest = read_manifest(directory)
        if not manifest["positions"]["train"]:
            raise DatasetError(f"{directory} has no positions in its train split to fine-tune on")
        vouch(directory, manifest)
        found.append({"name": directory.resolve().name, "manifest_sha256": file_hash(directory / MANIFEST)})
    return found
