"""The four stages of a generation, the two controls, and the verdict.

    EXPLORE  search positions or play games with the best network (pipeline/selfplay)
    TRAIN    train a candidate from the best network, on searched rows and human rows
    ARENA    play an SPRT against the best network; if it accepts H1, a match with each control
    EVAL     measure how well the candidate still predicts human moves

A stage works in the generation's folder, resumes there after a kill, and returns its figures. It
raises Stopped if it is asked to stop.

The controls are the supervised checkpoint with a calibrated value, and a network trained on human
rows alone. A gain that a control also shows does not come from search. In each generation, the
second control is trained for as many steps as the candidate. It starts from the control of the best
network, or from the supervised checkpoint in the first generation. So controls and best networks
are trained equally long, but a control keeps the weights of its best validation.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from engine.progress import Progress, Stop
from pipeline.dataset.dataset import Dataset
from pipeline.errors import Stopped
from pipeline.evaluation.render import write_report
from pipeline.evaluation.report import PositionFilter, report
from pipeline.finetune.config import FinetuneConfig
from pipeline.finetune.state import HUMAN_COLUMNS, Verdict, promote
from pipeline.matches.config import ArenaConfig, SideConfig
from pipeline.matches.match import format_elo, play_match
from pipeline.selfplay.config import ONNX_DEVICE
from pipeline.selfplay.draw import identify_datasets
from pipeline.training.export import export_once
from pipeline.training.train import find_validated, open_validation, select_columns, train_on

MAX_HUMAN_USES = 1.0
"""Passes over the human rows after which a loop no longer trains on them, if searched rows keep the
policy."""
SEED_MATCH_OFFSET, CONTROL_MATCH_OFFSET = 500_000, 750_000
"""Offsets of the random seed for the matches with the supervised checkpoint, and with the control
trained on human rows alone."""
CONTROL = "control"
"""Folder of a generation's control."""
CONTROL_VALIDATIONS = 5
"""Number of validations of a control. It keeps the best weights, because it overfits if there are
few human rows."""
MAX_EVAL_POSITIONS = 16_384
"""Maximum number of human positions that EVAL measures, over all datasets."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StageContext:
    """The inputs of a stage."""

    number: int
    """Number of the generation; 0 is the supervised checkpoint."""
    folder: Path
    """Folder of the generation."""
    candidate: Path
    """Checkpoint of this generation, written by TRAIN."""
    best: Path
    """Checkpoint of the best network so far."""
    supervised: Path
    """The supervised checkpoint."""
    buffer: tuple[Path, ...]
    """Self-play datasets to train on, the newest last."""
    human: tuple[Path, ...]
    config: FinetuneConfig
    """Settings of the generation."""
    requested: FinetuneConfig
    """Settings as the user gave them; the control is trained with these."""
    lineage: Mapping[str, Any]
    """Origin of the data, for the manifest of the self-play dataset."""
    spent: Mapping[str, float]
    """Earlier uses per row of each dataset, by manifest hash, in the training runs that led to the
    best network."""


Stage = Callable[[StageContext, Progress, Stop], dict[str, Any]]


def explore_stage(context: StageContext, progress: Progress, stop: Stop) -> dict[str, Any]:
    """EXPLORE: search human positions and positions near them, and play games, as configured.

    Each source writes its own dataset. Returns the number of rows, the figures of the games, and
    `sources` with the figures of each source. With `teach` none, does nothing and returns {}.
    """
    from pipeline.selfplay.job import explore

    settings = context.config
    if settings.train.teach == "none":
        return {}
    if settings.explore.uses_network and settings.explore.device == ONNX_DEVICE:
        export_once(context.best, context.human, progress)
    sources: dict[str, dict[str, Any]] = {}
    for source, config in settings.sources.items():
        # each source has its own seed, so that `near` and `people` draw different positions
        words = f"{settings.seed} {config.seed} {context.number} {source}"
        manifest = explore(
            context.best,
            replace(config, seed=zlib.crc32(words.encode())),
            context.folder / source,
            datasets=() if config.plays else context.human,
            exact_count=False,
            lineage=context.lineage,
            engine=settings.engine,
            workers=settings.workers,
            progress=progress,
            stop=stop,
        )
        sources[source] = {**manifest["selfplay"], "positions": manifest["positions"]["train"]}
    rows = sum(figures["positions"] for figures in sources.values())
    return {**sources.get("games", {}), "positions": rows, "sources": sources}


def train_stage(context: StageContext, progress: Progress, stop: Stop) -> dict[str, Any]:
    """TRAIN: train the candidate on self-play and human rows, and return its figures.

    If `teach` is none, it is trained on human rows alone. If training diverged, the result has
    the reason as `failed`.
    """
    from model.training.step import DivergedError
    from pipeline.training.tune import add_uses, tune_on

    settings = context.config
    try:
        if settings.train.teach == "none":
            return _train_on_human_rows(context, progress, stop)
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
    figures = _finished_figures(card)
    return {**figures, "uses": card["uses"], "spent": add_uses(card, context.spent)}


def _human_share(context: StageContext) -> float:
    """Return the share of human rows in a batch, or 0 if they would only be memorized.

    If searched rows keep the policy, training does not need human rows. A small set of human rows
    is memorized in the second pass: with 1,000 games, that pass made both the policy and the value
    worse (docs/log/2026-11-26.md).
    """
    train = context.config.train
    hashes = [entry["manifest_sha256"] for entry in identify_datasets(context.human)]
    uses = min((context.spent.get(name, 0.0) for name in hashes), default=0.0)
    used_up = train.teach == "value" and train.keep_policy and uses >= MAX_HUMAN_USES
    return context.config.human_share if context.human and not used_up else 0.0


def _train_on_human_rows(context: StageContext, progress: Progress, stop: Stop) -> dict[str, Any]:
    """Train a candidate on human rows alone, for as many steps as with searched rows."""
    from model.checkpoint import read_card

    settings = context.config
    config = settings.training(settings.seed + context.number)
    assert config.epochs is not None
    rows = settings.explore.count * config.epochs / (1.0 - settings.human_share)
    steps = max(1, round(rows / config.batch_size))
    config = replace(config, epochs=None, steps=steps, frozen_norms=False)
    preset = read_card(context.best)["preset"]["name"]
    human = [Dataset.open(path) for path in context.human]
    card = train_on(human, preset, config, context.candidate, progress, stop, context.best)
    figures, spent = _finished_figures(card), dict(context.spent)
    passes = card["positions"] / sum(dataset.count_rows("train") for dataset in human)
    for name in {entry["manifest_sha256"] for entry in identify_datasets(context.human)}:
        spent[name] = spent.get(name, 0.0) + passes
    return figures | {"spent": spent}


def _finished_figures(card: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of a training run; raise Stopped if it is not finished."""
    if not card["finished"]:
        raise Stopped(f"stopped at step {card['step']}")
    return {"step": card["step"], "positions": card["positions"], **card["metrics"]}


def arena_stage(context: StageContext, progress: Progress, stop: Stop) -> dict[str, Any]:
    """ARENA: play the candidate against the best network and, if accepted, both controls.

    Returns the summaries of the matches as `best`, `seed` and `control`. The last two are None for
    a rejected candidate. `control` is also None without human datasets, if the candidate itself was
    trained on human rows alone, and if the control's training failed (`control_failed` says why).
    """
    from model.training.step import DivergedError

    gate, out = context.config.gate, context.folder / "arena"
    seed = 1000 * context.config.seed + context.number
    candidate = _side(context.candidate, context, progress)
    out.mkdir(parents=True, exist_ok=True)

    def play(name: str, other: Path, config: ArenaConfig) -> dict[str, Any]:
        opponent = _side(other, context, progress)
        return play_match(candidate, opponent, config, out / name, progress=progress, stop=stop)

    sequential = ArenaConfig(games=gate.games, seed=seed, early=True, sprt=gate.sprt)
    found: dict[str, Any] = {"best": play("best", context.best, sequential)}
    if found["best"]["sprt"]["verdict"] != "H1":
        return found | {"seed": None, "control": None}
    # another random seed, because in the first generation both opponents are the same network
    full = ArenaConfig(games=gate.seed_games, seed=seed + SEED_MATCH_OFFSET, sprt=gate.sprt)
    found |= {"seed": play("seed", context.supervised, full), "control": None}
    if not context.human or context.config.train.teach == "none":
        return found
    try:
        control = train_control(context, progress, stop)
    except DivergedError as error:
        return found | {"control_failed": str(error)}
    full = replace(full, seed=seed + CONTROL_MATCH_OFFSET)
    return found | {"control": play("control", control, full)}


def _side(checkpoint: Path, context: StageContext, progress: Progress) -> SideConfig:
    """Return a checkpoint as a player; with the device onnx, its 8-bit export plays."""
    who = str(checkpoint)
    if context.config.explore.device == ONNX_DEVICE:
        export_once(checkpoint, context.human, progress)
        who = f"onnx:{who}"
    return SideConfig(who=who, simulations=context.config.gate.simulations)


def write_supervised(
    checkpoint: Path, human: Sequence[Path], target: Path, origin: Mapping[str, Any]
) -> None:
    """Copy the supervised checkpoint to `target`; calibrate its value if its training did not.

    A value head that was not trained on results keeps its scale, as in `model.training.loop`.
    """
    from model.calibration import scale_value
    from model.checkpoint import CARD_FILE, load, read_card, save
    from model.network.preset import preset_from_row
    from model.training.config import TrainConfig
    from model.training.loop import VALIDATION_POSITIONS
    from model.training.monitor import CALIBRATED, validate
    from model.training.step import new_run

    if (target / CARD_FILE).exists():
        return
    card, config = read_card(checkpoint), TrainConfig(steps=1)
    keep_scale = card.get("calibration") or not card["config"].get("results", True)
    columns = select_columns(config, preset_from_row(card["preset"]))
    batches = None if keep_scale else open_validation(human, config, columns)
    figures: dict[str, Any] = {}
    if batches is not None:
        network, _ = load(checkpoint)
        run = new_run(config, network.preset)
        run.ema.load_state_dict(network.state_dict())
        figures = validate(run, batches(), VALIDATION_POSITIONS)
    if "value_factor" not in figures:
        promote(checkpoint, target, origin)
        return
    factor = figures["value_factor"]
    scale_value(network, factor)
    kept = {name: value for name, value in card.items() if name not in ("files", "superseded")}
    if factor != 1.0:
        kept.pop("human_search", None)  # it was fitted to the value before calibration
    calibration = {
        "factor": factor,
        "value_brier_before": figures["value_brier"],
        "value_brier": figures[f"{CALIBRATED}value_brier"],
    }
    target.mkdir(parents=True, exist_ok=True)
    added = {"finished": True, "finetune": dict(origin), "calibration": calibration}
    save(target, kept | added, {"weights": network.state_dict()})


def train_control(context: StageContext, progress: Progress, stop: Stop) -> Path:
    """Train a generation's control for as many steps as its candidate; raises Stopped.

    It uses the settings that the user requested, because those adapted to the teacher would weaken
    it. Its batch norms are not frozen, as in `fianchetto train`: freezing them costs 0.008 nats
    (docs/log/2026-11-26.md).
    """
    from model.checkpoint import read_card

    card, out = read_card(context.candidate), context.folder / CONTROL
    steps = card["step"]
    config = context.requested.training(context.requested.seed + context.number)
    config = replace(config, epochs=None, steps=steps, frozen_norms=False)
    if find_validated(context.human, config):
        every = -(-steps // CONTROL_VALIDATIONS)
        config = replace(config, validation_every_steps=every, patience=CONTROL_VALIDATIONS)
    start = find_control(context.best) or context.best
    _finished_figures(
        train_on(context.human, card["preset"]["name"], config, out, progress, stop, start)
    )
    return out


def find_control(checkpoint: Path) -> Path | None:
    """Return the finished control of a generation's checkpoint, or None.

    The supervised checkpoint and networks trained on human rows alone have no control.
    """
    from model.checkpoint import CARD_FILE, read_card

    control = checkpoint.parent / CONTROL
    return control if (control / CARD_FILE).exists() and read_card(control)["finished"] else None


def eval_stage(context: StageContext, progress: Progress, stop: Stop) -> dict[str, Any]:
    """EVAL: return the candidate's figures on human test positions, or {} without such positions.

    Writes a report for each dataset to `eval/`, numbered if two datasets have the same name. Every
    candidate is measured on the same positions.
    """
    opened = [Dataset.open(path) for path in context.human]
    measured = [one.path for one in opened if one.has_rows("test") and not one.has_engine_moves]
    if not measured:
        return {}
    names = [path.resolve().name for path in measured]
    if len(set(names)) < len(names):
        names = [f"{number}-{name}" for number, name in enumerate(names, 1)]
    rule, reports = PositionFilter(limit=max(1, MAX_EVAL_POSITIONS // len(measured))), []
    for directory, name in zip(measured, names, strict=True):
        if stop():
            raise Stopped("stopped while measuring")
        reports.append(report(context.candidate, positions=directory, rule=rule, progress=progress))
        write_report(reports[-1], context.folder / "eval" / name)
    found: dict[str, Any] = {"positions": sum(one["positions"] for one in reports)}
    for figure in HUMAN_COLUMNS:
        known = [one for one in reports if one[figure] is not None]
        if known:
            values, weights = ([one[name] for one in known] for name in (figure, "positions"))
            found[figure] = round(float(np.average(values, weights=weights)), 6)
    return found


DEFAULT_STAGES: Mapping[str, Stage] = {
    "explore": explore_stage,
    "train": train_stage,
    "arena": arena_stage,
    "eval": eval_stage,
}


def decide(stages: dict[str, Any], supervised: dict[str, Any], max_top1_drop: float) -> Verdict:
    """Return the verdict on a generation from its figures and the supervised checkpoint's."""
    if "failed" in stages["train"]:
        return Verdict(reason=f"its training failed: {stages['train']['failed']}")
    arena = stages["arena"]
    test, score, games = arena["best"]["sprt"], arena["best"]["score"], arena["best"]["games"]
    # no Elo, because it is biased if the sequential test ended the match
    against_best = f"score {score:.3f} in {games} games, LLR {test['llr']:.2f}"
    if test["verdict"] == "H0":
        reason = f"it is not better than the best: {against_best}, the SPRT accepts H0"
        return Verdict(reason=reason)
    if test["verdict"] != "H1":
        return Verdict(reason=f"undecided against the best: {against_best}")
    against_seed = _describe(arena["seed"])
    if arena["seed"]["score"] < 0.5:
        reason = "the SPRT accepts it against the best, but it loses to the supervised network"
        return Verdict(reason=f"{reason}: {against_seed}", undone=True)
    before, after = supervised.get("top1"), stages["eval"].get("top1")
    if before is not None and after is not None and before - after > max_top1_drop:
        fall = f"human top-1 fell from {before:.4f} to {after:.4f}"
        return Verdict(reason=f"{fall}, more than {max_top1_drop:g}", undone=True)
    reason = f"accepted against the best: {against_best}; "
    reason += f"against the supervised network {against_seed}"
    if control := arena.get("control"):
        gains = (control["elo_low"] or 0.0) > 0
        shown = "a gain over the control" if gains else "no significant gain over the control"
        reason += f"; against human rows alone {_describe(control)}: {shown}"
    elif why := arena.get("control_failed"):
        reason += f"; the control's training failed: {why}"
    return Verdict(reason=reason, promoted=True)


def _describe(match: dict[str, Any]) -> str:
    return f"Elo {format_elo(match)} in {match['games']} games"
