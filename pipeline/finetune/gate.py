"""ARENA: a candidate's matches, and the verdict on a generation.

The candidate meets the best in pairs of games from one opening until the SPRT has decided, and only H1 lets it through. One
that is let through then plays all games of a match with the supervised seed, whose length does not depend on its course:
that is the Elo which the curves show. The first candidate's best *is* the seed, and it plays both matches, from other
openings.
"""

from pathlib import Path
from typing import Any

from engine.progress import Progress, Stop, never, silent
from pipeline.finetune.config import EvalConfig, GateConfig
from pipeline.matches.config import ArenaConfig, SideConfig
from pipeline.matches.match import play_match

SEED_MATCH = 500_000
"""Added to the seed of the match with the seed, so that it has openings of its own."""


def matches(
    candidate: Path,
    best: Path,
    seed_checkpoint: Path,
    config: GateConfig,
    out: Path,
    *,
    seed: int,
    progress: Progress = silent,
    stop: Stop = never,
) -> dict[str, Any]:
    """Play the candidate's matches in `out/best` and `out/seed`; returns their summaries, `seed` None where it was not let
    through. Raises Stopped, and what `play_match` raises; the same call goes on.
    """
    out.mkdir(parents=True, exist_ok=True)
    play: dict[str, Any] = {"sprt": config.sprt, "concurrency": config.concurrency}
    gate = ArenaConfig(games=config.games, seed=seed, early=True, **play)
    first = _played(candidate, best, gate, config, out / "best", progress, stop)
    if first["sprt"]["verdict"] != "H1":
        return {"best": first, "seed": None}
    whole = ArenaConfig(games=config.seed_games, seed=seed + SEED_MATCH, **play)
    return {"best": first, "seed": _played(candidate, seed_checkpoint, whole, config, out / "seed", progress, stop)}


def _played(
    a: Path, b: Path, match: ArenaConfig, config: GateConfig, out: Path, progress: Progress, stop: Stop
) -> dict[str, Any]:
    """Play one match to its end and return its summary without the text."""
    first, second = (SideConfig(who=str(who), simulations=config.simulations, options=config.options) for who in (a, b))
    summary = play_match(first, second, match, out, progress=progress, stop=stop)
    return {name: value for name, value in summary.items() if name != "text"}


def told(match: dict[str, Any]) -> str:
    """Write a match's result in a few words."""
    interval = f"[{match['elo_low']:+.0f}, {match['elo_high']:+.0f}]"
    return f"Elo {match['elo']:+.0f} {interval} in {match['games']} games"


def verdict(stages: dict[str, Any], seed_eval: dict[str, Any], config: EvalConfig) -> dict[str, Any]:
    """Judge a generation by its stages' figures: `promoted`, `undone` (let through by the gate and taken back), `reason`."""
    if "failed" in stages["train"]:
        return _verdict(f"its training failed: {stages['train']['failed']}")
    gate, seed_match = stages["arena"]["best"], stages["arena"]["seed"]
    if gate["sprt"]["verdict"] == "H0":
        return _verdict(f"it is not better than the best: {told(gate)}, the test accepts H0")
    if gate["sprt"]["verdict"] != "H1":
        return _verdict(f"the games ran out undecided against the best: {told(gate)}, LLR {gate['sprt']['llr']:.2f}")
    if seed_match["score"] < 0.5:
        return _verdict(f"it beats the best and loses to the seed: {told(seed_match)}", undone=True)
    before, after = seed_eval.get("top1"), stages["eval"].get("top1")
    if before is not None and after is not None and before - after > config.max_top1_drop:
        fall = f"human top-1 fell from {before:.4f} to {after:.4f}"
        return _verdict(f"it has forgotten too much: {fall}, more than {config.max_top1_drop:g}", undone=True)
    reason = f"it beats the best: {told(gate)}; against the seed {told(seed_match)}"
    return {"promoted": True, "undone": False, "reason": reason}


def _verdict(reason: str, *, undone: bool = False) -> dict[str, Any]:
    return {"promoted": False, "undone": undone, "reason": reason}
