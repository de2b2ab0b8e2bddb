"""How strong the best network of a loop is: a ladder against its seed and against outsiders."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from engine.progress import Progress, silent
from pipeline.finetune.config import EvalConfig
from pipeline.finetune.evaluation import outsiders
from pipeline.finetune.outputs import BEST
from pipeline.ladder import ladder
from pipeline.match import ArenaConfig, SideConfig


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
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Play `tuned/best` at every simulation count against the seed, the hand-written player and an engine, into `out`.

    Gives `rows` and `text` as a ladder does; the first row is the seed's, at equal simulations. Raises what a ladder raises.
    """
    against = [SideConfig(who=str(tuned / "seed"), simulations=simulations[0])]
    found = [outsiders(EvalConfig(hand_written=hand_written, engine=engine, nodes=count)) for count in nodes or (1,)]
    met = {(side.who, side.nodes): side for sides in found for side in sides if nodes or side.nodes is None}
    config = ArenaConfig(games=games)
    return ladder(
        str(tuned / BEST), tuple(simulations), [*against, *met.values()], config, out, progress=progress, stop=stop
    )
