"""ARENA: a candidate's matches, and the verdict on a generation.

The candidate plays the best network, two games per opening, until the SPRT has decided. If it
accepts H1, the candidate plays matches of fixed length against the two controls
(pipeline/finetune/control.py), whose Elo the curves show: the supervised checkpoint, and a network
trained on human rows alone. In the first generation the best network is the supervised one, and the
matches have different openings.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.progress import Progress, Stop
from pipeline.finetune.control import train_control
from pipeline.finetune.state import StageContext, Verdict
from pipeline.matches.config import ArenaConfig, SideConfig
from pipeline.matches.match import format_elo, play_match
from pipeline.selfplay.worker import ONNX
from pipeline.training.export import export_once

SEED_MATCH, CONTROL_MATCH = 500_000, 750_000
"""Added to the random seed for the matches against the supervised checkpoint and against human rows
alone."""


def arena_stage(context: StageContext, progress: Progress, stop: Stop) -> dict[str, Any]:
    """ARENA: play the candidate against the best network and, if accepted, both controls.

    Returns the summaries; `seed` and `control` are None for a rejected candidate. `control` is also
    None without human datasets, for a candidate that was itself trained on human rows alone, and
    where the control's training failed: `control_failed` says why. Raises what `play_match` and
    `train_control` raise, Stopped included; the same call continues.
    """
    from model.training.step import DivergedError

    gate, out, seed = (
        context.config.gate,
        context.folder / "arena",
        1000 * context.config.seed + context.number,
    )
    players = (context.candidate, context.best, context.seed)
    candidate, best, supervised = (_side(who, context, progress) for who in players)
    out.mkdir(parents=True, exist_ok=True)
    sequential = ArenaConfig(games=gate.games, seed=seed, early=True, sprt=gate.sprt)
    first = play_match(candidate, best, sequential, out / "best", progress=progress, stop=stop)
    if first["sprt"]["verdict"] != "H1":
        return {"best": first, "seed": None, "control": None}
    whole = ArenaConfig(games=gate.seed_games, seed=seed + SEED_MATCH, sprt=gate.sprt)
    against_seed = play_match(
        candidate, supervised, whole, out / "seed", progress=progress, stop=stop
    )
    found = {"best": first, "seed": against_seed, "control": None}
    if not context.human or context.config.train.teach == "none":
        return found
    try:
        trained = train_control(context, progress, stop)
    except DivergedError as error:
        return found | {"control_failed": str(error)}
    control = _side(trained, context, progress)
    whole = replace(whole, seed=seed + CONTROL_MATCH)
    return found | {
        "control": play_match(
            candidate, control, whole, out / "control", progress=progress, stop=stop
        )
    }


def _side(checkpoint: Path, context: StageContext, progress: Progress) -> SideConfig:
    """Return a network as a match's side: its 8-bit export where onnxruntime runs networks."""
    who = str(checkpoint)
    if context.config.explore.device == ONNX:
        export_once(checkpoint, context.human, progress)
        who = f"onnx:{who}"
    return SideConfig(who=who, simulations=context.config.gate.simulations)


def describe(match: dict[str, Any]) -> str:
    """Describe the result of a match of fixed length in a few words."""
    return f"Elo {format_elo(match)} in {match['games']} games"


def describe_sequential(match: dict[str, Any]) -> str:
    """Describe a match that the sequential test may have ended, which biases its Elo."""
    return f"score {match['score']:.3f} in {match['games']} games, LLR {match['sprt']['llr']:.2f}"


def decide(stages: dict[str, Any], supervised: dict[str, Any], max_top1_drop: float) -> Verdict:
    """Return the verdict on a generation from its figures and the supervised checkpoint's."""
    if "failed" in stages["train"]:
        return Verdict(reason=f"its training failed: {stages['train']['failed']}")
    gate, seed_match = stages["arena"]["best"], stages["arena"]["seed"]
    if gate["sprt"]["verdict"] == "H0":
        return Verdict(
            reason=f"it is not better than the best: {describe_sequential(gate)}, the test accepts "
            f"H0"
        )
    if gate["sprt"]["verdict"] != "H1":
        return Verdict(reason=f"undecided against the best: {describe_sequential(gate)}")
    if seed_match["score"] < 0.5:
        reason = (
            f"the test accepts it against the best, and it loses to the seed: "
            f"{describe(seed_match)}"
        )
        return Verdict(reason=reason, undone=True)
    before, after = supervised.get("top1"), stages["eval"].get("top1")
    if before is not None and after is not None and before - after > max_top1_drop:
        fall = f"human top-1 fell from {before:.4f} to {after:.4f}"
        return Verdict(reason=f"{fall}, more than {max_top1_drop:g}", undone=True)
    reason = (
        f"accepted against the best: {describe_sequential(gate)}; against the seed "
        f"{describe(seed_match)}"
    )
    if control := stages["arena"].get("control"):
        shown = (
            "a gain over the control"
            if (control["elo_low"] or 0.0) > 0
            else "no significant gain over the control"
        )
        reason += f"; against human rows alone {describe(control)}: {shown}"
    elif why := stages["arena"].get("control_failed"):
        reason += f"; the control's training failed: {why}"
    return Verdict(reason=reason, promoted=True)
