"""One simulation: walk down a tree by choosing moves and playing them, look at the new position, back its value up.

Axes: G slots, P planes, D depth of a walk.
"""

from typing import Any

import numpy as np
from numba import njit

from engine.board.bitboard import U
from engine.board.movegen import legal_key, legal_planes, step_target
from engine.board.position import COUNTERS, HALFMOVE_MASK, push
from engine.board.rules import FIFTY_MOVES, GOES_ON, MATE, REPETITION, ending_of_position
from engine.search.gumbel import interior_edge, root_edge
from engine.search.puct import puct_edge
from engine.search.tree import DRAWN, HISTORY, LOST, MAX_DEPTH, NEW, NO_NODE, TWOFOLD, UNKNOWN, WAITING, WON

BACKED_UP, EVALUATE, COLLISION = 0, 1, 2
"""How a walk ended: its value is known and added; an evaluation is due; another walk waits there."""


@njit(cache=True, nogil=True)
def play(position: Any, label: Any, promotion: Any) -> None:
    """Play a label (0..4095) on a position in place."""
    kind, source = np.int64(label) >> 6, U(np.int64(label) & 63)
    push(position, source, step_target(kind, source), np.int64(promotion))


@njit(cache=True, nogil=True)
def times_in_history(forest: Any, slot: Any, wanted: Any) -> Any:
    """Return how often a key is among the game's positions before the root, int64."""
    times = np.int64(0)
    for index in range(forest.slots[slot].history_length):
        if forest.history[slot, index] == wanted:
            times += 1
    return times


@njit(cache=True, nogil=True)
def _repetition(forest: Any, slot: Any, wanted: Any, path: Any, reversible: Any) -> Any:
    """Return REPETITION for a third occurrence, TWOFOLD for a second one in this walk, else GOES_ON.

    `path` int32[D] are the nodes before this one, the root first; nothing before the last `reversible` plies can come again.
    """
    walked = np.int64(0)
    depth = len(path)
    for index in range(depth - 2, max(np.int64(-1), depth - 1 - reversible), -2):
        if forest.nodes[slot, path[index]].key == wanted:
            walked += 1
    if reversible <= depth and walked == 0:
        return GOES_ON  # the game before the root cannot hold it
    if walked + times_in_history(forest, slot, wanted) >= 2:
        return REPETITION
    return TWOFOLD if walked > 0 else GOES_ON


@njit(cache=True, nogil=True)
def terminal_status(forest: Any, slot: Any, position: Any, planes: Any, path: Any) -> Any:
    """Write a position's planes (uint64[77]) and return (how the game ends there or GOES_ON, its key)."""
    checkers = legal_planes(position, planes)
    key = legal_key(position, planes)
    ending = ending_of_position(position, planes, checkers)
    reversible = np.int64(position[COUNTERS] & HALFMOVE_MASK)
    if ending == GOES_ON and reversible >= 4:
        ending = _repetition(forest, slot, key, path, reversible)
    return ending, key


@njit(cache=True, nogil=True)
def new_node(forest: Any, slot: Any) -> Any:
    """Take a node of a slot, int64; NO_NODE when there is no room."""
    node = np.int64(forest.slots[slot].nodes)
    if node >= forest.nodes.shape[1]:
        return np.int64(NO_NODE)
    forest.slots[slot].nodes += 1
    forest.nodes[slot, node].count = NEW
    forest.nodes[slot, node].visits = forest.nodes[slot, node].ended = forest.nodes[slot, node].waiting = 0
    forest.nodes[slot, node].value_sum = forest.nodes[slot, node].draw_sum = 0.0
    forest.nodes[slot, node].visited_policy = forest.nodes[slot, node].value = 0.0
    forest.nodes[slot, node].proof = UNKNOWN
    forest.nodes[slot, node].ending = GOES_ON
    forest.nodes[slot, node].distance = 0
    return node


@njit(cache=True, nogil=True)
def propagate_proof(forest: Any, slot: Any, node: Any) -> Any:
    """Prove a node by its moves' proofs if they suffice; return whether it is proven now.

    One won move proves a win; otherwise all must be proven. The winner takes the shortest way, the loser the longest.
    """
    first = forest.nodes[slot, node].first
    best, distance = np.int64(LOST), np.int64(-1)
    known = True
    for edge in range(first, first + forest.nodes[slot, node].count):
        proof = np.int64(forest.edges[slot, edge].proof)
        if proof == UNKNOWN:
            known = False
            continue
        child = forest.edges[slot, edge].child
        plies = np.int64(1) + (np.int64(forest.nodes[slot, child].distance) if child >= 0 else np.int64(0))
        if proof > best or distance < 0:
            best, distance = proof, plies
        elif proof == best:
            distance = min(distance, plies) if proof == WON else max(distance, plies)
    if best != WON and not known:
        return False
    forest.nodes[slot, node].proof = best
    forest.nodes[slot, node].distance = distance
    return True


@njit(cache=True, nogil=True)
def backup(forest: Any, slot: Any, walk: Any, depth: Any, leaf: Any, outcome: Any) -> None:
    """Add a walk's result along its way, each node and move seeing it by its own mover; carry proofs up.

    `walk` = (nodes int32[D], edges int32[D]); `leaf` is the node it ended at, or NO_NODE. `outcome` = (value, draw, virtual
    loss): the leaf's mover's value, and what each move of the way was charged while the walk waited.
    """
    nodes, edges = walk
    value, draw, charged = outcome
    proven = False
    if leaf >= 0:
        forest.nodes[slot, leaf].visits += 1
        forest.nodes[slot, leaf].ended += 1
        forest.nodes[slot, leaf].value_sum += value
        forest.nodes[slot, leaf].draw_sum += draw
        proven = forest.nodes[slot, leaf].proof != UNKNOWN
    below = leaf
    for index in range(depth - 1, -1, -1):
        node, edge = nodes[index], edges[index]
        value = -value
        if proven and forest.edges[slot, edge].proof == UNKNOWN:
            forest.edges[slot, edge].proof = -forest.nodes[slot, below].proof
            proven = propagate_proof(forest, slot, node)
        else:
            proven = False
        forest.edges[slot, edge].value_sum += value + charged
        forest.edges[slot, edge].draw_sum += draw
        if below >= 0 and forest.edges[slot, edge].visits == 1:  # its first: no other walk has passed here
            forest.nodes[slot, node].visited_policy += forest.edges[slot, edge].prior
        forest.nodes[slot, node].waiting -= 1
        if proven:
            value = np.float64(forest.nodes[slot, node].proof)
            draw = 1.0 if value == 0.0 else 0.0
        forest.nodes[slot, node].value_sum += value
        forest.nodes[slot, node].draw_sum += draw
        below = node


@njit(cache=True, nogil=True)
def undo_walk(forest: Any, slot: Any, walk: Any, depth: Any, charged: Any) -> None:
    """Take back the visits and virtual losses of a walk that has no value."""
    nodes, edges = walk
    for index in range(depth):
        node, edge = nodes[index], edges[index]
        forest.nodes[slot, node].visits -= 1
        forest.nodes[slot, node].waiting -= 1
        forest.edges[slot, edge].visits -= 1
        forest.edges[slot, edge].value_sum += charged


@njit(cache=True, nogil=True)
def _value_of(forest: Any, slot: Any, node: Any) -> Any:
    """Return (value, draw) of a node where the game is over, or nearly so: float64, its mover's view."""
    proof = forest.nodes[slot, node].proof
    if proof in (WON, LOST):
        return np.float64(proof), 0.0
    return 0.0, 1.0


@njit(cache=True, nogil=True)
def _next_edge(forest: Any, slot: Any, node: Any, simulation: Any, params: Any) -> Any:
    """Return the edge that a walk takes at an expanded node, int64."""
    if not params.gumbel:
        return puct_edge(forest, slot, node, params)
    if node == 0 and simulation < forest.schedule.shape[1]:
        return root_edge(forest, slot, simulation, params)
    return interior_edge(forest, slot, node, params)


@njit(cache=True, nogil=True)
def mark_terminal(forest: Any, slot: Any, node: Any, ending: Any) -> None:
    """Store at a node how the game ends there, and the proof that this is."""
    forest.nodes[slot, node].ending = ending
    if ending == MATE:
        forest.nodes[slot, node].proof = LOST
    elif ending not in (GOES_ON, TWOFOLD):
        forest.nodes[slot, node].proof = DRAWN


@njit(cache=True, nogil=True)
def descend(forest: Any, slot: Any, simulation: Any, params: Any, walk: Any, position: Any, planes: Any) -> Any:
    """Walk from the root to a position without a value: return (how it ended, depth, leaf node or NO_NODE).

    Fills `walk` = (nodes, edges) int32[D] and, for EVALUATE, `planes` (uint64[77]). `position` (uint64[16]) is scratch. Visits
    and virtual losses are added on the way.
    """
    nodes, edges = walk
    position[:] = forest.roots[slot]
    node, depth = np.int64(0), 0
    while True:
        if node >= 0:
            if forest.nodes[slot, node].proof != UNKNOWN or forest.nodes[slot, node].ending != GOES_ON:
                value, draw = _value_of(forest, slot, node)
                backup(forest, slot, walk, depth, node, (value, draw, params.virtual_loss))
                return BACKED_UP, depth, node
            if forest.nodes[slot, node].count == WAITING:
                undo_walk(forest, slot, walk, depth, params.virtual_loss)
                return COLLISION, depth, node
        if node < 0 or forest.nodes[slot, node].count == NEW or depth == MAX_DEPTH:
            break
        edge = _next_edge(forest, slot, node, simulation, params)
        nodes[depth], edges[depth] = node, edge
        depth += 1
        forest.nodes[slot, node].visits += 1
        forest.nodes[slot, node].waiting += 1
        forest.edges[slot, edge].visits += 1
        forest.edges[slot, edge].value_sum -= params.virtual_loss
        play(position, forest.edges[slot, edge].label, forest.edges[slot, edge].promotion)
        if forest.edges[slot, edge].child == NO_NODE:
            forest.edges[slot, edge].child = new_node(forest, slot)
            if forest.edges[slot, edge].child == NO_NODE:
                forest.slots[slot].refused += 1
                if (
                    forest.edges[slot, edge].visits == 1
                ):  # without a child, which of its visits finishes first is unknown
                    forest.nodes[slot, node].visited_policy += forest.edges[slot, edge].prior
        node = np.int64(forest.edges[slot, edge].child)
    ending, key = terminal_status(forest, slot, position, planes, nodes[:depth])
    if node >= 0:
        forest.nodes[slot, node].key = key
        mark_terminal(forest, slot, node, ending)
    if ending != GOES_ON:
        value, draw = (-1.0, 0.0) if ending == MATE else (0.0, 1.0)
        backup(forest, slot, walk, depth, node, (value, draw, params.virtual_loss))
        return BACKED_UP, depth, node
    if node >= 0 and forest.nodes[slot, node].count == NEW:
        forest.nodes[slot, node].count = WAITING
    return EVALUATE, depth, node


assert HISTORY >= FIFTY_MOVES
