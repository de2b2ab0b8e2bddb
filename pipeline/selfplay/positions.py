"""Groups of drawn positions, searched side by side: a line of the journal each.

record     number, searched (positions), over (positions where the rules end the game: not
searched), changed (searches whose
           best move is not the policy's first)
searches   a list for each searched position: its row in positions.parquet, then
`pipeline.selfplay.records.search_fields`

A group always has the same positions and starts with an empty cache. So its batches, and with them
the network's answers to the last bit, do not depend on what was searched before. The hand-written
evaluator is faster than a cache.

Axes: N positions, W words of a position, P words of a packed one.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.board.position import COUNTERS
from engine.evaluation.cache import CachedEvaluator
from engine.evaluation.evaluator import Evaluator
from engine.progress import Stop
from engine.search import Search
from engine.selfplay.game import read_search
from pipeline.dataset.files.stored_planes import to_positions
from pipeline.selfplay.config import ExploreConfig
from pipeline.selfplay.draw import read_drawn
from pipeline.selfplay.records import search_fields

CACHE_MIB = 8
"""Evaluation cache of a group."""


def search_groups(
    evaluator: Evaluator, config: ExploreConfig, positions: Path, numbers: Sequence[int], stop: Stop
) -> Iterator[dict[str, Any]]:
    """Search groups of positions, and yield their lines until `stop` returns True."""
    packed_NP, columns = read_drawn(positions)
    positions_NW = to_positions(packed_NP)
    positions_NW[:, COUNTERS] = columns["halfmove"].astype(np.uint64) | columns["ply"].astype(
        np.uint64
    ) << np.uint64(16)
    for number in numbers:
        entry = _search_group(evaluator, config, positions_NW, number, stop)
        if entry is None:
            return
        yield entry


def _search_group(
    evaluator: Evaluator,
    config: ExploreConfig,
    positions_NW: NDArray[np.uint64],
    number: int,
    stop: Stop,
) -> dict[str, Any] | None:
    """Search a group and return its line; None if it was stopped."""
    first, stopped = number * config.width, False
    positions_NW = positions_NW[first : first + config.width]

    def halted() -> bool:
        nonlocal stopped
        stopped = stopped or stop()
        return stopped

    player = CachedEvaluator(evaluator, CACHE_MIB) if config.uses_network else evaluator
    search = Search(player, config.search, games=len(positions_NW), seed=config.seed)
    for slot, position in enumerate(positions_NW):
        search.start(slot, position, game=first + slot)
    slots = np.array(
        [slot for slot in range(search.games) if search.outcome(slot) is None], dtype=np.int64
    )
    search.run(slots, noise=False, stop=halted)
    if stopped:
        return None
    searches, changed = [], 0
    for slot, label, promotion in zip(
        slots.tolist(), *map(np.ndarray.tolist, search.choose(slots)), strict=True
    ):
        root = search.root(slot)
        searches.append([first + slot, *search_fields(read_search(root, label, promotion))])
        if root.mate != 1:  # at a mate in one the network was not asked
            changed += int(root.labels[root.priors.argmax()]) != label
    counts = {"searched": len(slots), "over": len(positions_NW) - len(slots), "changed": changed}
    return {"record": {"number": number, **counts}, "searches": searches}
