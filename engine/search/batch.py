"""Rounds: each game in turn walks to its leaves, all leaves go to the evaluator as one batch, all results come back.

Axes: G slots, N slots searched now, B rows of a batch, P planes, A labels, D depth of a walk, W outcomes.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from engine.board.position import WORDS
from engine.search.expansion import open_node
from engine.search.root import begin_run, judge_root, keep_moves, mate_in_one, shape_priors
from engine.search.simulation import EVALUATE, back_up, descend
from engine.search.tree import MAX_DEPTH, UNKNOWN, WAITING

MOST_KNOWN = 256
"""Walks to known values that one slot makes in a round, so that whoever may stop a search is asked now and then."""


class Round(NamedTuple):
    """What the leaves of one round are; B rows at most."""

    planes: NDArray[np.uint64]  # [B, P]
    slots: NDArray[np.int64]  # [B]
    leaves: NDArray[np.int64]  # [B] node, NOBODY where there is no room
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
def judge_roots(forest: Any, slots: Any, batch: Any, blank: Any) -> Any:
    """Look at the slots' roots; those that wait for an evaluation become rows of `batch`: their number."""
    rows = 0
    for slot in slots:
        if forest.nodes[slot, 0].count >= 0:
            if forest.nodes[slot, 0].count > 0 and forest.nodes[slot, 0].verdict == UNKNOWN:
                mate_in_one(forest, slot, batch.planes[rows])
            continue
        if forest.nodes[slot, 0].verdict == UNKNOWN and judge_root(forest, slot, batch.planes[rows], blank):
            batch.slots[rows], batch.leaves[rows], batch.depths[rows] = slot, 0, 0
            rows += 1
    return rows


@njit(cache=True, nogil=True)
def _piece_share(position: Any) -> Any:
    """Give the share of the thirty pieces beside the kings that are still there, float64."""
    pieces = 0
    for word in range(10):
        board = position[word]
        while board != np.uint64(0):
            board &= board - np.uint64(1)
            pieces += 1
    return min(np.float64(pieces) / 30.0, 1.0)


@njit(cache=True, nogil=True)
def _allotted(forest: Any, slot: Any, simulations: Any, budget: Any) -> Any:
    """Give the simulations a root gets, int64 and at least 1; `budget` = (branching exponent, factor of bare kings)."""
    branching, endgame = budget
    factor = 1.0
    if branching > 0.0:
        factor *= min(max((np.float64(forest.nodes[slot, 0].count) / 30.0) ** branching, 0.25), 2.0)
    if endgame < 1.0:
        factor *= endgame + (1.0 - endgame) * _piece_share(forest.roots[slot])
    return max(np.int64(np.float64(simulations) * factor), np.int64(1))


@njit(cache=True, nogil=True)
def begin(forest: Any, slots: Any, wanted: Any, shaping: Any, starting: Any, allowed: Any, fresh: Any) -> None:
    """Get opened roots ready; `wanted` int64[N] are the simulations asked for and become those allotted, 0 where none are due.

    `shaping` = (temperature, noise share, noise alpha) of priors, for roots where `fresh` (bool[G]) says so; `starting` =
    (moves considered, Gumbel's scale or -1, cost of repeating, branching, endgame); `allowed` int64[M, 2], empty for all.
    """
    considered, scale, penalty, branching, endgame = starting
    for index in range(len(slots)):
        slot = slots[index]
        if len(allowed) > 0 and forest.nodes[slot, 0].count > 0:
            keep_moves(forest, slot, allowed)
        if forest.nodes[slot, 0].verdict != UNKNOWN or forest.nodes[slot, 0].count < 1:
            wanted[index] = 0
            continue
        if fresh[slot]:
            shape_priors(forest, slot, shaping[0], (shaping[1], shaping[2]))
            fresh[slot] = False
        wanted[index] = _allotted(forest, slot, wanted[index], (branching, endgame))
        begin_run(forest, slot, wanted[index], considered, scale, penalty)


@njit(cache=True, nogil=True)
def _decided(forest: Any, slot: Any, wanted: Any, done: Any, rules: Any) -> Any:
    """Tell whether more simulations cannot or need not change the root's most visited move."""
    if rules.gumbel or not (rules.early_stop or rules.dominance > 0.0):
        return False
    first = forest.nodes[slot, 0].first
    most = second = total = np.int64(0)
    for edge in range(first, first + forest.nodes[slot, 0].count):
        tries = np.int64(forest.edges[slot, edge].tries)
        total += tries
        if tries > most:
            most, second = tries, most
        elif tries > second:
            second = tries
    if rules.early_stop and most - second > wanted - done:
        return True
    return rules.dominance > 0.0 and 2 * done >= wanted and np.float64(most) >= rules.dominance * np.float64(total)


@njit(cache=True, nogil=True)
def select(forest: Any, slots: Any, progress: Any, leaves: Any, rules: Any, batch: Any) -> Any:
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
            if forest.nodes[slot, 0].verdict != UNKNOWN or _decided(forest, slot, wanted[index], done[index], rules):
                wanted[index] = done[index]
                break
            walk = (batch.nodes[rows], batch.edges[rows])
            how, depth, leaf = descend(forest, slot, done[index], rules, walk, position, batch.planes[rows])
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
def _inside(value: Any, least: Any, most: Any) -> Any:
    """Give a number kept within bounds, 0 for one that is none."""
    if value >= least:
        return min(np.float64(value), most)
    return least if value < least else 0.0


@njit(cache=True, nogil=True)
def take_in(forest: Any, rows: Any, batch: Any, logits: Any, wdl: Any, rules: Any) -> None:
    """Open the round's leaves with their evaluations, logits float32[B, A] and wdl float32[B, W], and back the values up."""
    for row in range(rows):
        slot, leaf, depth = batch.slots[row], batch.leaves[row], batch.depths[row]
        value = _inside(wdl[row, 0] - wdl[row, 2], -1.0, 1.0)
        draw = _inside(wdl[row, 1], 0.0, 1.0)
        if leaf >= 0 and forest.nodes[slot, leaf].count == WAITING:
            forest.nodes[slot, leaf].value = value
            forest.nodes[slot, leaf].count = -1
            open_node(forest, slot, leaf, batch.planes[row], logits[row], rules.temperature)
        walk = (batch.nodes[row], batch.edges[row])
        back_up(forest, slot, walk, depth, leaf, (value, draw, rules.virtual_loss))
