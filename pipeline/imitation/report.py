"""Compute the report of an imitation: networks on the person's newest games, openings, boards, and gains by games.

Each network is compared with the base on the same positions; intervals resample games.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.progress import Progress, Stop
from pipeline.dataset.training_set import LATEST
from pipeline.errors import Stopped
from pipeline.evaluation.page.links import add_game_tags
from pipeline.imitation import measure


def report_imitation(
    networks: Mapping[str, Path],
    curve: Mapping[int, Path],
    training_set: Path,
    sources: Sequence[str],
    progress: Progress,
    stop: Stop,
) -> dict[str, Any]:
    """Measure networks by name, `base` and `imitation` among them, and those of the curve by their number of games.

    Returns `networks` and `curve` as `measure.compare` has them, `validation` of the imitation, `openings` and `boards`.
    """
    from model.inference.evaluator import evaluator

    opened = {name: evaluator(path) for name, path in networks.items()}
    rows = measure.read_rows(training_set, LATEST, list(opened.values()))
    tables = {}
    for name, network in opened.items():
        if stop():
            raise Stopped("stopped before the report; run the same command to write it")
        tables[name] = measure.measure(network, rows, progress)
    base, imitation = tables["base"], tables["imitation"]
    smaller = []
    for games, path in curve.items():
        table = measure.measure(evaluator(path), rows, progress)
        smaller.append({"games": games, **measure.compare(f"{games} games", base, table)})
    unseen = measure.read_rows(training_set, "val", list(opened.values()))
    before, after = (measure.measure(opened[name], unseen, progress) for name in ("base", "imitation"))
    boards = {"found": measure.find_boards(rows, base, imitation)}
    return {
        "networks": [measure.compare(name, base, table) for name, table in tables.items()],
        "validation": measure.compare("validation", before, after),
        "curve": smaller,
        "openings": measure.find_openings(rows, opened["base"], opened["imitation"], base["key"].to_numpy()),
        "boards": add_game_tags(boards, training_set.parent / "positions", sources)["found"],
    }
