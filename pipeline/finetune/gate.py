"""ARENA: a candidate's matches, and the verdict on a generation.

The candidate plays the best network, two games per opening, until the SPRT has decided. If it accepts H1, the candidate plays
a match of fixed length against the supervised checkpoint, whose Elo the curves show. In the first generation the best network
is the supervised one, and the two matches have different openings.
"""

from typing import Any

from engine.progress import Progress, Stop
from pipeline.finetune.state import StageContext, Verdict
from pipeline.matches.config import ArenaConfig, SideConfig
from pipeline.matches.match import format_elo, play_match

SEED_MATCH = 500_000
"""Added to the random seed for the match against the supervised checkpoint."""


def arena_stage(context: StageContext, progress: Progress, stop: Stop) -> dict[str, Any]:
    """ARENA: play the candidate against the best network, and against the supervised one if it is accepted.

    Returns both summaries, `seed` None for a rejected candidate. Raises what `play_match` raises, Stopped included; the same
    call continues.
    """
    gate, out, seed = context.config.gate, context.folder / "arena", 1000 * context.config.seed + context.number
    players = (context.candidate, context.best, context.seed)
    candidate, best, supervised = (SideConfig(who=str(who), simulations=gate.simulations) for who in players)
    out.mkdir(parents=True, exist_ok=True)
    sequential = ArenaConfig(games=gate.games, seed=seed, early=True, sprt=gate.sprt)
    first = play_match(candidate, best, sequential, out / "best", progress=progress, stop=stop)
    if first["sprt"]["verdict"] != "H1":
        return {"best": first, "seed": None}
    whole = ArenaConfig(games=gate.seed_games, seed=seed + SEED_MATCH, sprt=gate.sprt)
    return {
        "best": first,
        "seed": play_match(candidate, supervised, whole, out / "seed", progress=progress, stop=stop),
    }


def describe(match: dict[str, Any]) -> str:
    """Describe a match's result in a few words."""
    return f"Elo {format_elo(match)} in {match['games']} games"


def judge(stages: dict[str, Any], supervised: dict[str, Any], max_top1_drop: float) -> Verdict:
    """Return the verdict on a generation from its stages' figures and those of the supervised checkpoint."""
    if "failed" in stages["train"]:
        return Verdict(reason=f"its training failed: {stages['train']['failed']}")
    gate, seed_match = stages["arena"]["best"], stages["arena"]["seed"]
    if gate["sprt"]["verdict"] == "H0":
        return Verdict(reason=f"it is not better than the best: {describe(gate)}, the test accepts H0")
    if gate["sprt"]["verdict"] != "H1":
        return Verdict(reason=f"undecided against the best: {describe(gate)}, LLR {gate['sprt']['llr']:.2f}")
    if seed_match["score"] < 0.5:
        return Verdict(reason=f"it beats the best and loses to the seed: {describe(seed_match)}", undone=True)
    before, after = supervised.get("top1"), stages["eval"].get("top1")
    if before is not None and after is not None and before - after > max_top1_drop:
        fall = f"human top-1 fell from {before:.4f} to {after:.4f}"
        return Verdict(reason=f"{fall}, more than {max_top1_drop:g}", undone=True)
    return Verdict(
        reason=f"it beats the best: {describe(gate)}; against the seed {describe(seed_match)}", promoted=True
    )
