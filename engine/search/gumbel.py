"""Gumbel search: Sequential Halving at the root, the improved policy below it.

Source: Danihelka et al. 2022, "Policy improvement by planning with Gumbel". Formulas and tie-breaks
follow mctx (gumbel_muzero_policy, qtransform_completed_by_mix_value), so mctx's parameters mean the
same here. Visits in flight do not change Q. Moves proven lost are skipped unless all are lost.

All values are from the view of the side to move at the node.

Axes: M moves of a node, S simulations.
"""

from math import ceil, exp, log, log2
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from engine.board.position import MAX_MOVES
from engine.board.rng import gumbel
from engine.search.config import SearchParams
from engine.search.tree import LOST, Forest, Int

VISIT_OFFSET = 50.0
"""Constant added to the largest visit count when Q-values are scaled; mctx's maxvisit_init."""
_MIN_PRIOR = 1e-30
"""Lower bound of priors in logarithms and divisors."""


@njit(cache=True, nogil=True)
def begin_halving(
    forest: Forest, slot: Int, noise: bool, wanted: Int, params: SearchParams
) -> None:
    """Sample a root's Gumbel noise, store its moves' visits, and plan `wanted` simulations."""
    root, scale = forest.nodes[slot, 0], params.gumbel_scale if noise else 0.0
    assert root.count <= forest.moves.shape[1]
    for index in range(root.count):
        move = forest.moves[slot, index]
        move.visits_before = forest.edges[slot, root.first + index].visits
        move.noise = scale * gumbel(forest.rng[slot])
    considered = min(np.int64(params.max_considered_actions), np.int64(root.count))
    planned = min(np.int64(forest.schedule.shape[1]), wanted)
    plan_halving(considered, planned, forest.schedule[slot])


@njit(cache=True, nogil=True)
def select_gumbel_edge(
    forest: Forest, slot: Int, node: Int, simulation: Int, params: SearchParams
) -> Any:
    """Select a node's edge, int64; at the root, by Sequential Halving as long as its plan lasts."""
    if node == 0 and simulation < forest.schedule.shape[1]:
        return select_halving_edge(forest, slot, simulation, params)
    return select_improved_edge(forest, slot, node, params)


@njit(cache=True, nogil=True)
def plan_halving(considered: Int, simulations: Int, out: NDArray[np.int32]) -> None:
    """Write the plan of Sequential Halving (Karnin et al. 2013) into `out` (int32[S]).

    Simulation s selects among the moves that have `out[s]` visits. So each of the `considered`
    moves gets the same number of visits, then each of the better half, down to two moves. Equals
    mctx's `get_sequence_of_considered_visits`.
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
def _mix_values(forest: Forest, slot: Int, index: Int) -> Any:
    """Return the weighted mean of the evaluator's value and visited moves' Q: v_mix, appendix D."""
    node = forest.nodes[slot, index]
    total, priors, weighted = 0.0, 0.0, 0.0
    for edge in range(node.first, node.first + node.count):
        move = forest.edges[slot, edge]
        visits = np.float64(move.visits - move.in_flight)
        if visits > 0.0:
            total += visits
            priors += move.prior
            weighted += move.prior * move.value_sum / visits
    return (np.float64(node.value) + total * weighted / max(priors, _MIN_PRIOR)) / (total + 1.0)


@njit(cache=True, nogil=True)
def write_completed_values(
    forest: Forest, slot: Int, index: Int, params: SearchParams, out: NDArray[np.float64]
) -> None:
    """Write sigma(completed Q) of each move of a node into `out` (float64[M]).

    sigma(Q) = (Q - min Q) * (VISIT_OFFSET + max visits) * value_scale / span. The span is
    max Q - min Q as in mctx; without `rescale_values`, it is 2, the range of values. The Q of an
    unvisited move is v_mix, and that of a proven move its proof; the move's bias is added.
    """
    first, count = forest.nodes[slot, index].first, np.int64(forest.nodes[slot, index].count)
    assert count <= len(out)
    mixed = _mix_values(forest, slot, index)
    smallest, largest, most_visits = np.inf, -np.inf, 0.0
    for place in range(count):
        move = forest.edges[slot, first + place]
        visits = np.float64(move.visits - move.in_flight)
        out[place] = move.value_sum / visits if visits > 0.0 else mixed
        if -1 <= move.proof <= 1:
            out[place] = np.float64(move.proof)
        out[place] += move.bias
        smallest, largest = min(smallest, out[place]), max(largest, out[place])
        most_visits = max(most_visits, visits)
    span = max(largest - smallest, 1e-8) if params.rescale_values else 2.0
    scale = (VISIT_OFFSET + most_visits) * params.value_scale / span
    for place in range(count):
        out[place] = (out[place] - smallest) * scale


@njit(cache=True, nogil=True)
def write_improved_policy(
    forest: Forest, slot: Int, index: Int, params: SearchParams, out: NDArray[np.float64]
) -> None:
    """Write softmax(logits + sigma(completed Q)) over a node's moves into `out` (float64[M])."""
    first, count = forest.nodes[slot, index].first, np.int64(forest.nodes[slot, index].count)
    write_completed_values(forest, slot, index, params, out)
    largest, total = -np.inf, 0.0
    for place in range(count):
        out[place] += log(max(np.float64(forest.edges[slot, first + place].prior), _MIN_PRIOR))
        largest = max(largest, out[place])
    for place in range(count):
        out[place] = exp(out[place] - largest)
        total += out[place]
    for place in range(count):
        out[place] /= total


@njit(cache=True, nogil=True)
def select_improved_edge(forest: Forest, slot: Int, index: Int, params: SearchParams) -> Any:
    """Return the edge whose share of visits is furthest below its improved policy, int64."""
    policy = np.empty(MAX_MOVES, dtype=np.float64)
    write_improved_policy(forest, slot, index, params, policy)
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
def select_halving_edge(forest: Forest, slot: Int, simulation: Int, params: SearchParams) -> Any:
    """Select a root edge by Sequential Halving, int64; after the planned simulations, the winner.

    Among the moves with the planned number of visits, this is the one with the largest noise +
    logit + sigma(completed Q). If all of them are proven lost, it is one of the least visited moves
    that are not.
    """
    values = np.empty(MAX_MOVES, dtype=np.float64)
    write_completed_values(forest, slot, np.int64(0), params, values)
    first, count = np.int64(forest.nodes[slot, 0].first), np.int64(forest.nodes[slot, 0].count)
    most_visits, least_visits = np.int64(-1), np.int64(2**31)
    for place in range(count):
        move = forest.edges[slot, first + place]
        if move.proof != LOST:
            visits = np.int64(move.visits - forest.moves[slot, place].visits_before)
            most_visits = max(most_visits, visits)
            least_visits = min(least_visits, visits)
    planned = most_visits
    if simulation < forest.schedule.shape[1]:
        planned = np.int64(forest.schedule[slot, simulation])
    for wanted in (planned, least_visits):
        best, choice = -np.inf, np.int64(-1)
        for place in range(count):
            move, root_move = forest.edges[slot, first + place], forest.moves[slot, place]
            if np.int64(move.visits - root_move.visits_before) != wanted or move.proof == LOST:
                continue
            score = root_move.noise + log(max(np.float64(move.prior), _MIN_PRIOR)) + values[place]
            if score > best:
                best, choice = score, first + place
        if choice >= 0:
            return choice
    return first
