"""The four stages of a generation, the two controls, and the verdict.

    EXPLORE  search positions or play games with the best network (pipeline/selfplay)
    TRAIN    train a candidate from the best network, on searched rows and human rows
    ARENA    play an SPRT against the best network; if it accepts H1, a match with each control
    EVAL     measure how well the candidate still predicts human moves

A stage works in the generation's folder, resumes there after a kill, and returns its figures. It
raises Stopped when `stop` returns True.

The controls are the supervised checkpoint with a calibrated value, and a network trained on human
rows alone. A gain that a control also shows does not come from search. If the SPRT accepts a
candidate, the second control is trained for as many steps. It starts from the control of the best
network, or from the best network itself if that has no control. So both have been trained for the
same number of steps, but a control keeps the weights of its best validation.
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
from pipeline.finetune.state import HUMAN_FIGURES, Verdict, replace_checkpoint
from pipeline.matches.config import ArenaConfig, SideConfig
from pipeline.matches.match import format_elo, play_match
from pipeline.selfplay.config import ONNX_DEVICE
from pipeline.selfplay.draw import identify_datasets
from pipeline.training.export import export_once
from pipeline.training.train import (
    find_validation_datasets,
    open_validation,
    select_columns,
    train_on_datasets,
)

MAX_HUMAN_PASSES = 1.0
"""Number of passes after which human rows are no longer used for training, if searched rows keep
the policy (teach=value and keep_policy)."""
SUPERVISED_SEED_OFFSET, CONTROL_SEED_OFFSET = 500_000, 750_000
"""Added to the random seed for the match against the supervised checkpoint, and for the match
against the control trained on human rows alone."""
CONTROL_FOLDER = "control"
"""Name of the folder with a generation's control, beside its checkpoint."""
CONTROL_VALIDATIONS = 5
"""Number of validations while a control is trained. It keeps the weights of the best one, because
it overfits if there are few human rows."""
MAX_EVAL_POSITIONS = 16_384
"""Maximum number of human positions that EVAL uses, over all datasets."""


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
    """Datasets or training sets of human games."""
    config: FinetuneConfig
    """Settings of the generation, adapted to its teacher."""
    requested: FinetuneConfig
    """Settings as the user gave them; the control is trained with these."""
    lineage: Mapping[str, Any]
    """Origin of the searched rows, for the manifests of their datasets."""
    spent: Mapping[str, float]
    """Mean number of uses of each dataset's rows in all training runs that led to the best network,
    by manifest hash."""


Stage = Callable[[StageContext, Progress, Stop], dict[str, Any]]
"""Function that runs a stage and returns its figures."""


def explore_stage(context: StageContext, progress: Progress, stop: Stop) -> dict[str, Any]:
    """EXPLORE: search human positions and positions near them, and play games, as configured.

    Each source writes its own dataset. Returns the number of training rows as `positions`, the
    figures of the games, and those of each source as `sources`. If `teach` is none, returns {}.
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
        seed_text = f"{settings.seed} {config.seed} {context.number} {source}"
        manifest = explore(
            context.best,
            replace(config, seed=zlib.crc32(seed_text.encode())),
            context.folder / source,
            datasets=() if config.plays_games else context.human,
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
    """TRAIN: train the candidate on searched rows and human rows, and return its figures.

    If `teach` is none, it is trained on human rows alone. If training diverged, the only figure is
    the reason, as `failed`.
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
            settings.make_train_config(settings.seed),
            context.candidate,
            human_share=_choose_human_share(context),
            most_uses=settings.most_uses,
            spent=context.spent,
            progress=progress,
            stop=stop,
        )
    except DivergedError as error:
        return {"failed": str(error)}
    figures = _read_figures(card)
    return {**figures, "uses": card["uses"], "spent": add_uses(card, context.spent)}


def _choose_human_share(context: StageContext) -> float:
    """Return the share of human rows in a batch; 0 if there are none, or they are used up.

    Where searched rows keep the policy, training does not need human rows. Few human rows are
    memorized in their second pass: with 1,000 games, that pass made both the policy and the value
    worse (docs/log/2026-11-26.md).
    """
    train = context.config.train
    hashes = [entry["manifest_sha256"] for entry in identify_datasets(context.human)]
    uses = min((context.spent.get(name, 0.0) for name in hashes), default=0.0)
    used_up = train.teach == "value" and train.keep_policy and uses >= MAX_HUMAN_PASSES
    return context.config.human_share if context.human and not used_up else 0.0


def _train_on_human_rows(context: StageContext, progress: Progress, stop: Stop) -> dict[str, Any]:
    """Train a candidate on human rows, for as many steps as with `explore.count` searched rows."""
    from model.checkpoint import read_card

    settings = context.config
    config = settings.make_train_config(settings.seed + context.number)
    assert config.epochs is not None
    rows = settings.explore.count * config.epochs / (1.0 - settings.human_share)
    steps = max(1, round(rows / config.batch_size))
    config = replace(config, epochs=None, steps=steps, frozen_norms=False)
    preset = read_card(context.best)["preset"]["name"]
    human = [Dataset.open(path) for path in context.human]
    card = train_on_datasets(human, preset, config, context.candidate, progress, stop, context.best)
    figures, spent = _read_figures(card), dict(context.spent)
    passes = card["positions"] / sum(dataset.count_rows("train") for dataset in human)
    for name in {entry["manifest_sha256"] for entry in identify_datasets(context.human)}:
        spent[name] = spent.get(name, 0.0) + passes
    return figures | {"spent": spent}


def _read_figures(card: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of a training run; raise Stopped if it is not finished."""
    if not card["finished"]:
        raise Stopped(f"stopped at step {card['step']}")
    return {"step": card["step"], "positions": card["positions"], **card["metrics"]}


def arena_stage(context: StageContext, progress: Progress, stop: Stop) -> dict[str, Any]:
    """ARENA: play the candidate against the best network and, if accepted, against both controls.

    Returns the summaries of the matches as `best`, `seed` and `control`. The last two are None for
    a rejected candidate. `control` is also None without human datasets, if the candidate itself was
    trained on human rows alone, and if the control's training diverged: `control_failed` has the
    reason.
    """
    from model.training.step import DivergedError

    gate, out = context.config.gate, context.folder / "arena"
    seed = 1000 * context.config.seed + context.number
    candidate = _make_side(context.candidate, context, progress)
    out.mkdir(parents=True, exist_ok=True)

    def play_against(name: str, checkpoint: Path, config: ArenaConfig) -> dict[str, Any]:
        opponent = _make_side(checkpoint, context, progress)
        return play_match(candidate, opponent, config, out / name, progress=progress, stop=stop)

    sequential = ArenaConfig(games=gate.games, seed=seed, early=True, sprt=gate.sprt)
    matches: dict[str, Any] = {"best": play_against("best", context.best, sequential)}
    if matches["best"]["sprt"]["verdict"] != "H1":
        return matches | {"seed": None, "control": None}
    # another random seed, because in the first generation both opponents are the same network
    full = ArenaConfig(games=gate.seed_games, seed=seed + SUPERVISED_SEED_OFFSET, sprt=gate.sprt)
    matches |= {"seed": play_against("seed", context.supervised, full), "control": None}
    if not context.human or context.config.train.teach == "none":
        return matches
    try:
        control = train_control(context, progress, stop)
    except DivergedError as error:
        return matches | {"control_failed": str(error)}
    full = replace(full, seed=seed + CONTROL_SEED_OFFSET)
    return matches | {"control": play_against("control", control, full)}


def _make_side(checkpoint: Path, context: StageContext, progress: Progress) -> SideConfig:
    """Return a checkpoint as a player; with the device onnx, its export, made if necessary."""
    who = str(checkpoint)
    if context.config.explore.device == ONNX_DEVICE:
        export_once(checkpoint, context.human, progress)
        who = f"onnx:{who}"
    return SideConfig(who=who, simulations=context.config.gate.simulations)


def write_supervised(
    checkpoint: Path, human: Sequence[Path], target: Path, origin: Mapping[str, Any]
) -> None:
    """Copy the supervised checkpoint to `target`, and calibrate its value on validation rows.

    The value keeps its scale without such rows, if it was calibrated before, or if it was not
    trained on results, as in `model.training.loop`. An existing `target` is left as it is.
    """
    from model.calibration import scale_value
    from model.checkpoint import CARD_FILE, load, read_card, save
    from model.network.preset import preset_from_dict
    from model.training.config import TrainConfig
    from model.training.loop import VALIDATION_POSITIONS
    from model.training.monitor import CALIBRATED_PREFIX, validate
    from model.training.step import new_run

    if (target / CARD_FILE).exists():
        return
    card, config = read_card(checkpoint), TrainConfig(steps=1)
    keep_scale = card.get("calibration") or not card["config"].get("results", True)
    columns = select_columns(config, preset_from_dict(card["preset"]))
    batches = None if keep_scale else open_validation(human, config, columns)
    figures: dict[str, Any] = {}
    if batches is not None:
        network, _ = load(checkpoint)
        run = new_run(config, network.preset)
        run.ema.load_state_dict(network.state_dict())
        figures = validate(run, batches(), VALIDATION_POSITIONS)
    if "value_factor" not in figures:
        replace_checkpoint(checkpoint, target, origin)
        return
    factor = figures["value_factor"]
    scale_value(network, factor)
    entries = {name: value for name, value in card.items() if name not in ("files", "superseded")}
    if factor != 1.0:
        entries.pop("human_search", None)  # it was fitted to the value before calibration
    calibration = {
        "factor": factor,
        "value_brier_before": figures["value_brier"],
        "value_brier": figures[f"{CALIBRATED_PREFIX}value_brier"],
    }
    target.mkdir(parents=True, exist_ok=True)
    entries |= {"finished": True, "finetune": dict(origin), "calibration": calibration}
    save(target, entries, {"weights": network.state_dict()})


def train_control(context: StageContext, progress: Progress, stop: Stop) -> Path:
    """Train a generation's control for as many steps as its candidate, and return its folder.

    The control uses the settings that the user requested, since those adapted to the teacher would
    weaken it. As in `fianchetto train`, its batch norms are not frozen: freezing them costs 0.008
    nats (docs/log/2026-11-26.md). Raises Stopped and DivergedError.
    """
    from model.checkpoint import read_card

    card, out = read_card(context.candidate), context.folder / CONTROL_FOLDER
    steps = card["step"]
    config = context.requested.make_train_config(context.requested.seed + context.number)
    config = replace(config, epochs=None, steps=steps, frozen_norms=False)
    if find_validation_datasets(context.human, config):
        every = -(-steps // CONTROL_VALIDATIONS)
        config = replace(config, validation_every_steps=every, patience=CONTROL_VALIDATIONS)
    start = find_control(context.best) or context.best
    _read_figures(
        train_on_datasets(context.human, card["preset"]["name"], config, out, progress, stop, start)
    )
    return out


def find_control(checkpoint: Path) -> Path | None:
    """Return the folder of the finished control beside a generation's checkpoint, or None.

    Only candidates that learned from searched rows and passed the SPRT can have a control.
    """
    from model.checkpoint import CARD_FILE, read_card

    control = checkpoint.parent / CONTROL_FOLDER
    return control if (control / CARD_FILE).exists() and read_card(control)["finished"] else None


def eval_stage(context: StageContext, progress: Progress, stop: Stop) -> dict[str, Any]:
    """EVAL: return the candidate's figures on human test positions, or {} without such positions.

    Writes a report for each dataset to `eval/`, numbered if two datasets have the same name. The
    figures are averages over the positions, which are the same for every candidate.
    """
    opened = [Dataset.open(path) for path in context.human]
    paths = [data.path for data in opened if data.has_rows("test") and not data.has_engine_moves]
    if not paths:
        return {}
    names = [path.resolve().name for path in paths]
    if len(set(names)) < len(names):
        names = [f"{number}-{name}" for number, name in enumerate(names, 1)]
    rule, reports = PositionFilter(limit=max(1, MAX_EVAL_POSITIONS // len(paths))), []
    for path, name in zip(paths, names, strict=True):
        if stop():
            raise Stopped("stopped between two reports")
        reports.append(report(context.candidate, positions=path, rule=rule, progress=progress))
        write_report(reports[-1], context.folder / "eval" / name)
    figures: dict[str, Any] = {"positions": sum(result["positions"] for result in reports)}
    for name in HUMAN_FIGURES:
        with_figure = [result for result in reports if result[name] is not None]
        if with_figure:
            values = [result[name] for result in with_figure]
            weights = [result["positions"] for result in with_figure]
            figures[name] = round(float(np.average(values, weights=weights)), 6)
    return figures


DEFAULT_STAGES: Mapping[str, Stage] = {
    "explore": explore_stage,
    "train": train_stage,
    "arena": arena_stage,
    "eval": eval_stage,
}


def decide(stages: dict[str, Any], supervised: dict[str, Any], max_top1_drop: float) -> Verdict:
    """Return the verdict on a candidate, from its stages' figures and the supervised EVAL."""
    if "failed" in stages["train"]:
        return Verdict(reason=f"its training failed: {stages['train']['failed']}")
    arena = stages["arena"]
    sprt, score, games = arena["best"]["sprt"], arena["best"]["score"], arena["best"]["games"]
    # no Elo, because it is biased if the sequential test ended the match
    against_best = f"score {score:.3f} in {games} games, LLR {sprt['llr']:.2f}"
    if sprt["verdict"] == "H0":
        reason = f"it is not better than the best: {against_best}, the SPRT accepts H0"
        return Verdict(reason=reason)
    if sprt["verdict"] != "H1":
        return Verdict(reason=f"undecided against the best: {against_best}")
    against_seed = _describe_match(arena["seed"])
    if arena["seed"]["score"] < 0.5:
        reason = "the SPRT accepts it against the best, but it loses to the supervised network"
        return Verdict(reason=f"{reason}: {against_seed}", undone=True)
    before, after = supervised.get("top1"), stages["eval"].get("top1")
    if before is not None and after is not None and before - after > max_top1_drop:
        drop = f"human top-1 fell from {before:.4f} to {after:.4f}"
        return Verdict(reason=f"{drop}, by more than {max_top1_drop:g}", undone=True)
    reason = f"accepted against the best: {against_best}; "
    reason += f"against the supervised network {against_seed}"
    if control := arena.get("control"):
        is_gain = (control["elo_low"] or 0.0) > 0
        gain = "a gain over the control" if is_gain else "no significant gain over the control"
        reason += f"; against human rows alone {_describe_match(control)}: {gain}"
    elif failure := arena.get("control_failed"):
        reason += f"; the control's training failed: {failure}"
    return Verdict(reason=reason, promoted=True)


def _describe_match(match: dict[str, Any]) -> str:
    return f"Elo {format_elo(match)} in {match['games']} games"
