"""Rounds: each game in turn walks to its leaves, all leaves go to the evaluator as one batch, all results come back.

Axes: G slots, N slots searched now, B rows of a batch, P planes, A labels, D depth of a walk, W outcomes.
"""

from math import isfinite
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from engine.board.position import WORDS
from engine.search.expansion import NOT_FINITE, expand
from engine.search.root import begin_root, mate_in_one, prepare_root, restrict_root, shape_priors
from engine.search.simulation import EVALUATE, backup, descend, undo_walk
from engine.search.tree import MAX_DEPTH, NEW, UNKNOWN, WAITING

MOST_KNOWN = 256
"""Walks to known values that one slot makes in a round at most, so that `stop` is asked now and then."""


class Round(NamedTuple):
    """The leaves of one round, B rows at most."""

    planes: NDArray[np.uint64]  # [B, P]
    slots: NDArray[np.int64]  # [B]
    leaves: NDArray[np.int64]  # [B] node, NO_NODE where there is no room
    depths: NDArray[np.int64]  # [B]
    nodes: NDArray[np.int32]  # [B, D]
    edges: NDArray[np.int32]  # [B, D]


def empty_round(rows: int, planes: int) -> Round:
    """Make room for a round of `rows` leaves."""
    return Round(
        planes=np.zeros((rows, planes), dtype=np.uint64),
        slots=np.zeros(rows, dtype=np.int64),
        leaves=np.zeros(rows, dtype=np.int64),
        depths=np.zeros(rows, dtype=np.int64),
        nodes=np.zeros((rows, MAX_DEPTH + 1), dtype=np.int32),
        edges=np.zeros((rows, MAX_DEPTH + 1), dtype=np.int32),
    )


@njit(cache=True, nogil=True)
def prepare_roots(forest: Any, slots: Any, batch: Any, blank: Any, allowed: Any) -> Any:
    """Check the slots' roots; those that need an evaluation become rows of `batch`. Return their number.

    `allowed` int64[M, 2] are the moves that new roots will be restricted to, empty for all.
    """
    rows = 0
    for slot in slots:
        if forest.nodes[slot, 0].count >= 0:
            if forest.nodes[slot, 0].count > 0 and forest.nodes[slot, 0].proof == UNKNOWN:
                mate_in_one(forest, slot, batch.planes[rows])
            continue
        if forest.nodes[slot, 0].proof == UNKNOWN and prepare_root(forest, slot, batch.planes[rows], blank, allowed):
            batch.slots[rows], batch.leaves[rows], batch.depths[rows] = slot, 0, 0
            rows += 1
    return rows


@njit(cache=True, nogil=True)
def _piece_share(position: Any) -> Any:
    """Return the share of the thirty pieces beside the kings that are still there, float64."""
    pieces = 0
    for word in range(10):
        board = position[word]
        while board != np.uint64(0):
            board &= board - np.uint64(1)
            pieces += 1
    return min(np.float64(pieces) / 30.0, 1.0)


@njit(cache=True, nogil=True)
def _allotted(forest: Any, slot: Any, simulations: Any, budget: Any) -> Any:
    """Return the simulations a root gets, int64, 0 for 0 and otherwise at least 1.

    `budget` = (branching exponent, factor of bare kings).
    """
    if simulations < 1:
        return np.int64(0)
    branching, endgame = budget
    factor = 1.0
    if branching > 0.0:
        factor *= min(max((np.float64(forest.nodes[slot, 0].count) / 30.0) ** branching, 0.25), 2.0)
    if endgame < 1.0:
        factor *= endgame + (1.0 - endgame) * _piece_share(forest.roots[slot])
    return max(np.int64(np.float64(simulations) * factor), np.int64(1))


@njit(cache=True, nogil=True)
def begin(forest: Any, slots: Any, wanted: Any, shaping: Any, starting: Any, allowed: Any, fresh: Any) -> None:
    """Prepare expanded roots; `wanted` int64[N] are the simulations asked for and become those allotted, 0 where none are due.

    `shaping` = (temperature, noise share, noise alpha) of priors, for roots that are `fresh` (bool[G]); `starting` =
    (moves considered, Gumbel's scale or -1, cost of repeating, branching, endgame); `allowed` int64[M, 2], empty for all.
    """
    considered, scale, penalty, branching, endgame = starting
    for index in range(len(slots)):
        slot = slots[index]
        if len(allowed) > 0 and forest.nodes[slot, 0].count > 0:
            restrict_root(forest, slot, allowed)
        if forest.nodes[slot, 0].proof != UNKNOWN or forest.nodes[slot, 0].count < 1:
            wanted[index] = 0
            continue
        if fresh[slot]:
            shape_priors(forest, slot, shaping[0], (shaping[1], shaping[2]))
            fresh[slot] = False
        wanted[index] = _allotted(forest, slot, wanted[index], (branching, endgame))
        begin_root(forest, slot, wanted[index], considered, scale, penalty)


@njit(cache=True, nogil=True)
def _decided(forest: Any, slot: Any, wanted: Any, done: Any, params: Any) -> Any:
    """Return whether more simulations cannot or need not change the root's most visited move."""
    if params.gumbel or not (params.early_stop or params.dominance > 0.0):
        return False
    first = forest.nodes[slot, 0].first
    most = second = total = np.int64(0)
    for edge in range(first, first + forest.nodes[slot, 0].count):
        visits = np.int64(forest.edges[slot, edge].visits)
        total += visits
        if visits > most:
            most, second = visits, most
        elif visits > second:
            second = visits
    if params.early_stop and most - second > wanted - done:
        return True
    return params.dominance > 0.0 and 2 * done >= wanted and np.float64(most) >= params.dominance * np.float64(total)


@njit(cache=True, nogil=True)
def select(forest: Any, slots: Any, progress: Any, leaves: Any, params: Any, batch: Any) -> Any:
    """Walk each slot to `leaves` positions without a value: the number of rows in `batch`.

    `progress` = (wanted int64[N], done int64[N]); walks whose value is known are added at once and the next one begins. A slot
    whose root is proven or decided gets `wanted` = `done`.
    """
    wanted, done = progress
    position = np.empty(WORDS, dtype=np.uint64)
    rows = 0
    for index in range(len(slots)):
        slot, taken, known = slots[index], 0, 0
        while taken < leaves and known < MOST_KNOWN and done[index] < wanted[index]:
            if forest.nodes[slot, 0].proof != UNKNOWN or _decided(forest, slot, wanted[index], done[index], params):
                wanted[index] = done[index]
                break
            walk = (batch.nodes[rows], batch.edges[rows])
            how, depth, leaf = descend(forest, slot, done[index], params, walk, position, batch.planes[rows])
            if how > EVALUATE:
                break
            done[index] += 1
            known += how != EVALUATE
            forest.slots[slot].walks += 1
            forest.slots[slot].plies += depth
            forest.slots[slot].deepest = max(np.int64(forest.slots[slot].deepest), depth)
            if how == EVALUATE:
                batch.slots[rows], batch.leaves[rows], batch.depths[rows] = slot, leaf, depth
                rows += 1
                taken += 1
    return rows


@njit(cache=True, nogil=True)
def undo_round(forest: Any, first: Any, rows: Any, batch: Any, params: Any) -> None:
    """Take back the walks of a round's rows from `first` on, whose leaves have no value and never will."""
    for row in range(first, rows):
        slot, leaf, depth = batch.slots[row], batch.leaves[row], batch.depths[row]
        if leaf >= 0 and forest.nodes[slot, leaf].count == WAITING:
            forest.nodes[slot, leaf].count = NEW
        if depth > 0:  # not a root's own evaluation
            forest.slots[slot].walks -= 1
            forest.slots[slot].plies -= depth
        undo_walk(forest, slot, (batch.nodes[row], batch.edges[row]), depth, params.virtual_loss)
        if leaf < 0:  # there was no room, which `descend` has counted
            node, edge = batch.nodes[row, depth - 1], batch.edges[row, depth - 1]
            forest.slots[slot].refused -= 1
            if forest.edges[slot, edge].visits == 0:
                forest.nodes[slot, node].visited_policy -= forest.edges[slot, edge].prior


@njit(cache=True, nogil=True)
def expand_and_backup(forest: Any, rows: Any, batch: Any, logits: Any, wdl: Any, params: Any) -> Any:
    """Expand the round's leaves with their evaluations, logits float32[B, A] and wdl float32[B, W], and back the values up.

    Return the number of rows done: fewer than `rows` where the next one's evaluation is not finite.
    """
    for row in range(rows):
        slot, leaf, depth = batch.slots[row], batch.leaves[row], batch.depths[row]
        if not (isfinite(wdl[row, 0]) and isfinite(wdl[row, 1]) and isfinite(wdl[row, 2])):
            return row
        value = min(max(np.float64(wdl[row, 0] - wdl[row, 2]), -1.0), 1.0)
        draw = min(max(np.float64(wdl[row, 1]), 0.0), 1.0)
        if leaf >= 0 and forest.nodes[slot, leaf].count == WAITING:
            forest.nodes[slot, leaf].count = NEW
            if expand(forest, slot, leaf, batch.planes[row], logits[row], params.temperature) == NOT_FINITE:
                return row
            forest.nodes[slot, leaf].value = value
        walk = (batch.nodes[row], batch.edges[row])
        backup(forest, slot, walk, depth, leaf, (value, draw, params.virtual_loss))
    return rows
