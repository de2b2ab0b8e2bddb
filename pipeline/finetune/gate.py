"""ARENA: a candidate's matches, and the verdict on a generation.

The candidate plays the best network, two games per opening, until the SPRT has decided. If it accepts H1, the candidate plays
a match of fixed length against the supervised checkpoint, whose Elo the curves show. In the first generation the best network
is the supervised one, and the two matches have different openings.
"""

from pathlib import Path
from typing import Any

from engine.progress import Progress, Stop
from pipeline.finetune.config import GateConfig
from pipeline.finetune.state import Verdict
from pipeline.matches.config import ArenaConfig, SideConfig
from pipeline.matches.match import play_match

SEED_MATCH = 500_000
"""Added to the random seed for the match against the supervised checkpoint."""


def play_gate(
    candidate: Path,
    best: Path,
    supervised: Path,
    config: GateConfig,
    out: Path,
    *,
    seed: int,
    progress: Progress,
    stop: Stop,
) -> dict[str, Any]:
    """Play the candidate's matches in `out/best` and `out/seed`; return both summaries, `seed` None for a rejected one.

    Raises what `play_match` raises, Stopped included; the same call continues.
    """
    a, b, c = (SideConfig(who=str(who), simulations=config.simulations) for who in (candidate, best, supervised))
    out.mkdir(parents=True, exist_ok=True)
    gate = ArenaConfig(games=config.games, seed=seed, early=True, sprt=config.sprt)
    first = play_match(a, b, gate, out / "best", progress=progress, stop=stop)
    if first["sprt"]["verdict"] != "H1":
        return {"best": first, "seed": None}
    whole = ArenaConfig(games=config.seed_games, seed=seed + SEED_MATCH, sprt=config.sprt)
    return {"best": first, "seed": play_match(a, c, whole, out / "seed", progress=progress, stop=stop)}


def describe(match: dict[str, Any]) -> str:
    """Describe a match's result in a few words."""
    interval = f"[{match['elo_low']:+.0f}, {match['elo_high']:+.0f}]"
    return f"Elo {match['elo']:+.0f} {interval} in {match['games']} games"


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
