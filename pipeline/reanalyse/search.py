"""One process's part of a reanalysis: groups of positions searched side by side, each written to the journal as it ends.

A line of the journal is a group:

record     number, positions, evaluations (asked of the network)
thoughts   one for each position: row (in positions.parquet) and, unless the position was over already: moves (label and
           promotion of each that was played before the search, drawn from the policy), value and draw (the root's, mover's
           view), best (label and promotion), best_value, bare (the network's own value), surprise (KL of the policy target
           from the prior, nats), simulations, labels, shares of the improved policy, priors (moves of one label added up), and
           nodes: of the tree's interior, if asked for: path (label and promotion of each move from the root), value, visits,
           best

A group begins with an empty cache and has always the same positions, so that its batches, and with them a network's answers to
the last bit, do not depend on what was searched before.

Axes: N positions, M moves of one of them, W words of a position.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.board.position import COUNTERS
from engine.evaluation.cache import Cached
from engine.evaluation.evaluator import Evaluator
from engine.progress import Stop, never
from engine.search import Search, SearchConfig
from engine.selfplay.game import sampled_move, search_result_of
from pipeline.dataset.files.shard_files import open_shard
from pipeline.dataset.files.stored_planes import to_positions
from pipeline.reanalyse.config import ReanalyseConfig
from pipeline.selfplay.journal import Journal
from pipeline.selfplay.records import DIGITS
from pipeline.selfplay.worker import Timed, WorkerTask, evaluator_of, work_of

BARE = SearchConfig(simulations=1, policy_temperature=1.0)
"""A search that only expands the root: its priors are the network's policy."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchTask(WorkerTask):
    """Groups of positions for one process."""

    config: ReanalyseConfig
    positions: Path
    """The file of all positions."""


def read_positions(path: Path) -> NDArray[np.uint64]:
    """Return the positions of a file that `pipeline.reanalyse.draw` wrote, uint64[N, W]."""
    parts = []
    with open_shard(path) as reader:
        for group in range(len(reader.groups)):
            rows, packed = reader.read_packed(group, ("halfmove", "ply"))
            part = to_positions(packed)
            part[:, COUNTERS] = rows["halfmove"].astype(np.uint64) | rows["ply"].astype(np.uint64) << np.uint64(16)
            parts.append(part)
    return np.concatenate(parts)


def search_task(task: SearchTask, told: Callable[[], None] = lambda: None, stop: Stop = never) -> int:
    """Search what is missing of a task's groups, and return how many that were; `told` is called after each."""
    if not (missing := task.missing()):
        return 0
    positions_NW = read_positions(task.positions)
    network, device = evaluator_of("network", task)
    timed, journal, groups = Timed(network), Journal(task.journal), 0
    began, clock = time.time(), time.perf_counter()

    def over() -> bool:
        return stop() or not task.wanted

    try:
        for number in missing:
            entry = search_group(timed, task.config, positions_NW, number, over)
            if entry is None:
                break
            journal.add(entry)
            groups += 1
            told()
            if journal.due:
                journal.sync(work_of(began, time.perf_counter() - clock, [timed], [device]))
        journal.sync(work_of(began, time.perf_counter() - clock, [timed], [device]))
    finally:
        journal.close()
    return groups


def search_group(
    timed: Timed, config: ReanalyseConfig, positions_NW: NDArray[np.uint64], number: int, stop: Stop = never
) -> dict[str, Any] | None:
    """Search a group of positions and return its line of the journal; None where `stop` said so before it was done."""
    rows = range(number * config.width, min((number + 1) * config.width, len(positions_NW)))
    evaluator: Evaluator = Cached(timed, config.cache_mib) if config.cache_mib else timed
    before = timed.rows
    search = Search(evaluator, config.search, games=len(rows), seed=config.seed)
    stopped = False

    def halted() -> bool:
        nonlocal stopped
        stopped = stopped or stop()
        return stopped

    moves = _moved(evaluator, config, positions_NW, rows, halted)
    if stopped:
        return None
    over = []
    for slot, row in enumerate(rows):
        search.start(slot, positions_NW[row], game=row)
        for move in moves[slot]:
            search.play(slot, *move)
        over.append(search.outcome(slot) is not None)
    slots = np.flatnonzero(~np.array(over, dtype=np.bool_))

    search.run(slots, stop=halted)
    if stopped:
        return None
    labels, promotions = search.choose(slots, criterion="visits")
    best = {int(slot): (int(labels[at]), int(promotions[at])) for at, slot in enumerate(slots)}
    thoughts = [
        {"row": row} | ({} if over[slot] else _thought(search, slot, moves[slot], best[slot], config.interior))
        for slot, row in enumerate(rows)
    ]
    record = {"number": number, "positions": len(rows), "evaluations": timed.rows - before}
    return {"record": record, "thoughts": thoughts}


def _moved(
    evaluator: Evaluator, config: ReanalyseConfig, positions_NW: NDArray[np.uint64], rows: range, stop: Stop
) -> list[list[tuple[int, int]]]:
    """Return the moves to play before each search: none, or some drawn from the policy, less one that would end the game."""
    most, moves = config.moved_plies, [list[tuple[int, int]]() for _ in rows]
    drawn = [np.random.Generator(np.random.PCG64((config.seed, row, 1))).random(most + 2).tolist() for row in rows]
    chosen = [slot for slot in range(len(rows)) if drawn[slot][0] < config.moved]
    if not chosen:
        return moves
    search = Search(evaluator, BARE, games=len(chosen), seed=config.seed)
    for at, slot in enumerate(chosen):
        search.start(at, positions_NW[rows[slot]])
    for ply in range(most):
        going_on = [
            at
            for at, slot in enumerate(chosen)
            if len(moves[slot]) == ply <= drawn[slot][-1] * most and search.outcome(at) is None
        ]
        if not going_on:
            break
        search.run(np.array(going_on, dtype=np.int64), stop=stop)
        if stop():
            break
        for at in going_on:
            move = sampled_move(search.root(at), config.moved_temperature, drawn[chosen[at]][1 + ply])
            search.play(at, *move)
            if search.outcome(at) is None:
                moves[chosen[at]].append(move)
    return moves


def _thought(
    search: Search, slot: int, moves: list[tuple[int, int]], best: tuple[int, int], interior: int
) -> dict[str, Any]:
    """Return what a search found at its root, and where asked within its tree."""
    root = search.root(slot)
    found = search_result_of(root, *best)
    labels, places = np.unique(root.labels, return_inverse=True)
    priors = np.bincount(places, weights=root.priors)
    shares = np.zeros(len(labels))
    np.add.at(shares, np.searchsorted(labels, found.labels), found.shares)
    kept = shares.round(DIGITS) > 0.0
    surprise = float((shares[kept] * np.log(shares[kept] / np.maximum(priors[kept], 1e-9))).sum())
    thought = {
        "moves": moves,
        "value": round(found.value, DIGITS),
        "draw": round(found.draw, DIGITS),
        "best": best,
        "best_value": round(root.value_of(*best), DIGITS),
        "bare": round(root.bare_value, DIGITS),
        "surprise": round(surprise, DIGITS),
        "simulations": root.simulations,
        "labels": labels[kept].tolist(),
        "shares": shares[kept].round(DIGITS).tolist(),
        "priors": priors[kept].round(DIGITS).tolist(),
    }
    if interior:
        thought["nodes"] = [
            {"path": node.path, "value": round(node.value, DIGITS), "visits": node.visits, "best": node.best}
            for node in search.interior(slot, interior)
        ]
    return thought
