"""Run one round of PUCT simulations: descend, score, expand, back up.

    select_leaves         descend every game's tree to leaves; their planes are one batch
      descend             go from the root to a position without a value
        select_puct_edge  select the move with the best score (gumbel.py has Gumbel's)
    expand_and_backup     after the evaluator's answer:
      expand              add a leaf's legal moves as edges, likeliest first
      backup              add the value along the path, negated at each ply

PUCT (Silver et al. 2018), with lc0's growth of exploration and first-play urgency (FPU), and
KataGo's scaling by variance:

    score = Q + c * prior * sqrt(visits of all moves) / (1 + visits of the move)
    c     = (c_puct + c_factor * log((visits of all moves + 1 + c_base) / c_base))
            * (1 + c_stdev * (stdev / STDEV_PRIOR - 1))

stdev is the standard deviation of the values below the node: if they are similar, the search
explores less.

Each visit in flight counts in Q as a loss (virtual loss). The Q of an unvisited move is the node's
mean over finished visits, minus fpu_reduction * sqrt(sum of the priors of moves with a finished
visit), as in lc0's GetFpu. Moves proven lost are skipped unless all are lost.

Axes: G slots, N slots of this run, B rows of the batch, P planes, A labels, D depth of a path, M
moves of a node, W outcomes.
"""

from math import exp, isfinite, log, sqrt
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from engine.board.movegen import count_moves
from engine.board.position import MAX_MOVES, WORDS, Position
from engine.board.rules import MATE, ONGOING
from engine.encoding.planes import PLANES
from engine.search.budget import count_selectable, is_decided
from engine.search.chess_rules import examine, list_moves, play
from engine.search.config import SearchParams
from engine.search.gumbel import select_gumbel_edge
from engine.search.tree import (
    EVALUATING,
    LOST,
    MAX_DEPTH,
    NO_NODE,
    UNEXPANDED,
    UNKNOWN,
    WON,
    Forest,
    Int,
    new_node,
    propagate_proof,
    set_ending,
)

BACKED_UP, EVALUATE, COLLISION = 0, 1, 2
"""Results of `descend`: a known value was backed up; the leaf needs an evaluation; the leaf is
already being evaluated."""
EXPANDED, NO_ROOM, NOT_FINITE = 0, 1, 2
"""Results of `expand`; NO_ROOM (in the tree) and NOT_FINITE (logits) leave the node unchanged."""
MAX_KNOWN_VALUE_DESCENTS = 256
"""Maximum number of a slot's descents to known values per round, so that `stop` is polled often."""
STDEV_PRIOR, STDEV_PRIOR_VISITS = 0.4, 2.0
"""Prior standard deviation of a node's values, and its weight in visits, as in KataGo."""

_PROMOTION_SHARES = np.array([0.0, 0.0, 0.0084, 0.0036, 0.0185, 0.9695])
"""Share of each piece in a promotion's prior, by python-chess piece type: its frequency in 13,645
human promotions."""
_MIN_LOGIT = -1e30


class Round(NamedTuple):
    """Leaves of one round, at most B."""

    planes: NDArray[np.uint64]  # [B, P]
    slots: NDArray[np.int64]  # [B]
    leaves: NDArray[np.int64]  # [B] node, NO_NODE if the tree is full
    depths: NDArray[np.int64]  # [B]
    nodes: NDArray[np.int32]  # [B, D] the path's nodes, the root first
    edges: NDArray[np.int32]  # [B, D] the path's edges


def empty_round(rows: int) -> Round:
    """Allocate a round of `rows` leaves."""
    planes, numbers = np.zeros((rows, PLANES), dtype=np.uint64), np.zeros((3, rows), dtype=np.int64)
    return Round(planes, *numbers, *np.zeros((2, rows, MAX_DEPTH + 1), dtype=np.int32))


@njit(cache=True, nogil=True)
def select_leaves(
    forest: Forest,
    slots: Any,
    wanted: Any,
    done: Any,
    leaves: Int,
    params: SearchParams,
    batch: Round,
) -> Any:
    """Write up to `leaves` leaves of each slot's tree to `batch`; return the number of its rows.

    `wanted` and `done` (int64[N]) are numbers of simulations. If a root is proven or decided, its
    `wanted` is set to `done`.
    """
    position = np.empty(WORDS, dtype=np.uint64)
    rows = 0
    for index in range(len(slots)):
        slot, new_leaves, known_values = slots[index], 0, 0
        game, root = forest.slots[slot], forest.nodes[slots[index], 0]
        while (
            new_leaves < leaves
            and known_values < MAX_KNOWN_VALUE_DESCENTS
            and done[index] < wanted[index]
        ):
            if root.proof != UNKNOWN or is_decided(
                forest, slot, wanted[index], done[index], params
            ):
                wanted[index] = done[index]
                break
            path = (batch.nodes[rows], batch.edges[rows])
            result, depth, leaf = descend(
                forest, slot, done[index], params, path, position, batch.planes[rows]
            )
            if result == COLLISION:
                break
            done[index] += 1
            game.deepest = max(np.int64(game.deepest), depth)
            if result == EVALUATE:
                batch.slots[rows], batch.leaves[rows], batch.depths[rows] = slot, leaf, depth
                rows += 1
                new_leaves += 1
            else:
                known_values += 1
    return rows


@njit(cache=True, nogil=True)
def descend(
    forest: Forest,
    slot: Int,
    simulation: Int,
    params: SearchParams,
    path: Any,
    position: Position,
    planes: Any,
) -> Any:
    """Descend from the root to a leaf; return (result, depth, leaf or NO_NODE).

    Fills `path`, which is (nodes, edges), int32[D] each, and `planes` if the result is EVALUATE.
    `position` is scratch memory.
    """
    nodes, edges = path
    position[:] = forest.roots[slot]
    index, depth = np.int64(0), np.int64(0)  # with literals, Numba would compile the callees twice
    while index >= 0:
        node = forest.nodes[slot, index]
        if node.proof != UNKNOWN or node.ending != ONGOING:
            decisive = node.proof in (WON, LOST)
            value = np.float64(node.proof) if decisive else 0.0
            backup(forest, slot, path, depth, index, value, 1.0 - decisive)
            return BACKED_UP, depth, index
        if node.count == EVALUATING:
            undo_path(forest, slot, path, depth)
            return COLLISION, depth, index
        if node.count == UNEXPANDED or depth == MAX_DEPTH:
            break
        # if the function were an argument, Numba would compile the round twice
        if params.gumbel:
            edge = select_gumbel_edge(forest, slot, index, simulation, params)
        else:
            edge = select_puct_edge(forest, slot, index, params)
        nodes[depth], edges[depth] = index, edge
        depth += 1
        move = forest.edges[slot, edge]
        node.visits += 1
        node.in_flight += 1
        move.visits += 1
        move.in_flight += 1
        play(position, np.int64(move.label), np.int64(move.promotion))
        if move.child == NO_NODE:
            move.child = new_node(forest, slot)
        index = np.int64(move.child)
    ending, key = examine(forest, slot, position, nodes[:depth], planes)
    if index >= 0:
        forest.nodes[slot, index].key = key
        set_ending(forest.nodes[slot, index], ending)
    if ending != ONGOING:
        mated = 1.0 if ending == MATE else 0.0
        backup(forest, slot, path, depth, index, -mated, 1.0 - mated)
        return BACKED_UP, depth, index
    if index >= 0 and forest.nodes[slot, index].count == UNEXPANDED:
        forest.nodes[slot, index].count = EVALUATING
    return EVALUATE, depth, index


@njit(cache=True, nogil=True)
def select_puct_edge(forest: Forest, slot: Int, index: Int, params: SearchParams) -> Any:
    """Return the edge of a node with the largest PUCT score, int64."""
    node = forest.nodes[slot, index]
    first, last = np.int64(node.first), np.int64(node.first) + np.int64(node.count)
    all_visits = np.float64(node.visits - node.ended)
    c = params.c_puct
    if params.c_factor > 0.0:
        c += params.c_factor * log((all_visits + 1.0 + params.c_base) / params.c_base)
    if params.c_stdev > 0.0:
        c *= 1.0 + params.c_stdev * (estimate_stdev(node) / STDEV_PRIOR - 1.0)
    exploration = c * sqrt(max(all_visits, 1.0))
    unvisited = node.value_sum / max(np.float64(node.visits - node.in_flight), 1.0)
    unvisited -= params.fpu_reduction * sqrt(np.float64(node.visited_policy))
    start, stop = first, first + count_selectable(forest, slot, index, params)
    while True:
        best, choice = -np.inf, NO_NODE
        for edge in range(start, stop):
            move = forest.edges[slot, edge]
            if move.proof == LOST:
                continue
            visits, value = np.float64(move.visits), unvisited
            if visits > 0.0:
                value = (move.value_sum - np.float64(move.in_flight)) / visits
            score = value + move.bias + exploration * move.prior / (1.0 + visits)
            if score > best:
                best, choice = score, edge
        if choice >= 0:
            return choice
        if stop == last:
            return first  # every move is a proven loss
        start, stop = stop, last


@njit(cache=True, nogil=True)
def estimate_stdev(node: Any) -> Any:
    """Estimate the standard deviation of a node's values, shrunk to STDEV_PRIOR, float64."""
    visits = max(np.float64(node.visits - node.in_flight), 1.0)
    mean = node.value_sum / visits
    squares = max(node.square_sum, mean * mean * visits)
    squares += (mean * mean + STDEV_PRIOR * STDEV_PRIOR) * STDEV_PRIOR_VISITS
    return sqrt(max(squares / (visits + STDEV_PRIOR_VISITS - 1.0) - mean * mean, 0.0))


@njit(cache=True, nogil=True)
def expand_and_backup(
    forest: Forest, rows: Int, batch: Round, logits: Any, wdl: Any, params: SearchParams
) -> Any:
    """Expand the round's leaves with logits float32[B, A], and back up wdl float32[B, W].

    Stops at the first row with a logit or value that is not finite; returns the number of rows
    done.
    """
    for row in range(rows):
        slot, leaf, depth = batch.slots[row], batch.leaves[row], batch.depths[row]
        if not (isfinite(wdl[row, 0]) and isfinite(wdl[row, 1]) and isfinite(wdl[row, 2])):
            return row
        value = min(max(np.float64(wdl[row, 0] - wdl[row, 2]), -1.0), 1.0)
        draw = min(max(np.float64(wdl[row, 1]), 0.0), 1.0)
        if leaf >= 0 and forest.nodes[slot, leaf].count == EVALUATING:
            forest.nodes[slot, leaf].count = UNEXPANDED
            temperature = params.policy_temperature
            result = expand(forest, slot, leaf, batch.planes[row], logits[row], temperature)
            if result == NOT_FINITE:
                return row
            forest.nodes[slot, leaf].value = value
        backup(forest, slot, (batch.nodes[row], batch.edges[row]), depth, leaf, value, draw)
    return rows


@njit(cache=True, nogil=True)
def expand(
    forest: Forest, slot: Int, node: Int, planes: Any, logits: Any, temperature: float
) -> Any:
    """Add the edges of a node with planes and logits; return EXPANDED, NO_ROOM or NOT_FINITE."""
    first = np.int64(forest.slots[slot].edges)
    count = count_moves(planes, planes)
    if count > MAX_MOVES or first + count > forest.edges.shape[1]:
        return NO_ROOM
    last = first + count
    moves = forest.edges[slot, first:last]
    list_moves(planes, moves)
    if not _set_priors(logits, moves, temperature):
        return NOT_FINITE
    _sort_by_prior(moves)
    forest.slots[slot].edges = last
    forest.nodes[slot, node].first, forest.nodes[slot, node].count = first, count
    return EXPANDED


@njit(cache=True, nogil=True)
def _set_priors(logits: Any, moves: Any, temperature: float) -> Any:
    """Set the edges' priors to the softmax of their logits (float32[A]); False for NaN or +inf.

    The prior of a promotion is divided among its four pieces. A logit of -inf gives a prior of 0,
    unless all are -inf: then the priors are uniform.
    """
    largest = _MIN_LOGIT
    for index in range(len(moves)):
        logit = np.float64(logits[moves[index].label])
        if logit > largest and isfinite(logit):
            largest = logit
    total = 0.0
    for index in range(len(moves)):
        weight = exp((np.float64(logits[moves[index].label]) - largest) / temperature)
        if moves[index].promotion > 0:
            weight *= _PROMOTION_SHARES[moves[index].promotion]
        moves[index].prior = weight
        total += weight
    for index in range(len(moves)):
        moves[index].prior = moves[index].prior / total if total > 0.0 else 1.0 / len(moves)
    return isfinite(total)


@njit(cache=True, nogil=True)
def _sort_by_prior(moves: Any) -> None:
    """Sort new edges by prior, likeliest first; only prior, label and promotion are moved."""
    for index in range(1, len(moves)):
        prior = moves[index].prior
        if prior <= moves[index - 1].prior:
            continue
        label, promotion, place = moves[index].label, moves[index].promotion, index
        while place > 0 and moves[place - 1].prior < prior:
            moves[place].prior = moves[place - 1].prior
            moves[place].label = moves[place - 1].label
            moves[place].promotion = moves[place - 1].promotion
            place -= 1
        moves[place].prior, moves[place].label, moves[place].promotion = prior, label, promotion


@njit(cache=True, nogil=True)
def backup(
    forest: Forest, slot: Int, path: Any, depth: Int, leaf: Int, value: float, draw: float
) -> None:
    """Add a value and a draw probability along a path, and propagate proofs.

    `path` is (nodes int32[D], edges int32[D]), and `leaf` the node below it, or NO_NODE. `value` is
    from the view of the side to move at the leaf.
    """
    nodes, edges = path
    proven = False
    if leaf >= 0:
        node = forest.nodes[slot, leaf]
        node.visits += 1
        node.ended += 1
        node.value_sum += value
        node.square_sum += value * value
        node.draw_sum += draw
        proven = node.proof != UNKNOWN
    below = leaf
    for step in range(depth - 1, -1, -1):
        node, move = forest.nodes[slot, nodes[step]], forest.edges[slot, edges[step]]
        value = -value
        if proven and move.proof == UNKNOWN:
            move.proof = -forest.nodes[slot, below].proof
            proven = propagate_proof(forest, slot, nodes[step])
        else:
            proven = False
        node.in_flight -= 1
        move.in_flight -= 1
        move.value_sum += value
        if move.visits - move.in_flight == 1:  # its first finished visit
            node.visited_policy += move.prior
        if proven:
            value = np.float64(node.proof)
            draw = 1.0 if value == 0.0 else 0.0
        node.value_sum += value
        node.square_sum += value * value
        node.draw_sum += draw
        below = nodes[step]


@njit(cache=True, nogil=True)
def undo_path(forest: Forest, slot: Int, path: Any, depth: Int) -> None:
    """Undo the visits of a descent that gets no value."""
    nodes, edges = path
    for step in range(depth):
        node, move = forest.nodes[slot, nodes[step]], forest.edges[slot, edges[step]]
        node.visits -= 1
        node.in_flight -= 1
        move.visits -= 1
        move.in_flight -= 1


@njit(cache=True, nogil=True)
def undo_round(forest: Forest, first: Int, rows: Int, batch: Round) -> None:
    """Undo the descents of a round's rows from `first` on."""
    for row in range(first, rows):
        slot, leaf, depth = batch.slots[row], batch.leaves[row], batch.depths[row]
        if leaf >= 0 and forest.nodes[slot, leaf].count == EVALUATING:
            forest.nodes[slot, leaf].count = UNEXPANDED
        undo_path(forest, slot, (batch.nodes[row], batch.edges[row]), depth)
