"""Play matches between a loop's best network and its controls and other players."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.progress import Progress, Stop, never, silent
from pipeline.finetune.stages import find_control
from pipeline.finetune.state import (
    BEST,
    NOTHING_PROMOTED,
    checkpoint_of,
    read_state,
    read_weights_hash,
)
from pipeline.matches.arena import play_matches
from pipeline.matches.config import ArenaConfig, SideConfig
from pipeline.storage.preflight import is_installed


def strength(
    tuned: Path,
    out: Path,
    *,
    simulations: Sequence[int],
    games: int,
    hand_written: int,
    engine: str,
    nodes: Sequence[int],
    progress: Progress = silent,
    stop: Stop = never,
) -> dict[str, Any]:
    """Play `tuned/best` at each simulation count against the controls, and against engines.

    The controls are the supervised network and, if any, the network trained on human rows alone.
    The UCI engine plays at each number of nodes, if it is installed. Returns `rows` and `text` of
    `play_matches`, and `against_seed`: the first row, the match with the supervised network at
    equal simulations; None if nothing was promoted, which the text then says.
    """
    is_supervised = read_weights_hash(tuned / "seed") == read_weights_hash(tuned / BEST)
    control = find_control(checkpoint_of(tuned, read_state(tuned).best))
    controls = [] if is_supervised else [tuned / "seed", control]
    against = [SideConfig(who=str(one), simulations=simulations[0]) for one in controls if one]
    if hand_written:
        against.append(SideConfig(who="hand-written", simulations=hand_written))
    if engine and is_installed(engine):
        options = ("Threads=1", "Hash=16") if "stockfish" in engine.lower() else ()
        against += [
            SideConfig(who=f"uci:{engine}", nodes=count, options=options) for count in nodes
        ]
    best = [SideConfig(who=str(tuned / BEST), simulations=count) for count in simulations]
    pairings = [(one, other) for one in best for other in against]
    result: dict[str, Any] = {"out": str(out), "rows": [], "text": ""}
    if pairings:
        result = play_matches(pairings, ArenaConfig(games=games), out, progress=progress, stop=stop)
    if is_supervised:
        result["text"] = f"{NOTHING_PROMOTED}\n\n{result['text']}".rstrip()
    return result | {"against_seed": None if is_supervised else result["rows"][0]}
