"""The four stages of a generation, the two controls, and the verdict.

    EXPLORE  searches or games of the best network (pipeline/selfplay)
    TRAIN    a candidate from the best network, on searched rows and human rows
    ARENA    SPRT against the best network; if it accepts H1, a match against each control
    EVAL     how well the candidate still predicts people's moves

A stage works in the generation's folder, continues there after a kill, and returns figures. It
raises Stopped when it was asked to stop.

The controls are the supervised checkpoint with a calibrated value, and a network trained on human
rows alone: a gain that a control also shows does not come from search. The control of a generation
starts from the control of the best network, at first from the seed, and has as many steps as the
candidate. So controls and best networks were trained equally long, but a control keeps the weights
of its best validation.
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
from pipeline.evaluation.report import Rule, report
from pipeline.finetune.config import FinetuneConfig
from pipeline.finetune.state import HUMAN, Verdict, promote
from pipeline.matches.config import ArenaConfig, SideConfig
from pipeline.matches.match import format_elo, play_match
from pipeline.selfplay.draw import identify_datasets
from pipeline.selfplay.worker import ONNX
from pipeline.training.export import export_once
from pipeline.training.train import find_validated, open_validation, select_columns, train_on

HUMAN_USES = 1.0
"""Human rows are left out once a loop has used them this often, where searched rows keep the
policy."""
SEED_MATCH, CONTROL_MATCH = 500_000, 750_000
"""Added to the random seed for the matches against the supervised checkpoint and against human rows
alone."""
CONTROL = "control"
"""Folder of a generation's control."""
VALIDATIONS = 5
"""Validations of a control. It keeps the weights of the best one, because it overfits where human
rows are few."""
POSITIONS = 16_384
"""Maximum number of human positions that EVAL measures, over all datasets."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StageContext:
    """The inputs of a stage."""

    number: int
    """Number of the generation; 0 is the supervised checkpoint."""
    folder: Path
    """Folder of the generation."""
    candidate: Path
    """Checkpoint of this generation, which TRAIN writes."""
    best: Path
    """Checkpoint of the best network so far."""
    seed: Path
    """The supervised checkpoint."""
    buffer: tuple[Path, ...]
    """Self-play datasets that TRAIN may read, the newest last."""
    human: tuple[Path, ...]
    """Human datasets."""
    config: FinetuneConfig
    """Settings of the generation."""
    requested: FinetuneConfig
    """The settings as requested, with which the control is trained."""
    lineage: Mapping[str, Any]
    """Origin of the data, for the manifest of the self-play dataset."""
    spent: Mapping[str, float]
    """How often the trainings that led to the best network have used each dataset's rows, by the
    manifest's hash."""


Stage = Callable[[StageContext, Progress, Stop], dict[str, Any]]


def explore_stage(context: StageContext, progress: Progress, stop: Stop) -> dict[str, Any]:
    """EXPLORE: search human positions and near ones, and play games, into a folder each.

    Returns the number of rows, the figures of the games, and in `sources` those of each source.
    Nothing is done where no search teaches.
    """
    from pipeline.selfplay.job import explore

    settings = context.config
    if settings.train.teach == "none":
        return {}
    if settings.explore.uses_network and settings.explore.device == ONNX:
        export_once(context.best, context.human, progress)
    sources: dict[str, dict[str, Any]] = {}
    for source, config in settings.sources.items():
        # another seed for each source, so that `near` starts from other positions than `people`
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
    """TRAIN: train the candidate on self-play and human rows; {"failed"} if it diverged.

    Only trainings that led to the best network count as uses of a row: a rejected candidate's are
    forgotten with it. Where no search teaches, human rows alone are trained on, for as many steps.
    """
    from model.training.step import DivergedError
    from pipeline.training.tune import add_uses, tune_on

    settings = context.config
    try:
        if settings.train.teach == "none":
            return _train_people(context, progress, stop)
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
    figures = _finish(card)
    return {**figures, "uses": card["uses"], "spent": add_uses(card, context.spent)}


def _human_share(context: StageContext) -> float:
    """Return the share of human rows in a batch, 0 where they would only be memorized.

    Where searched rows keep the policy it does not need human rows. Few of them are memorized when
    they are used again: the second pass of a loop over 1,000 games made both the policy and the
    value worse (docs/log/2026-11-26.md).
    """
    train = context.config.train
    hashes = [entry["manifest_sha256"] for entry in identify_datasets(context.human)]
    uses = min((context.spent.get(name, 0.0) for name in hashes), default=0.0)
    used_up = train.teach == "value" and train.keep_policy and uses >= HUMAN_USES
    return context.config.human_share if context.human and not used_up else 0.0


def _train_people(context: StageContext, progress: Progress, stop: Stop) -> dict[str, Any]:
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
    figures, spent = _finish(card), dict(context.spent)
    passes = card["positions"] / sum(dataset.count("train") for dataset in human)
    for name in {entry["manifest_sha256"] for entry in identify_datasets(context.human)}:
        spent[name] = spent.get(name, 0.0) + passes
    return figures | {"spent": spent}


def _finish(card: Mapping[str, Any]) -> dict[str, Any]:
    """Return a training's figures; raises Stopped for one that is not finished."""
    if not card["finished"]:
        raise Stopped(f"stopped at step {card['step']}")
    return {"step": card["step"], "positions": card["positions"], **card["metrics"]}


def arena_stage(context: StageContext, progress: Progress, stop: Stop) -> dict[str, Any]:
    """ARENA: play the candidate against the best network and, if accepted, both controls.

    Returns the summaries; `seed` and `control` are None for a rejected candidate. `control` is also
    None without human datasets, for a candidate that was itself trained on human rows alone, and
    where the control's training failed: `control_failed` says why. Raises what `play_match` and
    `train_control` raise, Stopped included; the same call continues.
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
    # in the first generation the best network is the seed, so the openings differ
    whole = ArenaConfig(games=gate.seed_games, seed=seed + SEED_MATCH, sprt=gate.sprt)
    found |= {"seed": play("seed", context.seed, whole), "control": None}
    if not context.human or context.config.train.teach == "none":
        return found
    try:
        control = train_control(context, progress, stop)
    except DivergedError as error:
        return found | {"control_failed": str(error)}
    whole = replace(whole, seed=seed + CONTROL_MATCH)
    return found | {"control": play("control", control, whole)}


def _side(checkpoint: Path, context: StageContext, progress: Progress) -> SideConfig:
    """Return a network as a match's side: its 8-bit export where onnxruntime runs networks."""
    who = str(checkpoint)
    if context.config.explore.device == ONNX:
        export_once(checkpoint, context.human, progress)
        who = f"onnx:{who}"
    return SideConfig(who=who, simulations=context.config.gate.simulations)


def write_seed(
    checkpoint: Path, human: Sequence[Path], target: Path, origin: Mapping[str, Any]
) -> None:
    """Copy the supervised checkpoint, and calibrate its value if its training did not.

    A value that did not learn results keeps its scale, as in `model.training.loop`.
    """
    from model.checkpoint import CARD, load, read_card, save
    from model.network.preset import preset_from_row
    from model.training.calibration import scale_value
    from model.training.config import TrainConfig
    from model.training.loop import VALIDATION_POSITIONS
    from model.training.monitor import CALIBRATED, validate
    from model.training.step import new_run

    if (target / CARD).exists():
        return
    card, config = read_card(checkpoint), TrainConfig(steps=1)
    settled = card.get("calibration") or not card["config"].get("results", True)
    columns = select_columns(config, preset_from_row(card["preset"]))
    batches = None if settled else open_validation(human, config, columns)
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
        kept.pop("human_search", None)  # a search's correction was fitted to the other value
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

    It uses the requested settings: those that suit the chosen teacher, such as a value without
    results, would weaken it. Its batch norms follow the human rows, as in `fianchetto train`:
    frozen, they cost 0.008 nats (docs/log/2026-11-26.md).
    """
    from model.checkpoint import read_card

    card, out = read_card(context.candidate), context.folder / CONTROL
    steps = card["step"]
    config = context.requested.training(context.requested.seed + context.number)
    config = replace(config, epochs=None, steps=steps, frozen_norms=False)
    if find_validated(context.human, config):
        every = -(-steps // VALIDATIONS)
        config = replace(config, validation_every_steps=every, patience=VALIDATIONS)
    start = find_control(context.best) or context.best
    done = train_on(context.human, card["preset"]["name"], config, out, progress, stop, start)
    if not done["finished"]:
        raise Stopped(f"stopped at step {done['step']} of the control")
    return out


def find_control(checkpoint: Path) -> Path | None:
    """Return the finished control beside a generation's network, None if there is none.

    The seed has none, and neither has a network that was trained on human rows alone.
    """
    from model.checkpoint import CARD, read_card

    control = checkpoint.parent / CONTROL
    return control if (control / CARD).exists() and read_card(control)["finished"] else None


def eval_stage(context: StageContext, progress: Progress, stop: Stop) -> dict[str, Any]:
    """EVAL: return the candidate's figures on human test positions, {} without any.

    Each dataset has a report in `eval/`, numbered where two folders have one name; datasets of
    engines' moves are left out. The same positions are measured for every candidate. Raises
    Stopped, and what `report` raises.
    """
    opened = [Dataset.open(path) for path in context.human]
    measured = [one.path for one in opened if one.has("test") and not one.has_engine_moves]
    if not measured:
        return {}
    names = [path.resolve().name for path in measured]
    if len(set(names)) < len(names):
        names = [f"{number}-{name}" for number, name in enumerate(names, 1)]
    rule, reports = Rule(limit=max(1, POSITIONS // len(measured))), []
    for directory, name in zip(measured, names, strict=True):
        if stop():
            raise Stopped("stopped while measuring")
        reports.append(report(context.candidate, positions=directory, rule=rule, progress=progress))
        write_report(reports[-1], context.folder / "eval" / name)
    found: dict[str, Any] = {"positions": sum(one["positions"] for one in reports)}
    for figure in HUMAN:
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
    # no Elo: the sequential test may have ended the match, which biases it
    against_best = f"score {score:.3f} in {games} games, LLR {test['llr']:.2f}"
    if test["verdict"] == "H0":
        reason = f"it is not better than the best: {against_best}, the test accepts H0"
        return Verdict(reason=reason)
    if test["verdict"] != "H1":
        return Verdict(reason=f"undecided against the best: {against_best}")
    against_seed = _describe(arena["seed"])
    if arena["seed"]["score"] < 0.5:
        reason = f"the test accepts it against the best, and it loses to the seed: {against_seed}"
        return Verdict(reason=reason, undone=True)
    before, after = supervised.get("top1"), stages["eval"].get("top1")
    if before is not None and after is not None and before - after > max_top1_drop:
        fall = f"human top-1 fell from {before:.4f} to {after:.4f}"
        return Verdict(reason=f"{fall}, more than {max_top1_drop:g}", undone=True)
    reason = f"accepted against the best: {against_best}; against the seed {against_seed}"
    if control := arena.get("control"):
        gains = (control["elo_low"] or 0.0) > 0
        shown = "a gain over the control" if gains else "no significant gain over the control"
        reason += f"; against human rows alone {_describe(control)}: {shown}"
    elif why := arena.get("control_failed"):
        reason += f"; the control's training failed: {why}"
    return Verdict(reason=reason, promoted=True)


def _describe(match: dict[str, Any]) -> str:
    """Describe the result of a match of fixed length in a few words."""
    return f"Elo {format_elo(match)} in {match['games']} games"
