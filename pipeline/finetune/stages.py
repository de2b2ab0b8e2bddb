"""The four stages of a generation as the loop calls them: each is one call of the library, and can be gone on with.

A stage is given its context, works in folders of its own and gives figures that JSON can hold. Called again after a kill it
continues; it raises Stopped where it was asked to stop.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.progress import Progress, Stop
from pipeline.errors import Stopped
from pipeline.executors.by_name import LOCAL
from pipeline.finetune.config import FinetuneConfig
from pipeline.finetune.evaluation import evaluate
from pipeline.finetune.gate import matches
from pipeline.finetune.pictures import write_samples


@dataclass(frozen=True, kw_only=True, slots=True)
class StageContext:
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


Stage = Callable[[StageContext, Progress, Callable[[], bool]], dict[str, Any]]


def explore_stage(context: StageContext, progress: Progress, stop: Stop) -> dict[str, Any]:
    """EXPLORE: search positions of the human datasets with the best network, or play the generation's games."""
    from pipeline.selfplay.job import explore

    config = replace(context.config.explore, seed=context.config.seed + context.number)
    if config.uses_network:
        _exported(context, config.device, progress)
    manifest = explore(
        context.best,
        config,
        context.folder / "selfplay",
        datasets=() if config.plays else context.human,
        lineage=dict(context.lineage),
        engine=context.config.engine or LOCAL,
        workers=context.config.workers,
        progress=progress,
        stop=stop,
    )
    if config.plays:
        write_samples(context.folder / "selfplay" / "games.pgn", context.folder / "eval")
    return {**manifest["selfplay"], "positions": manifest["positions"]["train"]}


def _exported(context: StageContext, device: str, progress: Progress) -> None:
    """Export the best network in 8-bit integers, where onnxruntime is to run it and it has no export yet."""
    from pipeline.selfplay.evaluators import ONNX

    if device != ONNX:
        return
    from model.inference.onnx_evaluator import find_export
    from pipeline.training.export import export_checkpoint

    if find_export(context.best) is None:
        positions = context.human[0] if context.human else None
        export_checkpoint(context.best, positions=positions, int8=True, progress=progress)


def train_stage(context: StageContext, progress: Progress, stop: Stop) -> dict[str, Any]:
    """TRAIN: make the candidate of the buffer's rows and human ones, from the best; a diverged run is a failed candidate.

    A row's uses are those by trainings that led to the best: what a rejected candidate has seen, nobody has seen.
    """
    from model.training.step import DivergedError
    from pipeline.training.tune import add_uses, tune_on

    settings = context.config
    begin, end = (_pulled(settings, context.number - 1), _pulled(settings, context.number))
    config = replace(settings.train, seed=settings.seed, reference_kl_weight=begin, reference_kl_final=end)
    try:
        card = tune_on(
            context.buffer,
            context.human,
            context.seed,
            context.best,
            config,
            context.candidate,
            human_share=settings.human_share if context.human else 0.0,
            most_uses=settings.most_uses,
            spent=context.spent,
            progress=progress,
            stop=stop,
        )
    except DivergedError as error:
        return {"failed": str(error)}
    if not card["finished"]:
        raise Stopped(f"stopped at step {card['step']}")
    told = {"step": card["step"], "positions": card["positions"], "weights_sha256": card["files"]["weights"]["sha256"]}
    return {**told, **card["metrics"], "uses": card["uses"], "spent": add_uses(card, context.spent)}


def _pulled(config: FinetuneConfig, done: int) -> float:
    """Return the weight of the pull to the seed after `done` generations, on the line from its first to its last value."""
    share = min(done, config.anneal) / config.anneal
    return config.train.reference_kl_weight + share * (
        config.train.reference_kl_final - config.train.reference_kl_weight
    )


def arena_stage(context: StageContext, progress: Progress, stop: Stop) -> dict[str, Any]:
    """ARENA: the candidate against the best, and against the seed when it is let through."""
    out, seed = context.folder / "arena", 1000 * context.config.seed + context.number
    return matches(
        context.candidate, context.best, context.seed, context.config.gate, out, seed=seed, progress=progress, stop=stop
    )


def eval_stage(context: StageContext, progress: Progress, stop: Stop) -> dict[str, Any]:
    """EVAL: measure the candidate; outsiders are met by the seed and by those that the gate has let through."""
    return evaluate(
        context.candidate,
        context.seed,
        context.human,
        context.config.eval,
        context.config.gate,
        context.folder / "eval",
        outside=context.accepted,
        progress=progress,
        stop=stop,
    )


def default_stages() -> dict[str, Stage]:
    """Return the stages by their names."""
    return {"explore": explore_stage, "train": train_stage, "arena": arena_stage, "eval": eval_stage}


def datasets(human: Sequence[Path]) -> list[dict[str, str]]:
    """Identify the human datasets by name and hash."""
    from pipeline.dataset.files.shards import MANIFEST, file_hash, read_manifest
    from pipeline.dataset.files.verify_files import verify_files
    from pipeline.errors import DatasetError

    found = []
    for directory in human:
        manifest = read_manifest(directory)
        if not manifest["positions"]["train"]:
            raise DatasetError(f"{directory} has no positions in its train split to fine-tune on")
        verify_files(directory, manifest)
        found.append({"name": directory.resolve().name, "manifest_sha256": file_hash(directory / MANIFEST)})
    return found
