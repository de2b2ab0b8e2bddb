"""Which move a walk takes: AlphaZero's PUCT (Silver et al. 2018), with lc0's growth of exploration and first-play urgency.

score = value + c * prior * sqrt(visits of all moves) / (1 + visits of this one)
c     = c_puct + c_factor * log((visits of all + 1 + c_base) / c_base)

An unvisited move is worth the mean of the node's finished visits less a reduction by the visited policy, the sum of the priors
of moves with a finished visit (lc0's GetFpu, of GetQ and GetVisitedPolicy): visits in flight count in neither.

All values are seen by the mover at the node. Moves that are proven lost are left out unless all are.
"""

from math import ceil, log, sqrt
from typing import Any

import numpy as np
from numba import njit

from engine.search.tree import LOST, NO_NODE


@njit(cache=True, nogil=True)
def selectable_moves(forest: Any, slot: Any, node: Any, params: Any) -> Any:
    """Return how many of a node's moves, likeliest first, may be selected now, int64: widening, top-k and tail filter."""
    count = np.int64(forest.nodes[slot, node].count)
    allowed = count
    if params.top_k > 0:
        allowed = min(allowed, np.int64(params.top_k))
    if params.tail > 0.0:
        first, left_out = forest.nodes[slot, node].first, 0.0
        kept = count
        while kept > 1:
            left_out += forest.edges[slot, first + kept - 1].prior
            if left_out > params.tail:
                break
            kept -= 1
        allowed = min(allowed, kept)
    if params.widening > 0.0:
        wide = np.int64(ceil(params.widening * np.float64(forest.nodes[slot, node].visits) ** params.widening_power))
        allowed = min(allowed, max(wide, np.int64(1)))
    return allowed


@njit(cache=True, nogil=True)
def puct_edge(forest: Any, slot: Any, node: Any, params: Any) -> Any:
    """Return the edge with the largest PUCT score, int64: its index among the slot's edges."""
    first, count = np.int64(forest.nodes[slot, node].first), np.int64(forest.nodes[slot, node].count)
    node_visits = forest.nodes[slot, node].visits
    child_visits = np.float64(node_visits - forest.nodes[slot, node].ended)
    grown = params.c_puct
    if params.c_factor > 0.0:
        grown += params.c_factor * log((child_visits + 1.0 + params.c_base) / params.c_base)
    scale = grown * sqrt(max(child_visits, 1.0))
    unvisited = forest.nodes[slot, node].value_sum / max(
        np.float64(node_visits - forest.nodes[slot, node].waiting), 1.0
    )
    unvisited -= params.fpu_reduction * sqrt(np.float64(forest.nodes[slot, node].visited_policy))
    start, stop = first, first + selectable_moves(forest, slot, node, params)
    while True:
        best, choice = -np.inf, NO_NODE
        for edge in range(start, stop):
            if forest.edges[slot, edge].proof == LOST:
                continue
            visits = np.float64(forest.edges[slot, edge].visits)
            value = forest.edges[slot, edge].value_sum / visits if visits > 0.0 else unvisited
            if node == 0:
                value += forest.moves[slot, edge - first].bias
            score = value + scale * forest.edges[slot, edge].prior / (1.0 + visits)
            if score > best:
                best, choice = score, edge
        if choice >= 0:
            return choice
        if stop == first + count:
            return first  # all are proven losses, as the node's own proof says
        start, stop = stop, first + count
