"""Play matches between a loop's best network and its controls and other players."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from engine.progress import Progress, Stop, never, silent
from pipeline.finetune.stages import find_control
from pipeline.finetune.state import (
    BEST_FOLDER,
    NOTHING_PROMOTED,
    locate_checkpoint,
    read_state,
    read_weights_hash,
)
from pipeline.matches.arena import play_matches
from pipeline.matches.config import ArenaConfig, SideConfig
from pipeline.storage.preflight import is_installed


def measure_strength(
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
    """Play a loop's best network, at each number of simulations, against controls and engines.

    `tuned` is the loop's folder. The controls are the supervised network and, if there is one, the
    network trained on human rows alone; they play with `simulations[0]`. The hand-written player
    plays with `hand_written` simulations (0: no match), and the UCI engine, if it is installed, at
    each number of nodes.

    Returns the `rows` and `text` of `play_matches`, and the first row as `against_seed`: the match
    with the supervised network at equal simulations. If nothing was promoted, no control plays,
    `against_seed` is None, and the text says so.
    """
    is_supervised = read_weights_hash(tuned / "seed") == read_weights_hash(tuned / BEST_FOLDER)
    control = find_control(locate_checkpoint(tuned, read_state(tuned).best))
    controls = [] if is_supervised else [tuned / "seed", control]
    opponents = [SideConfig(who=str(path), simulations=simulations[0]) for path in controls if path]
    if hand_written:
        opponents.append(SideConfig(who="hand-written", simulations=hand_written))
    if engine and is_installed(engine):
        options = ("Threads=1", "Hash=16") if "stockfish" in engine.lower() else ()
        opponents += [
            SideConfig(who=f"uci:{engine}", nodes=count, options=options) for count in nodes
        ]
    best = [SideConfig(who=str(tuned / BEST_FOLDER), simulations=count) for count in simulations]
    pairings = list(product(best, opponents))
    result: dict[str, Any] = {"out": str(out), "rows": [], "text": ""}
    if pairings:
        result = play_matches(pairings, ArenaConfig(games=games), out, progress=progress, stop=stop)
    if is_supervised:
        result["text"] = f"{NOTHING_PROMOTED}\n\n{result['text']}".rstrip()
    return result | {"against_seed": None if is_supervised else result["rows"][0]}
