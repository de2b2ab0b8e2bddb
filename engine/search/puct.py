"""Which move a walk takes: AlphaZero's PUCT (Silver et al. 2018), with lc0's growth of exploration and first-play urgency.

score = value + c * prior * sqrt(tries of all moves) / (1 + tries of this one)
c     = c_puct + c_factor * log((tries of all + 1 + c_base) / c_base)

An untried move is worth the mean of the node's finished visits less a reduction by the priors of moves that have one: what is
still in flight says nothing of either (lc0's GetFpu, of GetQ and GetVisitedPolicy).

All values are seen by the mover at the node. Moves that are proven lost are left out unless all are.
"""

from math import ceil, log, sqrt
from typing import Any

import numpy as np
from numba import njit

from engine.search.tree import LOST, NOBODY


@njit(cache=True, nogil=True)
def open_moves(forest: Any, slot: Any, node: Any, rules: Any) -> Any:
    """Give how many of a node's moves, likeliest first, may be walked now, int64: widening, top-k and tail filter."""
    count = np.int64(forest.nodes[slot, node].count)
    allowed = count
    if rules.top_k > 0:
        allowed = min(allowed, np.int64(rules.top_k))
    if rules.tail > 0.0:
        first, left_out = forest.nodes[slot, node].first, 0.0
        kept = count
        while kept > 1:
            left_out += forest.edges[slot, first + kept - 1].prior
            if left_out > rules.tail:
                break
            kept -= 1
        allowed = min(allowed, kept)
    if rules.widening > 0.0:
        wide = np.int64(ceil(rules.widening * np.float64(forest.nodes[slot, node].visits) ** rules.widening_power))
        allowed = min(allowed, max(wide, np.int64(1)))
    return allowed


@njit(cache=True, nogil=True)
def best_edge(forest: Any, slot: Any, node: Any, rules: Any) -> Any:
    """Give the edge with the largest PUCT score, int64: its index among the slot's edges."""
    first, count = np.int64(forest.nodes[slot, node].first), np.int64(forest.nodes[slot, node].count)
    visits = forest.nodes[slot, node].visits
    tried = np.float64(visits - forest.nodes[slot, node].ended)
    grown = rules.c_puct
    if rules.c_factor > 0.0:
        grown += rules.c_factor * log((tried + 1.0 + rules.c_base) / rules.c_base)
    scale = grown * sqrt(max(tried, 1.0))
    unvisited = forest.nodes[slot, node].total / max(np.float64(visits - forest.nodes[slot, node].waiting), 1.0)
    unvisited -= rules.fpu_reduction * sqrt(np.float64(forest.nodes[slot, node].explored))
    start, stop = first, first + open_moves(forest, slot, node, rules)
    while True:
        best, choice = -np.inf, NOBODY
        for edge in range(start, stop):
            if forest.edges[slot, edge].proof == LOST:
                continue
            tries = np.float64(forest.edges[slot, edge].tries)
            value = forest.edges[slot, edge].gain / tries if tries > 0.0 else unvisited
            if node == 0:
                value += forest.moves[slot, edge - first].bias
            score = value + scale * forest.edges[slot, edge].prior / (1.0 + tries)
            if score > best:
                best, choice = score, edge
        if choice >= 0:
            return choice
        if stop == first + count:
            return first  # all are lost; the node's own verdict says so
        start, stop = stop, first + count
