"""One simulation's way down a tree and back: choose moves, play them again, judge the new position, add up.

Axes: G slots, P planes, D depth of a walk.
"""

from typing import Any

import numpy as np
from numba import njit

from engine.board.bitboard import U
from engine.board.movegen import legal_key, legal_planes, no_moves, step_target
from engine.board.position import COUNTERS, HALFMOVE_MASK, push
from engine.board.rules import FIFTY, FIFTY_MOVES, GOES_ON, MATE, MATERIAL, REPETITION, STALEMATE, insufficient
from engine.search.gumbel import interior_edge, root_edge
from engine.search.puct import best_edge
from engine.search.tree import DRAWN, HISTORY, LOST, MAX_DEPTH, NEW, NOBODY, TWOFOLD, UNKNOWN, WAITING, WON

BACKED_UP, EVALUATE, COLLISION = 0, 1, 2
"""How a walk ended: its value is known and added; an evaluation is due; another walk waits there."""


@njit(cache=True, nogil=True)
def play(position: Any, label: Any, promotion: Any) -> None:
    """Play a label (0..4095) on a position in place."""
    kind, source = np.int64(label) >> 6, U(np.int64(label) & 63)
    push(position, source, step_target(kind, source), np.int64(promotion))


@njit(cache=True, nogil=True)
def times_past(forest: Any, slot: Any, wanted: Any) -> Any:
    """Count how often a key is among the game's earlier positions, int64."""
    times = np.int64(0)
    for index in range(forest.slots[slot].pasts):
        if forest.past[slot, index] == wanted:
            times += 1
    return times


@njit(cache=True, nogil=True)
def _repetition(forest: Any, slot: Any, wanted: Any, path: Any, reversible: Any) -> Any:
    """Give REPETITION for a third occurrence, TWOFOLD for a second one in this walk, else GOES_ON.

    `path` int32[D] are the nodes before this one, the root first; nothing before the last `reversible` plies can come again.
    """
    walked = np.int64(0)
    depth = len(path)
    for index in range(depth - 2, max(np.int64(-1), depth - 1 - reversible), -2):
        if forest.nodes[slot, path[index]].key == wanted:
            walked += 1
    if reversible <= depth and walked == 0:
        return GOES_ON  # the past cannot hold it
    if walked + times_past(forest, slot, wanted) >= 2:
        return REPETITION
    return TWOFOLD if walked > 0 else GOES_ON


@njit(cache=True, nogil=True)
def judge(forest: Any, slot: Any, position: Any, planes: Any, path: Any) -> Any:
    """Write a position's planes (uint64[77]) and give (how the game ends there or GOES_ON, its key)."""
    checkers = legal_planes(position, planes)
    name = legal_key(position, planes)
    if no_moves(planes):
        return (MATE if checkers > 0 else STALEMATE), name
    reversible = np.int64(position[COUNTERS] & HALFMOVE_MASK)
    if reversible >= FIFTY_MOVES:
        return FIFTY, name
    if insufficient(position):
        return MATERIAL, name
    if reversible >= 4:
        return _repetition(forest, slot, name, path, reversible), name
    return GOES_ON, name


@njit(cache=True, nogil=True)
def new_node(forest: Any, slot: Any) -> Any:
    """Take a node of a slot, int64; NOBODY when there is no room."""
    node = np.int64(forest.slots[slot].nodes)
    if node >= forest.nodes.shape[1]:
        return np.int64(NOBODY)
    forest.slots[slot].nodes += 1
    forest.nodes[slot, node].count = NEW
    forest.nodes[slot, node].visits = forest.nodes[slot, node].ended = forest.nodes[slot, node].waiting = 0
    forest.nodes[slot, node].total = forest.nodes[slot, node].level = 0.0
    forest.nodes[slot, node].explored = forest.nodes[slot, node].value = 0.0
    forest.nodes[slot, node].verdict = UNKNOWN
    forest.nodes[slot, node].ending = GOES_ON
    forest.nodes[slot, node].distance = 0
    return node


@njit(cache=True, nogil=True)
def settle(forest: Any, slot: Any, node: Any) -> Any:
    """Prove a node by its moves' proofs if they suffice; tell whether it is proven now.

    One won move proves a win; otherwise all must be proven. The winner takes the shortest way, the loser the longest.
    """
    first = forest.nodes[slot, node].first
    verdict, distance = np.int64(LOST), np.int64(-1)
    known = True
    for edge in range(first, first + forest.nodes[slot, node].count):
        proof = np.int64(forest.edges[slot, edge].proof)
        if proof == UNKNOWN:
            known = False
            continue
        child = forest.edges[slot, edge].child
        plies = np.int64(1) + (np.int64(forest.nodes[slot, child].distance) if child >= 0 else np.int64(0))
        if proof > verdict or distance < 0:
            verdict, distance = proof, plies
        elif proof == verdict:
            distance = min(distance, plies) if proof == WON else max(distance, plies)
    if verdict != WON and not known:
        return False
    forest.nodes[slot, node].verdict = verdict
    forest.nodes[slot, node].distance = distance
    return True


@njit(cache=True, nogil=True)
def back_up(forest: Any, slot: Any, walk: Any, depth: Any, leaf: Any, outcome: Any) -> None:
    """Add a walk's result along its way, each node and move seeing it by its own mover; carry proofs up.

    `walk` = (nodes int32[D], edges int32[D]); `leaf` is the node it ended at, or NOBODY. `outcome` = (value, draw, virtual
    loss): the leaf's mover's value, and what each move of the way was charged while the walk waited.
    """
    nodes, edges = walk
    value, draw, charged = outcome
    proven = False
    if leaf >= 0:
        forest.nodes[slot, leaf].visits += 1
        forest.nodes[slot, leaf].ended += 1
        forest.nodes[slot, leaf].total += value
        forest.nodes[slot, leaf].level += draw
        proven = forest.nodes[slot, leaf].verdict != UNKNOWN
    below = leaf
    for index in range(depth - 1, -1, -1):
        node, edge = nodes[index], edges[index]
        value = -value
        if proven and forest.edges[slot, edge].proof == UNKNOWN:
            forest.edges[slot, edge].proof = -forest.nodes[slot, below].verdict
            proven = settle(forest, slot, node)
        else:
            proven = False
        forest.edges[slot, edge].gain += value + charged
        forest.edges[slot, edge].even += draw
        if below >= 0 and forest.edges[slot, edge].tries == 1:  # its first, which nobody else can be behind
            forest.nodes[slot, node].explored += forest.edges[slot, edge].prior
        forest.nodes[slot, node].waiting -= 1
        if proven:
            value = np.float64(forest.nodes[slot, node].verdict)
            draw = 1.0 if value == 0.0 else 0.0
        forest.nodes[slot, node].total += value
        forest.nodes[slot, node].level += draw
        below = node


@njit(cache=True, nogil=True)
def _withdraw(forest: Any, slot: Any, walk: Any, depth: Any, charged: Any) -> None:
    """Undo a walk that ended where another one waits."""
    nodes, edges = walk
    for index in range(depth):
        node, edge = nodes[index], edges[index]
        forest.nodes[slot, node].visits -= 1
        forest.nodes[slot, node].waiting -= 1
        forest.edges[slot, edge].tries -= 1
        forest.edges[slot, edge].gain += charged


@njit(cache=True, nogil=True)
def _value_of(forest: Any, slot: Any, node: Any) -> Any:
    """Give (value, draw) of a node where the game is over, or nearly so: float64, its mover's view."""
    verdict = forest.nodes[slot, node].verdict
    if verdict in (WON, LOST):
        return np.float64(verdict), 0.0
    return 0.0, 1.0


@njit(cache=True, nogil=True)
def _next_edge(forest: Any, slot: Any, node: Any, simulation: Any, rules: Any) -> Any:
    """Choose the move to walk at an opened node, int64 edge."""
    if not rules.gumbel:
        return best_edge(forest, slot, node, rules)
    if node == 0 and simulation < forest.schedule.shape[1]:
        return root_edge(forest, slot, simulation, rules)
    return interior_edge(forest, slot, node, rules)


@njit(cache=True, nogil=True)
def close(forest: Any, slot: Any, node: Any, ending: Any) -> None:
    """Note at a node how the game ends there."""
    forest.nodes[slot, node].ending = ending
    if ending == MATE:
        forest.nodes[slot, node].verdict = LOST
    elif ending not in (GOES_ON, TWOFOLD):
        forest.nodes[slot, node].verdict = DRAWN


@njit(cache=True, nogil=True)
def descend(forest: Any, slot: Any, simulation: Any, rules: Any, walk: Any, position: Any, planes: Any) -> Any:
    """Walk from the root to a position without a value: give (how it ended, depth, leaf node or NOBODY).

    Fills `walk` = (nodes, edges) int32[D] and, for EVALUATE, `planes` (uint64[77]). `position` (uint64[16]) is scratch. Visits
    and virtual losses are added on the way.
    """
    nodes, edges = walk
    position[:] = forest.roots[slot]
    node, depth = np.int64(0), 0
    while True:
        if node >= 0:
            if forest.nodes[slot, node].verdict != UNKNOWN or forest.nodes[slot, node].ending != GOES_ON:
                value, draw = _value_of(forest, slot, node)
                back_up(forest, slot, walk, depth, node, (value, draw, rules.virtual_loss))
                return BACKED_UP, depth, node
            if forest.nodes[slot, node].count == WAITING:
                _withdraw(forest, slot, walk, depth, rules.virtual_loss)
                return COLLISION, depth, node
        if node < 0 or forest.nodes[slot, node].count == NEW or depth == MAX_DEPTH:
            break
        edge = _next_edge(forest, slot, node, simulation, rules)
        nodes[depth], edges[depth] = node, edge
        depth += 1
        forest.nodes[slot, node].visits += 1
        forest.nodes[slot, node].waiting += 1
        forest.edges[slot, edge].tries += 1
        forest.edges[slot, edge].gain -= rules.virtual_loss
        play(position, forest.edges[slot, edge].label, forest.edges[slot, edge].promotion)
        if forest.edges[slot, edge].child == NOBODY:
            forest.edges[slot, edge].child = new_node(forest, slot)
            if forest.edges[slot, edge].child == NOBODY:
                forest.slots[slot].refused += 1
                if forest.edges[slot, edge].tries == 1:  # nothing tells which of its visits will be the first finished
                    forest.nodes[slot, node].explored += forest.edges[slot, edge].prior
        node = np.int64(forest.edges[slot, edge].child)
    ending, name = judge(forest, slot, position, planes, nodes[:depth])
    if node >= 0:
        forest.nodes[slot, node].key = name
        close(forest, slot, node, ending)
    if ending != GOES_ON:
        value, draw = (-1.0, 0.0) if ending == MATE else (0.0, 1.0)
        back_up(forest, slot, walk, depth, node, (value, draw, rules.virtual_loss))
        return BACKED_UP, depth, node
    if node >= 0 and forest.nodes[slot, node].count == NEW:
        forest.nodes[slot, node].count = WAITING
    return EVALUATE, depth, node


assert HISTORY >= FIFTY_MOVES
