"""What is done at a root before and between runs: check whether the game is over, find mates in one, add noise, advance.

Axes: G slots, M root moves.
"""

from math import exp, log
from typing import Any

import numpy as np
from numba import njit

from engine.board.bitboard import U
from engine.board.movegen import MOVE_PLANES, TYPES, count_moves, legal_key, legal_planes, no_moves
from engine.board.position import COUNTERS, HALFMOVE_MASK
from engine.board.rng import dirichlet, gumbel
from engine.board.rules import GOES_ON, MATE, REPETITION, STALEMATE, ending_of_position
from engine.search.expansion import EXPANDED, expand
from engine.search.gumbel import halving_schedule
from engine.search.simulation import mark_terminal, new_node, play, times_in_history
from engine.search.tree import HISTORY, NO_NODE, TWOFOLD, WAITING, WON


@njit(cache=True, nogil=True)
def reset_tree(forest: Any, slot: Any) -> None:
    """Replace a slot's tree by a single node, its root position."""
    forest.slots[slot].nodes = forest.slots[slot].edges = 0
    forest.slots[slot].deepest = forest.slots[slot].plies = forest.slots[slot].walks = 0
    new_node(forest, slot)


@njit(cache=True, nogil=True)
def ending_of(forest: Any, slot: Any, planes: Any) -> Any:
    """Return how the rules end the *game* at a slot's root, GOES_ON when they do not. `planes` (uint64[77]) is written."""
    position = forest.roots[slot]
    checkers = legal_planes(position, planes)
    ending = ending_of_position(position, planes, checkers)
    if ending == GOES_ON and times_in_history(forest, slot, legal_key(position, planes)) >= 2:
        return REPETITION
    return ending


@njit(cache=True, nogil=True)
def moves_at(forest: Any, slot: Any) -> Any:
    """Count the legal moves at a slot's root, int64."""
    planes = np.empty(MOVE_PLANES + TYPES, dtype=np.uint64)
    legal_planes(forest.roots[slot], planes)
    return count_moves(planes, planes)


@njit(cache=True, nogil=True)
def mate_in_one(forest: Any, slot: Any, planes: Any) -> Any:
    """Mark the root's moves that mate as won; return whether there is one. `planes` (uint64[77]) is scratch."""
    position = np.empty_like(forest.roots[slot])
    first, found = forest.nodes[slot, 0].first, False
    for edge in range(first, first + forest.nodes[slot, 0].count):
        position[:] = forest.roots[slot]
        play(position, forest.edges[slot, edge].label, forest.edges[slot, edge].promotion)
        if legal_planes(position, planes) > 0 and no_moves(planes):
            forest.edges[slot, edge].proof = WON
            found = True
    if found:
        forest.nodes[slot, 0].proof = WON
        forest.nodes[slot, 0].distance = 1
    return found


@njit(cache=True, nogil=True)
def prepare_root(forest: Any, slot: Any, planes: Any, blank: Any, allowed: Any) -> Any:
    """Return whether a root that has no edges needs an evaluation. `planes` (uint64[77]) is written.

    It does not where the game is over or one of the `allowed` moves mates; the priors are then those of `blank`, float32[A]
    of zeros.
    """
    position = forest.roots[slot]
    checkers = legal_planes(position, planes)
    forest.nodes[slot, 0].key = legal_key(position, planes)
    ending = ending_of_position(position, planes, checkers)
    if ending in (MATE, STALEMATE):  # drawn by another rule, a root is searched all the same
        mark_terminal(forest, slot, 0, ending)
        forest.nodes[slot, 0].count = 0
        return False
    found = expand(forest, slot, 0, planes, blank, 1.0) == EXPANDED
    if found and len(allowed) > 0:
        restrict_root(forest, slot, allowed)
    if found and mate_in_one(forest, slot, np.empty_like(planes)):
        forest.nodes[slot, 0].visits = forest.nodes[slot, 0].ended = 1
        forest.nodes[slot, 0].value_sum, forest.nodes[slot, 0].value = 1.0, 1.0
        return False
    forest.slots[slot].edges = 0
    forest.nodes[slot, 0].count = WAITING
    return True


@njit(cache=True, nogil=True)
def restrict_root(forest: Any, slot: Any, allowed: Any) -> None:
    """Keep only the `allowed` moves of an expanded root, int64[N, 2] of (label, promotion), and rescale their priors."""
    first, kept, total = forest.nodes[slot, 0].first, np.int64(0), 0.0
    for edge in range(first, first + forest.nodes[slot, 0].count):
        for index in range(len(allowed)):
            if (
                allowed[index, 0] == forest.edges[slot, edge].label
                and allowed[index, 1] == forest.edges[slot, edge].promotion
            ):
                place = first + kept
                forest.edges[slot, place].label = forest.edges[slot, edge].label
                forest.edges[slot, place].promotion = forest.edges[slot, edge].promotion
                forest.edges[slot, place].prior = forest.edges[slot, edge].prior
                forest.edges[slot, place].proof = forest.edges[slot, edge].proof
                total += forest.edges[slot, edge].prior
                kept += 1
                break
    forest.nodes[slot, 0].count = kept
    for edge in range(first, first + kept):
        forest.edges[slot, edge].prior = forest.edges[slot, edge].prior / total if total > 0.0 else 1.0 / kept


@njit(cache=True, nogil=True)
def shape_priors(forest: Any, slot: Any, temperature: Any, noise: Any) -> None:
    """Flatten the root's priors by a temperature and mix Dirichlet noise in; `noise` = (share, alpha)."""
    mixed, alpha = noise
    first, count = forest.nodes[slot, 0].first, np.int64(forest.nodes[slot, 0].count)
    if count < 1 or (temperature == 1.0 and mixed == 0.0):
        return
    drawn = np.zeros(count, dtype=np.float64)
    if mixed > 0.0:
        dirichlet(forest.rng[slot], alpha, drawn)
    total = 0.0
    for edge in range(first, first + count):
        flat = exp(log(max(np.float64(forest.edges[slot, edge].prior), 1e-30)) / temperature)
        forest.edges[slot, edge].prior = flat
        total += flat
    forest.nodes[slot, 0].visited_policy = 0.0
    for edge in range(first, first + count):
        prior = forest.edges[slot, edge].prior / total
        forest.edges[slot, edge].prior = (1.0 - mixed) * prior + mixed * drawn[edge - first]
        if forest.edges[slot, edge].visits > 0:
            forest.nodes[slot, 0].visited_policy += forest.edges[slot, edge].prior


@njit(cache=True, nogil=True)
def begin_root(forest: Any, slot: Any, budget: Any, considered: Any, scale: Any, penalty: Any) -> None:
    """Prepare an expanded root for `budget` simulations: Gumbel noise and schedule, repetition penalty, visits so far."""
    first, count = forest.nodes[slot, 0].first, np.int64(forest.nodes[slot, 0].count)
    position, planes = np.empty_like(forest.roots[slot]), np.empty(MOVE_PLANES + TYPES, dtype=np.uint64)
    assert count <= forest.moves.shape[1]
    for index in range(count):
        forest.moves[slot, index].visits_before = forest.edges[slot, first + index].visits
        forest.moves[slot, index].bias = 0.0
        if scale >= 0.0:
            forest.moves[slot, index].noise = scale * gumbel(forest.rng[slot])
        if penalty > 0.0:
            position[:] = forest.roots[slot]
            play(position, forest.edges[slot, first + index].label, forest.edges[slot, first + index].promotion)
            legal_planes(position, planes)
            if times_in_history(forest, slot, legal_key(position, planes)) > 0:
                forest.moves[slot, index].bias = -penalty
    if scale >= 0.0:
        room = min(np.int64(forest.schedule.shape[1]), budget)
        halving_schedule(min(np.int64(considered), count), room, forest.schedule[slot])


@njit(cache=True, nogil=True)
def find_edge(forest: Any, slot: Any, label: Any, promotion: Any) -> Any:
    """Return the root's edge of a move, int64; NO_NODE when it has none."""
    first = np.int64(forest.nodes[slot, 0].first)
    for edge in range(first, first + max(np.int64(forest.nodes[slot, 0].count), np.int64(0))):
        if forest.edges[slot, edge].label == label and forest.edges[slot, edge].promotion == promotion:
            return edge
    return np.int64(NO_NODE)


@njit(cache=True, nogil=True)
def add_to_history(forest: Any, slot: Any) -> None:
    """Append the root's key to the game's history, of which the oldest is dropped where there is no room."""
    if forest.slots[slot].history_length == HISTORY:
        for index in range(HISTORY - 1):
            forest.history[slot, index] = forest.history[slot, index + 1]
        forest.slots[slot].history_length -= 1
    forest.history[slot, forest.slots[slot].history_length] = forest.nodes[slot, 0].key
    forest.slots[slot].history_length += 1


@njit(cache=True, nogil=True)
def advance(forest: Any, slot: Any, label: Any, promotion: Any, reuse: Any, spare: Any) -> Any:
    """Play a legal move at the root and keep its part of the tree; return whether there was one.

    `spare` = (order int32[C], EDGE[E]) is the room that subtrees are moved through.
    """
    planes = np.empty(MOVE_PLANES + TYPES, dtype=np.uint64)
    legal_planes(forest.roots[slot], planes)
    forest.nodes[slot, 0].key = legal_key(forest.roots[slot], planes)
    add_to_history(forest, slot)
    child = np.int64(NO_NODE)
    if reuse:
        edge = find_edge(forest, slot, label, promotion)
        if edge >= 0:
            child = np.int64(forest.edges[slot, edge].child)
    play(forest.roots[slot], label, promotion)
    if forest.roots[slot, COUNTERS] & HALFMOVE_MASK == U(0):
        forest.slots[slot].history_length = 0
    forest.slots[slot].deepest = forest.slots[slot].plies = forest.slots[slot].walks = 0
    if child < 0 or forest.nodes[slot, child].count < 1:
        reset_tree(forest, slot)
        return False
    _keep_subtree(forest, slot, child, spare)
    return True


@njit(cache=True, nogil=True)
def _keep_subtree(forest: Any, slot: Any, child: Any, spare: Any) -> None:
    """Make `child` the root, moving what hangs on it to the front.

    A child has a larger number than its parent, so one pass finds all that is kept, and nodes move to lower places. Edges
    lie in the order in which their nodes were expanded and go through `spare`. What was a draw by a second occurrence is new
    again: the first one may now lie before the root, where it takes two.
    """
    order, room = spare
    nodes, kept, edges = forest.slots[slot].nodes, np.int64(0), np.int64(0)
    order[:nodes] = NO_NODE
    order[child] = 0
    for node in range(child, nodes):
        if order[node] == NO_NODE:
            continue
        order[node] = kept
        start, count = np.int64(forest.nodes[slot, node].first), np.int64(forest.nodes[slot, node].count)
        forest.nodes[slot, kept] = forest.nodes[slot, node]
        if forest.nodes[slot, kept].ending == TWOFOLD:
            forest.nodes[slot, kept].ending = GOES_ON
        if count > 0:
            for edge in range(start, start + count):
                if forest.edges[slot, edge].child >= 0:
                    order[forest.edges[slot, edge].child] = 0
                room[edges + edge - start] = forest.edges[slot, edge]
            forest.nodes[slot, kept].first = edges
            edges += count
        kept += 1
    for edge in range(edges):
        forest.edges[slot, edge] = room[edge]
        if forest.edges[slot, edge].child >= 0:
            forest.edges[slot, edge].child = order[forest.edges[slot, edge].child]
    forest.slots[slot].nodes, forest.slots[slot].edges = kept, edges
