"""Measure the strength of a loop's best network in matches against its supervised checkpoint and
against other players.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.progress import Progress, Stop, never, silent
from pipeline.finetune.control import find_control
from pipeline.finetune.outputs import BEST
from pipeline.finetune.state import NOTHING_PROMOTED, checkpoint_of, read_state
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
    """Play `tuned/best` at every simulation count against controls and engines.

    The controls are the supervised network and the one trained on human rows alone, where there is
    one. Matches are written to `out`. The engine plays if it is installed, at each number of nodes.

    Returns `rows` and `text` of `play_matches`, and `against_seed`, the first row, at equal
    simulations. If nothing was promoted, the best network is the supervised one: that match is not
    played, `against_seed` is None, and the text begins with NOTHING_PROMOTED. Raises what
    `play_matches` raises.
    """
    from model.checkpoint import read_card

    supervised, promoted = (
        read_card(tuned / name)["files"]["weights"]["sha256"] for name in ("seed", BEST)
    )
    alike = supervised == promoted
    control = find_control(checkpoint_of(tuned, read_state(tuned).best))
    controls = [] if alike else [tuned / "seed", *([] if control is None else [control])]
    against = [SideConfig(who=str(one), simulations=simulations[0]) for one in controls]
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
    result["against_seed"] = None if alike else result["rows"][0]
    return (
        result | {"text": f"{NOTHING_PROMOTED}\n\n{result['text']}".rstrip()} if alike else result
    )
