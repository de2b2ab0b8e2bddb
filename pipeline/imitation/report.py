"""Compute the report of an imitation: networks on the person's newest games, openings and boards.

Each network is compared with the base on the same positions; intervals resample games.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.progress import Progress, Stop
from pipeline.dataset.dataset import LATEST, Dataset
from pipeline.errors import Stopped
from pipeline.evaluation.game_texts import add_game_tags
from pipeline.imitation import measure


def report_imitation(
    networks: Mapping[str, Path],
    training_set: Path,
    sources: Sequence[str],
    progress: Progress,
    stop: Stop,
) -> dict[str, Any]:
    """Measure networks by name, `base` and `imitation` among them.

    Returns `networks` as `measure.compare` has them, `openings` and `boards`.
    """
    from model.inference.evaluator import evaluator

    opened = {name: evaluator(path) for name, path in networks.items()}
    columns = dict.fromkeys(name for network in opened.values() for name in network.columns)
    dataset = Dataset.open(training_set)
    rows = measure.read_rows(dataset, LATEST, tuple(columns))
    tables = {}
    for name, network in opened.items():
        if stop():
            raise Stopped("stopped before the report; run the same command to write it")
        tables[name] = measure.measure(network, rows, progress)
    base, imitation = tables["base"], tables["imitation"]
    boards = {"found": measure.find_boards(rows, base, imitation)}
    return {
        "networks": [measure.compare(name, base, table) for name, table in tables.items()],
        "openings": measure.find_openings(
            rows, opened["base"], opened["imitation"], base["key"].to_numpy()
        ),
        "boards": add_game_tags(boards, dataset.parts[0], sources)["found"],
    }
