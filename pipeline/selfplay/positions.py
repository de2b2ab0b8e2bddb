"""Groups of drawn positions, searched side by side: a line of the journal each.

record     number, searched (positions), over (positions where the rules end the game: not searched), changed (searches whose
           best move is not the policy's first)
searches   a list for each searched position: its row in positions.parquet, then `pipeline.selfplay.records.search_fields`

A group always has the same positions and starts with an empty cache. So its batches, and with them the network's answers to
the last bit, do not depend on what was searched before.

Axes: N positions, W words of a position.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.board.position import COUNTERS
from engine.evaluation.cache import Cached
from engine.evaluation.evaluator import Evaluator
from engine.progress import Stop
from engine.search import Search, SearchConfig
from engine.selfplay.game import read_search
from pipeline.dataset.files.shard_files import open_shard
from pipeline.dataset.files.stored_planes import to_positions
from pipeline.selfplay.records import search_fields

CACHE_MIB = 8
"""Evaluation cache of a group."""


def read_positions(path: Path) -> NDArray[np.uint64]:
    """Return the positions of a file that `pipeline.selfplay.draw` wrote, uint64[N, W]."""
    parts = []
    with open_shard(path) as reader:
        for group in range(len(reader.groups)):
            rows, packed = reader.read_packed(group, ("halfmove", "ply"))
            part = to_positions(packed)
            part[:, COUNTERS] = rows["halfmove"].astype(np.uint64) | rows["ply"].astype(np.uint64) << np.uint64(16)
            parts.append(part)
    return np.concatenate(parts)


def search_groups(
    evaluator: Evaluator,
    config: SearchConfig,
    width: int,
    positions: Path,
    numbers: Sequence[int],
    seed: int,
    stop: Stop,
) -> Iterator[dict[str, Any]]:
    """Search the groups of these numbers, of `width` positions each, and yield their lines until `stop` returns True."""
    positions_NW = read_positions(positions)
    for number in numbers:
        first = number * width
        entry = _search_group(evaluator, config, positions_NW[first : first + width], first, seed, stop)
        if entry is None:
            return
        entry["record"] = {"number": number, **entry["record"]}
        yield entry


def _search_group(
    evaluator: Evaluator, config: SearchConfig, positions_NW: NDArray[np.uint64], first: int, seed: int, stop: Stop
) -> dict[str, Any] | None:
    """Search a group whose first position is row `first`, and return its line; None if it was stopped."""
    stopped = False

    def halted() -> bool:
        nonlocal stopped
        stopped = stopped or stop()
        return stopped

    search = Search(Cached(evaluator, CACHE_MIB), config, games=len(positions_NW), seed=seed)
    for slot, position in enumerate(positions_NW):
        search.start(slot, position, game=first + slot)
    slots = np.array([slot for slot in range(search.games) if search.outcome(slot) is None], dtype=np.int64)
    search.run(slots, noise=False, stop=halted)
    if stopped:
        return None
    searches, changed = [], 0
    for slot, label, promotion in zip(slots.tolist(), *map(np.ndarray.tolist, search.choose(slots)), strict=True):
        root = search.root(slot)
        searches.append([first + slot, *search_fields(read_search(root, label, promotion))])
        changed += int(root.labels[root.priors.argmax()]) != label
    counts = {"searched": len(slots), "over": len(positions_NW) - len(slots), "changed": changed}
    return {"record": counts, "searches": searches}
