"""A round of simulations: descend to leaves, expand those that were evaluated, back their values
up.

    select_leaves            each game descends to its leaves, whose planes make one batch for the
    evaluator;
      descend                from the root to a position without a value;
    expand_and_backup        after the evaluator;
      expand                 the leaf's legal moves become edges, likeliest first;
      backup                 the value goes up the path, its sign changed at each ply.

Axes: G slots, N slots of this run, B rows of the batch, P planes, A labels, D depth of a path, M
moves of a node, W outcomes.
"""

from math import exp, isfinite
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from engine.board.bitboard import EMPTY, RANK_8, U, bit, lowest
from engine.board.movegen import MOVE_PLANES, TYPES, count_moves
from engine.board.position import MAX_MOVES, PAWN, WORDS, Position
from engine.board.rules import GOES_ON, MATE
from engine.encoding.planes import PLANES
from engine.search.chess_rules import examine, play
from engine.search.config import SearchParams
from engine.search.select import next_edge
from engine.search.tree import (
    LOST,
    MAX_DEPTH,
    NEW,
    NO_NODE,
    UNKNOWN,
    WAITING,
    WON,
    Forest,
    Int,
    new_node,
    set_ending,
)

BACKED_UP, EVALUATE, COLLISION = 0, 1, 2
"""Results of `descend`: its value was known and is backed up; it needs an evaluation; the leaf's
evaluation is in flight."""
EXPANDED, NO_ROOM, NOT_FINITE = 0, 1, 2
"""Results of `expand`. A node that was not expanded is unchanged."""
MOST_KNOWN = 256
"""Maximum number of descents to known values of one slot in a round, so that `stop` is polled
regularly."""

_QUEEN = 5
_PROMOTION_SHARES = np.array([0.0, 0.0, 0.0084, 0.0036, 0.0185, 0.9695])
"""Share of a promotion's prior by python-chess piece type: measured on 13,645 promotions of rapid
games."""
_LOWEST_LOGIT = -1e30


class Round(NamedTuple):
    """The leaves of one round, up to B rows."""

    planes: NDArray[np.uint64]  # [B, P]
    slots: NDArray[np.int64]  # [B]
    leaves: NDArray[np.int64]  # [B] node, NO_NODE where the tree is full
    depths: NDArray[np.int64]  # [B]
    nodes: NDArray[np.int32]  # [B, D] the path's nodes, the root first
    edges: NDArray[np.int32]  # [B, D] the path's edges


def empty_round(rows: int) -> Round:
    """Allocate a round of `rows` leaves."""
    return Round(
        planes=np.zeros((rows, PLANES), dtype=np.uint64),
        slots=np.zeros(rows, dtype=np.int64),
        leaves=np.zeros(rows, dtype=np.int64),
        depths=np.zeros(rows, dtype=np.int64),
        nodes=np.zeros((rows, MAX_DEPTH + 1), dtype=np.int32),
        edges=np.zeros((rows, MAX_DEPTH + 1), dtype=np.int32),
    )


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
    """Descend each slot's tree to up to `leaves` positions without a value; return the number of
    rows in `batch`.

    `wanted` and `done` (int64[N]) count simulations. A descent whose value is known is backed up at
    once, and the next one begins. A slot whose root is proven or decided gets `wanted` = `done`.
    """
    position = np.empty(WORDS, dtype=np.uint64)
    rows = 0
    for index in range(len(slots)):
        slot, taken, known = slots[index], 0, 0
        game = forest.slots[slot]
        while taken < leaves and known < MOST_KNOWN and done[index] < wanted[index]:
            if forest.nodes[slot, 0].proof != UNKNOWN or _is_decided(
                forest, slot, wanted[index], done[index], params
            ):
                wanted[index] = done[index]
                break
            path = (batch.nodes[rows], batch.edges[rows])
            how, depth, leaf = descend(
                forest, slot, done[index], params, path, position, batch.planes[rows]
            )
            if how == COLLISION:
                break
            done[index] += 1
            game.deepest = max(np.int64(game.deepest), depth)
            if how == EVALUATE:
                batch.slots[rows], batch.leaves[rows], batch.depths[rows] = slot, leaf, depth
                rows += 1
                taken += 1
            else:
                known += 1
    return rows


@njit(cache=True, nogil=True)
def _is_decided(forest: Forest, slot: Int, wanted: Int, done: Int, params: SearchParams) -> Any:
    """Return whether more simulations cannot or need not change the root's most visited move."""
    if params.gumbel or not (params.early_stop or params.dominance > 0.0):
        return False
    root = forest.nodes[slot, 0]
    most = second = total = np.int64(0)
    for edge in range(root.first, root.first + root.count):
        visits = np.int64(forest.edges[slot, edge].visits)
        total += visits
        if visits > most:
            most, second = visits, most
        elif visits > second:
            second = visits
    if params.early_stop and most - second > wanted - done:
        return True
    return (
        params.dominance > 0.0
        and 2 * done >= wanted
        and np.float64(most) >= params.dominance * np.float64(total)
    )


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
    """Go from the root to a position without a value; return (how it ended, depth, leaf or
    NO_NODE).

    Fills `path` = (nodes, edges) int32[D] and, for EVALUATE, `planes` (uint64[77]). `position`
    (uint64[16]) is scratch. The nodes and edges of the path count the visit, and have it in flight.
    """
    nodes, edges = path
    position[:] = forest.roots[slot]
    index, depth = np.int64(0), 0
    while index >= 0:
        node = forest.nodes[slot, index]
        if node.proof != UNKNOWN or node.ending != GOES_ON:
            won_or_lost = node.proof in (WON, LOST)
            backup(
                forest,
                slot,
                path,
                depth,
                index,
                np.float64(node.proof) if won_or_lost else 0.0,
                1.0 - won_or_lost,
            )
            return BACKED_UP, depth, index
        if node.count == WAITING:
            undo_path(forest, slot, path, depth)
            return COLLISION, depth, index
        if node.count == NEW or depth == MAX_DEPTH:
            break
        edge = next_edge(forest, slot, index, simulation, params)
        nodes[depth], edges[depth] = index, edge
        depth += 1
        move = forest.edges[slot, edge]
        node.visits += 1
        node.in_flight += 1
        move.visits += 1
        move.in_flight += 1
        play(position, move.label, move.promotion)
        if move.child == NO_NODE:
            move.child = new_node(forest, slot)
        index = np.int64(move.child)
    ending, key = examine(forest, slot, position, nodes[:depth], planes)
    if index >= 0:
        forest.nodes[slot, index].key = key
        set_ending(forest.nodes[slot, index], ending)
    if ending != GOES_ON:
        backup(
            forest,
            slot,
            path,
            depth,
            index,
            -1.0 if ending == MATE else 0.0,
            0.0 if ending == MATE else 1.0,
        )
        return BACKED_UP, depth, index
    if index >= 0 and forest.nodes[slot, index].count == NEW:
        forest.nodes[slot, index].count = WAITING
    return EVALUATE, depth, index


@njit(cache=True, nogil=True)
def undo_path(forest: Forest, slot: Int, path: Any, depth: Int) -> None:
    """Take back the visits of a descent that gets no value."""
    nodes, edges = path
    for step in range(depth):
        node, move = forest.nodes[slot, nodes[step]], forest.edges[slot, edges[step]]
        node.visits -= 1
        node.in_flight -= 1
        move.visits -= 1
        move.in_flight -= 1


@njit(cache=True, nogil=True)
def undo_round(forest: Forest, first: Int, rows: Int, batch: Round) -> None:
    """Take back the descents of a round's rows from `first` on, which get no value."""
    for row in range(first, rows):
        slot, leaf, depth = batch.slots[row], batch.leaves[row], batch.depths[row]
        if leaf >= 0 and forest.nodes[slot, leaf].count == WAITING:
            forest.nodes[slot, leaf].count = NEW
        undo_path(forest, slot, (batch.nodes[row], batch.edges[row]), depth)


@njit(cache=True, nogil=True)
def expand_and_backup(
    forest: Forest, rows: Int, batch: Round, logits: Any, wdl: Any, params: SearchParams
) -> Any:
    """Expand the round's leaves with their evaluations, logits float32[B, A] and wdl float32[B, W],
    and back the values up.

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
            if (
                expand(
                    forest, slot, leaf, batch.planes[row], logits[row], params.policy_temperature
                )
                == NOT_FINITE
            ):
                return row
            forest.nodes[slot, leaf].value = value
        backup(forest, slot, (batch.nodes[row], batch.edges[row]), depth, leaf, value, draw)
    return rows


@njit(cache=True, nogil=True)
def expand(
    forest: Forest, slot: Int, node: Int, planes: Any, logits: Any, temperature: float
) -> Any:
    """Add the edges of a node; return EXPANDED, NO_ROOM (as for more than MAX_MOVES moves) or
    NOT_FINITE.

    `planes` uint64[77] and `logits` float32[A] are of the node's position, its mover's view.
    """
    first = np.int64(forest.slots[slot].edges)
    count = count_moves(planes, planes)
    if count > MAX_MOVES or first + count > forest.edges.shape[1]:
        return NO_ROOM
    last = first + count
    moves = forest.edges[slot, first:last]
    _list_moves(planes, moves)
    if not _set_priors(logits, moves, temperature):
        return NOT_FINITE
    _sort_by_prior(moves)
    forest.slots[slot].edges = last
    forest.nodes[slot, node].first, forest.nodes[slot, node].count = first, count
    return EXPANDED


@njit(cache=True, nogil=True)
def _list_moves(planes: Any, moves: Any) -> None:
    """Write the legal moves of planes (uint64[77]) as new edges (EDGE[M])."""
    seventh = planes[PAWN] & (RANK_8 << U(8))
    count = np.int64(0)
    for kind in range(TYPES):
        sources = planes[MOVE_PLANES + kind]
        while sources != EMPTY:
            source = lowest(sources)
            sources &= sources - U(1)
            promotes = bit(source) & seventh != EMPTY
            for piece in range(4 if promotes else 1):
                move = moves[count]
                move.label = kind * 64 + np.int64(source)
                move.promotion = _QUEEN - piece if promotes else 0
                move.child, move.proof, move.value_sum = NO_NODE, UNKNOWN, 0.0
                move.visits = move.in_flight = 0
                count += 1


@njit(cache=True, nogil=True)
def _set_priors(logits: Any, moves: Any, temperature: float) -> Any:
    """Set the priors of edges: softmax of their logits (float32[A]), a promotion's divided among
    its four pieces.

    Return whether they are finite: NaN and infinity are not, and -inf is a prior of 0.
    """
    most = _LOWEST_LOGIT
    for index in range(len(moves)):
        logit = np.float64(logits[moves[index].label])
        if logit > most and isfinite(logit):
            most = logit
    total = 0.0
    for index in range(len(moves)):
        weight = exp((np.float64(logits[moves[index].label]) - most) / temperature)
        if moves[index].promotion > 0:
            weight *= _PROMOTION_SHARES[moves[index].promotion]
        moves[index].prior = weight
        total += weight
    for index in range(len(moves)):
        moves[index].prior = moves[index].prior / total if total > 0.0 else 1.0 / len(moves)
    return isfinite(total)


@njit(cache=True, nogil=True)
def _sort_by_prior(moves: Any) -> None:
    """Sort new edges (EDGE[M]) by prior, likeliest first; equal ones stay in order. Insertion,
    since lists are short.
    """
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
    """Add a value and draw probability (view of the leaf's mover) along a path, in the view of each
    node's own mover.

    `path` = (nodes int32[D], edges int32[D]); `leaf` is the node it ended at, or NO_NODE. Proofs
    are propagated upwards.
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
def propagate_proof(forest: Forest, slot: Int, index: Int) -> Any:
    """Prove a node by its moves' proofs if they suffice; return whether it is proven now.

    One won move proves a win; otherwise all must be proven. The winner takes the shortest way, the
    loser the longest.
    """
    node = forest.nodes[slot, index]
    best, distance, complete = np.int64(LOST), np.int64(-1), True
    for edge in range(node.first, node.first + node.count):
        proof = np.int64(forest.edges[slot, edge].proof)
        if proof == UNKNOWN:
            complete = False
            continue
        plies = plies_to_end(forest, slot, edge)
        if proof > best or distance < 0:
            best, distance = proof, plies
        elif proof == best:
            distance = min(distance, plies) if proof == WON else max(distance, plies)
    if best != WON and not complete:
        return False
    node.proof, node.distance = best, distance
    return True


@njit(cache=True, nogil=True)
def plies_to_end(forest: Forest, slot: Int, edge: Int) -> Any:
    """Return the plies from a node to the proven end by one of its moves, int64."""
    child = forest.edges[slot, edge].child
    return np.int64(1) + (
        np.int64(forest.nodes[slot, child].distance) if child >= 0 else np.int64(0)
    )
