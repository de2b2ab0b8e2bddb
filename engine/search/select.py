"""Select the move of a descent: PUCT, or Gumbel with Sequential Halving at the root.

**PUCT** (Silver et al. 2018), with lc0's growth of exploration and first-play urgency, and KataGo's
scaling by variance:

    score = Q + c * prior * sqrt(visits of all moves) / (1 + visits of this one);
    c     = (c_puct + c_factor * log((visits of all + 1 + c_base) / c_base))
            * (1 + c_stdev * (stdev / STDEV_PRIOR - 1)).

stdev is the standard deviation of the values found below the node. Where they are much alike, small
differences in Q decide earlier.

Each visit in flight counts in Q as a loss (virtual loss). An unvisited move has the node's mean of
finished visits, less fpu_reduction * sqrt(sum of the priors of moves with a finished visit), as in
lc0's GetFpu.

**Gumbel** (Danihelka et al. 2022, "Policy improvement by planning with Gumbel"). Numbers and
tie-breaks follow mctx (gumbel_muzero_policy, qtransform_completed_by_mix_value), so its defaults
mean the same here. Visits in flight do not change Q.

All values are seen by the mover at the node. Moves that are proven lost are left out unless all
are.

Axes: M moves of a node, S simulations.
"""

from math import ceil, exp, log, log2, sqrt
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from engine.board.position import MAX_MOVES
from engine.search.config import SearchParams
from engine.search.tree import LOST, NO_NODE, Forest, Int

_LEAST = 1e-30
STDEV_PRIOR, STDEV_PRIOR_VISITS = 0.4, 2.0
"""Prior of a node's standard deviation of values, and its weight in visits, as in KataGo."""
MAXVISIT_INIT = 50.0
"""Added to the largest visit count in the weight of completed Q-values, as in mctx."""


@njit(cache=True, nogil=True)
def next_edge(forest: Forest, slot: Int, node: Int, simulation: Int, params: SearchParams) -> Any:
    """Return the edge that a descent takes at an expanded node, int64."""
    if not params.gumbel:
        return puct_edge(forest, slot, node, params)
    if node == 0 and simulation < forest.schedule.shape[1]:
        return halving_edge(forest, slot, simulation, params)
    return improved_policy_edge(forest, slot, node, params)


@njit(cache=True, nogil=True)
def selectable_moves(forest: Forest, slot: Int, index: Int, params: SearchParams) -> Any:
    """Count the moves, likeliest first, that may be selected now, int64: top-k, tail filter and
    progressive widening.
    """
    node = forest.nodes[slot, index]
    allowed = count = np.int64(node.count)
    if params.top_k > 0:
        allowed = min(allowed, np.int64(params.top_k))
    if params.tail_mass > 0.0:
        kept, left_out = count, 0.0
        while kept > 1:
            left_out += forest.edges[slot, node.first + kept - 1].prior
            if left_out > params.tail_mass:
                break
            kept -= 1
        allowed = min(allowed, kept)
    if params.widening_factor > 0.0:
        wide = np.int64(ceil(params.widening_factor * np.float64(node.visits) ** 0.5))
        allowed = min(allowed, max(wide, np.int64(1)))
    return allowed


@njit(cache=True, nogil=True)
def estimate_stdev(node: Any) -> Any:
    """Return the standard deviation of a node's finished values, shrunk towards STDEV_PRIOR as in
    KataGo, float64.
    """
    visits = max(np.float64(node.visits - node.in_flight), 1.0)
    mean = node.value_sum / visits
    squares = max(node.square_sum, mean * mean * visits)
    squares += (mean * mean + STDEV_PRIOR * STDEV_PRIOR) * STDEV_PRIOR_VISITS
    return sqrt(max(squares / (visits + STDEV_PRIOR_VISITS - 1.0) - mean * mean, 0.0))


@njit(cache=True, nogil=True)
def puct_edge(forest: Forest, slot: Int, index: Int, params: SearchParams) -> Any:
    """Return the edge with the largest PUCT score, int64."""
    node = forest.nodes[slot, index]
    first, count = np.int64(node.first), np.int64(node.count)
    child_visits = np.float64(node.visits - node.ended)
    c = params.c_puct
    if params.c_factor > 0.0:
        c += params.c_factor * log((child_visits + 1.0 + params.c_base) / params.c_base)
    if params.c_stdev > 0.0:
        c *= 1.0 + params.c_stdev * (estimate_stdev(node) / STDEV_PRIOR - 1.0)
    scale = c * sqrt(max(child_visits, 1.0))
    unvisited = node.value_sum / max(np.float64(node.visits - node.in_flight), 1.0)
    unvisited -= params.fpu_reduction * sqrt(np.float64(node.visited_policy))
    start, stop = first, first + selectable_moves(forest, slot, index, params)
    while True:
        best, choice = -np.inf, NO_NODE
        for edge in range(start, stop):
            move = forest.edges[slot, edge]
            if move.proof == LOST:
                continue
            visits, value = np.float64(move.visits), unvisited
            if visits > 0.0:
                value = (move.value_sum - np.float64(move.in_flight)) / visits
            if index == 0:
                value += forest.moves[slot, edge - first].bias
            score = value + scale * move.prior / (1.0 + visits)
            if score > best:
                best, choice = score, edge
        if choice >= 0:
            return choice
        if stop == first + count:
            return first  # all are proven losses, and so the node itself
        start, stop = stop, first + count


@njit(cache=True, nogil=True)
def plan_halving(considered: Int, simulations: Int, out: NDArray[np.int32]) -> None:
    """Write the plan of Sequential Halving (Karnin et al. 2013) into `out` (int32[S]).

    Entry s is how often the move of simulation s has been visited before it: rounds of equal visits
    for `considered` moves, then for half as many, down to two, as mctx's
    `get_sequence_of_considered_visits`.
    """
    if considered <= 1:
        for index in range(simulations):
            out[index] = index
        return
    rounds = np.int64(ceil(log2(np.float64(considered))))
    done, visits, left = 0, 0, considered
    while done < simulations:
        for _ in range(max(np.int64(1), simulations // (rounds * left))):
            for _ in range(left):
                if done < simulations:
                    out[done] = visits
                    done += 1
            visits += 1
        left = max(np.int64(2), left // 2)


@njit(cache=True, nogil=True)
def _mixed_value(forest: Forest, slot: Int, index: Int) -> Any:
    """Return v_mix (appendix D): the evaluator's value and the visited moves' mean by prior,
    weighted 1 to visits.
    """
    node = forest.nodes[slot, index]
    total, priors, weighted = 0.0, 0.0, 0.0
    for edge in range(node.first, node.first + node.count):
        move = forest.edges[slot, edge]
        visits = np.float64(move.visits - move.in_flight)
        if visits > 0.0:
            total += visits
            priors += move.prior
            weighted += move.prior * move.value_sum / visits
    return (np.float64(node.value) + total * weighted / max(priors, _LEAST)) / (total + 1.0)


@njit(cache=True, nogil=True)
def completed_values(
    forest: Forest, slot: Int, index: Int, params: SearchParams, out: NDArray[np.float64]
) -> None:
    """Write sigma(completed Q) of a node's moves into `out` (float64[M]).

    sigma(Q) = (Q - min Q) * (MAXVISIT_INIT + max N) * value_scale / span. The span is max Q - min Q
    as in mctx; without `rescale_values` it is 2, the range of values. Unvisited moves have Q =
    v_mix.
    """
    first, count = forest.nodes[slot, index].first, np.int64(forest.nodes[slot, index].count)
    assert count <= len(out)
    mixed = _mixed_value(forest, slot, index)
    least, most, most_visits = np.inf, -np.inf, 0.0
    for place in range(count):
        move = forest.edges[slot, first + place]
        visits = np.float64(move.visits - move.in_flight)
        out[place] = move.value_sum / visits if visits > 0.0 else mixed
        if -1 <= move.proof <= 1:
            out[place] = np.float64(move.proof)
        if index == 0:
            out[place] += forest.moves[slot, place].bias
        least, most, most_visits = (
            min(least, out[place]),
            max(most, out[place]),
            max(most_visits, visits),
        )
    span = max(most - least, 1e-8) if params.rescale_values else 2.0
    scale = (MAXVISIT_INIT + most_visits) * params.value_scale / span
    for place in range(count):
        out[place] = (out[place] - least) * scale


@njit(cache=True, nogil=True)
def improved_policy(
    forest: Forest, slot: Int, index: Int, params: SearchParams, out: NDArray[np.float64]
) -> None:
    """Write softmax(logits + sigma(completed Q)) of a node's moves into `out` (float64[M])."""
    first, count = forest.nodes[slot, index].first, np.int64(forest.nodes[slot, index].count)
    completed_values(forest, slot, index, params, out)
    most, total = -np.inf, 0.0
    for place in range(count):
        out[place] += log(max(np.float64(forest.edges[slot, first + place].prior), _LEAST))
        most = max(most, out[place])
    for place in range(count):
        out[place] = exp(out[place] - most)
        total += out[place]
    for place in range(count):
        out[place] /= total


@njit(cache=True, nogil=True)
def improved_policy_edge(forest: Forest, slot: Int, index: Int, params: SearchParams) -> Any:
    """Return the edge whose share of visits lags most behind the improved policy, int64."""
    policy = np.empty(MAX_MOVES, dtype=np.float64)
    improved_policy(forest, slot, index, params, policy)
    node = forest.nodes[slot, index]
    first, child_visits = np.int64(node.first), np.float64(node.visits - node.ended)
    best, choice = -np.inf, first
    for place in range(node.count):
        move = forest.edges[slot, first + place]
        score = policy[place] - np.float64(move.visits) / (1.0 + child_visits)
        if move.proof != LOST and score > best:
            best, choice = score, first + place
    return choice


@njit(cache=True, nogil=True)
def halving_edge(forest: Forest, slot: Int, simulation: Int, params: SearchParams) -> Any:
    """Return the root's edge for a simulation of this run, int64; past the plan's end, the winner
    of the halving.

    Among the moves visited as often as the plan says, the one with the largest noise + logit +
    sigma(completed Q). A proof can leave the plan without such a move: then the least visited of
    those that are not lost.
    """
    values = np.empty(MAX_MOVES, dtype=np.float64)
    completed_values(forest, slot, 0, params, values)
    first, count = np.int64(forest.nodes[slot, 0].first), np.int64(forest.nodes[slot, 0].count)
    most, least = np.int64(-1), np.int64(2**31)
    for place in range(count):
        move = forest.edges[slot, first + place]
        if move.proof != LOST:
            visits = np.int64(move.visits - forest.moves[slot, place].visits_before)
            most, least = max(most, visits), min(least, visits)
    wanted = (
        np.int64(forest.schedule[slot, simulation])
        if simulation < forest.schedule.shape[1]
        else most
    )
    for attempt in (wanted, least):
        best, choice = -np.inf, np.int64(-1)
        for place in range(count):
            move, more = forest.edges[slot, first + place], forest.moves[slot, place]
            if np.int64(move.visits - more.visits_before) != attempt or move.proof == LOST:
                continue
            score = more.noise + log(max(np.float64(move.prior), _LEAST)) + values[place]
            if score > best:
                best, choice = score, first + place
        if choice >= 0:
            return choice
    return first
