"""EXPLORE and TRAIN, and the table of the four stages.

A stage works in the generation's folder, continues there after a kill, and returns figures. It
raises Stopped when it was asked to stop.
"""

import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from engine.progress import Progress, Stop
from pipeline.errors import Stopped
from pipeline.finetune.control import train_people
from pipeline.finetune.evaluation import eval_stage
from pipeline.finetune.gate import arena_stage
from pipeline.finetune.state import StageContext
from pipeline.selfplay.config import ExploreConfig
from pipeline.selfplay.draw import identify_datasets
from pipeline.selfplay.worker import ONNX
from pipeline.training.export import export_once

HUMAN_USES = 1.0
"""Human rows are left out once a loop has used them this often, where searched rows keep the
policy."""

Stage = Callable[[StageContext, Progress, Stop], dict[str, Any]]


def explore_stage(context: StageContext, progress: Progress, stop: Stop) -> dict[str, Any]:
    """EXPLORE: search human positions and near ones, and play games, into a folder each.

    Returns the number of rows, the figures of the games, and in `sources` those of each source.
    Nothing is done where no search teaches.
    """
    if context.config.train.teach == "none":
        return {}
    from pipeline.selfplay.job import explore

    if context.config.explore.uses_network and context.config.explore.device == ONNX:
        export_once(context.best, context.human, progress)
    sources: dict[str, dict[str, Any]] = {}
    for source, config in context.config.sources.items():
        manifest = explore(
            context.best,
            replace(config, seed=_derive_seed(context, config, source)),
            context.folder / source,
            datasets=() if config.plays else context.human,
            exact_count=False,
            lineage=dict(context.lineage),
            engine=context.config.engine,
            workers=context.config.workers,
            progress=progress,
            stop=stop,
        )
        sources[source] = {**manifest["selfplay"], "positions": manifest["positions"]["train"]}
    rows = sum(figures["positions"] for figures in sources.values())
    return {**sources.get("games", {}), "positions": rows, "sources": sources}


def _derive_seed(context: StageContext, config: ExploreConfig, source: str) -> int:
    """Return a source's random seed: `near` starts from other positions than `people`."""
    return zlib.crc32(f"{context.config.seed} {config.seed} {context.number} {source}".encode())


def train_stage(context: StageContext, progress: Progress, stop: Stop) -> dict[str, Any]:
    """TRAIN: train the candidate on self-play and human rows; {"failed"} if it diverged.

    Only trainings that led to the best network count as uses of a row: a rejected candidate's are
    forgotten with it. Where no search teaches, human rows alone are trained on, for as many steps.
    """
    from model.training.step import DivergedError
    from pipeline.training.tune import add_uses, tune_on

    settings = context.config
    try:
        if settings.train.teach == "none":
            return train_people(context, progress, stop)
        card = tune_on(
            context.buffer,
            context.human,
            context.best,
            settings.training(settings.seed),
            context.candidate,
            human_share=_human_share(context),
            most_uses=settings.most_uses,
            spent=context.spent,
            progress=progress,
            stop=stop,
        )
    except DivergedError as error:
        return {"failed": str(error)}
    if not card["finished"]:
        raise Stopped(f"stopped at step {card['step']}")
    figures = {"step": card["step"], "positions": card["positions"], **card["metrics"]}
    return {**figures, "uses": card["uses"], "spent": add_uses(card, context.spent)}


def _human_share(context: StageContext) -> float:
    """Return the share of human rows in a batch, 0 where they would only be memorized.

    Where searched rows keep the policy it does not need human rows. Few of them are memorized when
    they are used again: the second pass of a loop over 1,000 games made both the policy and the
    value worse (docs/log/2026-11-26.md).
    """
    train = context.config.train
    uses = [
        context.spent.get(entry["manifest_sha256"], 0.0)
        for entry in identify_datasets(context.human)
    ]
    used_up = train.teach == "value" and train.keep_policy and min(uses, default=0.0) >= HUMAN_USES
    return context.config.human_share if context.human and not used_up else 0.0


DEFAULT_STAGES: Mapping[str, Stage] = {
    "explore": explore_stage,
    "train": train_stage,
    "arena": arena_stage,
    "eval": eval_stage,
}
