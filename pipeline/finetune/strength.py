"""How strong the best network of a loop is: matches against its seed and against outsiders."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.progress import Progress, Stop, never, silent
from pipeline.errors import Stopped
from pipeline.evaluation.judgements import DEPTH, judging
from pipeline.evaluation.judgements import judged as judge_positions
from pipeline.executors.local import available_cores
from pipeline.finetune.config import EvalConfig
from pipeline.finetune.evaluation import outsiders
from pipeline.finetune.outputs import BEST
from pipeline.finetune.state import NOTHING_PROMOTED
from pipeline.finetune.strength_page import write_strength_page
from pipeline.matches.arena import play_matches
from pipeline.matches.config import ArenaConfig, SideConfig
from pipeline.matches.judge import searchers, text_of, weigh
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
    judged: int = 0,
    progress: Progress = silent,
    stop: Stop = never,
) -> dict[str, Any]:
    """Play `tuned/best` at every simulation count against the seed, the hand-written player and an engine.

    Matches and their page are written into `out`. Where the engine is installed, it judges every move of `judged` positions
    of these games, and seed and best network are weighed on them (pipeline/matches/judge.py).

    Returns `rows` and `text` of `play_matches`, `judge` as `weigh` returns it or None, and `against_seed`, the first row, at
    equal simulations. If nothing was promoted, the best network is the seed: that match is not played, `against_seed` is
    None, and the text begins with NOTHING_PROMOTED. Raises what `play_matches` and `judged` raise.
    """
    alike = weights_of(tuned / BEST) == weights_of(tuned / "seed")
    against = [] if alike else [SideConfig(who=str(tuned / "seed"), simulations=simulations[0])]
    found = [outsiders(EvalConfig(hand_written=hand_written, engine=engine, nodes=count)) for count in nodes or (1,)]
    met = {(side.who, side.nodes): side for sides in found for side in sides if nodes or side.nodes is None}
    against += met.values()
    result: dict[str, Any] = {"out": str(out), "rows": [], "text": ""}
    if against:
        best = [SideConfig(who=str(tuned / BEST), simulations=count) for count in simulations]
        pairings = [(one, other) for one in best for other in against]
        result = play_matches(pairings, ArenaConfig(games=games), out, progress=progress, stop=stop)
    result |= {"against_seed": None if alike else result["rows"][0], "judge": None}
    if result["rows"] and judged and is_installed(engine):
        names = (BEST,) if alike else ("seed", BEST)
        sides = [SideConfig(who=str(tuned / name), simulations=simulations[0]) for name in names]
        pgn = out / result["rows"][0]["match"] / "games.pgn"
        result["judge"] = _weighed(sides, pgn, out / "judged", judged, engine, progress, stop)
        result["text"] += f"\n\n{text_of(result['judge'])}"
    out.mkdir(parents=True, exist_ok=True)
    write_strength_page(tuned, out, result)
    return result | {"text": f"{NOTHING_PROMOTED}\n\n{result['text']}".rstrip()} if alike else result


def _weighed(
    sides: Sequence[SideConfig], pgn: Path, out: Path, positions: int, engine: str, progress: Progress, stop: Stop
) -> dict[str, Any]:
    """Have the engine judge positions of games in `out`, and weigh the players on them; raises Stopped."""
    length = {"positions": positions, "depth": DEPTH, "workers": available_cores()}
    found = judge_positions(pgn, out, command=judging(engine), **length, progress=progress, stop=stop)
    if stop():
        raise Stopped(f"stopped after {len(found)} judged positions; run the same command to continue")
    return weigh(searchers(sides), found, progress)


def weights_of(checkpoint: Path) -> str:
    """Return the hash of a checkpoint's weights; raises CheckpointError."""
    from model.checkpoint import read_card

    return str(read_card(checkpoint)["files"]["weights"]["sha256"])
