"""Gumbel's moves and improved policy (Danihelka et al. 2022, "Policy improvement by planning with Gumbel").

Numbers and tie-breaks follow mctx (gumbel_muzero_policy, qtransform_completed_by_mix_value), so its defaults mean the same
here. All values are seen by the mover at the node, and are of finished visits: a move that others wait at is neither worse nor
better for it, and the plan or its share of visits already sends the next walk elsewhere.

Axes: M moves of a node, S simulations.
"""

from math import ceil, exp, log, log2
from typing import Any

import numpy as np
from numba import njit

from engine.board.position import MAX_MOVES
from engine.search.tree import LOST, in_flight

_LEAST = 1e-30


@njit(cache=True, nogil=True)
def halving_schedule(considered: Any, simulations: Any, out: Any) -> None:
    """Write Sequential Halving's plan into `out` (int32[S]): how often the move of each simulation has been visited before.

    As mctx's `get_sequence_of_considered_visits`: rounds of equal visits for `considered` moves, then for half as many, down
    to two (Karnin et al. 2013).
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
def _finished(forest: Any, slot: Any, edge: Any, params: Any) -> Any:
    """Return a move's finished visits and the sum of their values, float64 both, without virtual losses."""
    waiting = in_flight(forest, slot, edge)
    visits = np.float64(forest.edges[slot, edge].visits - waiting)
    return visits, forest.edges[slot, edge].value_sum + params.virtual_loss * np.float64(waiting)


@njit(cache=True, nogil=True)
def _mixed_value(forest: Any, slot: Any, node: Any, params: Any) -> Any:
    """Return v_mix (appendix D): the evaluator's value and the visited moves' mean by prior, weighted 1 to visits."""
    first, count = forest.nodes[slot, node].first, forest.nodes[slot, node].count
    visited, likely, weighted = 0.0, 0.0, 0.0
    for edge in range(first, first + count):
        visits, value_sum = _finished(forest, slot, edge, params)
        if visits > 0.0:
            visited += visits
            likely += forest.edges[slot, edge].prior
            weighted += forest.edges[slot, edge].prior * value_sum / visits
    own = np.float64(forest.nodes[slot, node].value)
    return (own + visited * weighted / max(likely, _LEAST)) / (visited + 1.0)


@njit(cache=True, nogil=True)
def completed_values(forest: Any, slot: Any, node: Any, params: Any, out: Any) -> None:
    """Write sigma(completed Q) of a node's moves into `out` (float64[M]).

    sigma(Q) = (Q - min Q) * (maxvisit_init + max N) * value_scale / span, where span is max Q - min Q as in mctx, or 2, the
    range of values, without `value_rescale`. Unvisited moves have Q = v_mix.
    """
    first, count = forest.nodes[slot, node].first, np.int64(forest.nodes[slot, node].count)
    assert count <= len(out)
    mixed = _mixed_value(forest, slot, node, params)
    least, most, busiest = np.inf, -np.inf, 0.0
    for index in range(count):
        visits, value_sum = _finished(forest, slot, first + index, params)
        out[index] = value_sum / visits if visits > 0.0 else mixed
        proof = forest.edges[slot, first + index].proof
        if -1 <= proof <= 1:
            out[index] = np.float64(proof)
        if node == 0:
            out[index] += forest.moves[slot, index].bias
        least, most, busiest = min(least, out[index]), max(most, out[index]), max(busiest, visits)
    span = max(most - least, 1e-8) if params.value_rescale else 2.0
    scale = (params.maxvisit_init + busiest) * params.value_scale / span
    for index in range(count):
        out[index] = (out[index] - least) * scale


@njit(cache=True, nogil=True)
def improved_policy(forest: Any, slot: Any, node: Any, params: Any, out: Any) -> None:
    """Write softmax(logits + sigma(completed Q)) of a node's moves into `out` (float64[M])."""
    first, count = forest.nodes[slot, node].first, np.int64(forest.nodes[slot, node].count)
    completed_values(forest, slot, node, params, out)
    most, total = -np.inf, 0.0
    for index in range(count):
        out[index] += log(max(np.float64(forest.edges[slot, first + index].prior), _LEAST))
        most = max(most, out[index])
    for index in range(count):
        out[index] = exp(out[index] - most)
        total += out[index]
    for index in range(count):
        out[index] /= total


@njit(cache=True, nogil=True)
def interior_edge(forest: Any, slot: Any, node: Any, params: Any) -> Any:
    """Return the edge whose share of visits lags most behind the improved policy, int64."""
    policy = np.empty(MAX_MOVES, dtype=np.float64)
    improved_policy(forest, slot, node, params, policy)
    first, count = np.int64(forest.nodes[slot, node].first), np.int64(forest.nodes[slot, node].count)
    child_visits = np.float64(forest.nodes[slot, node].visits - forest.nodes[slot, node].ended)
    best, choice = -np.inf, first
    for index in range(count):
        if forest.edges[slot, first + index].proof == LOST:
            continue
        score = policy[index] - np.float64(forest.edges[slot, first + index].visits) / (1.0 + child_visits)
        if score > best:
            best, choice = score, first + index
    return choice


@njit(cache=True, nogil=True)
def root_edge(forest: Any, slot: Any, simulation: Any, params: Any) -> Any:
    """Return the root's edge for a simulation of this run, int64; past the plan's end, the halving's winner.

    Among the moves visited as often as the plan says, the one with the largest noise + logit + sigma(completed Q). A proof
    can leave the plan without such a move: then the least visited of those that are not lost.
    """
    values = np.empty(MAX_MOVES, dtype=np.float64)
    completed_values(forest, slot, 0, params, values)
    first, count = np.int64(forest.nodes[slot, 0].first), np.int64(forest.nodes[slot, 0].count)
    most, least = np.int64(-1), np.int64(2**31)
    for index in range(count):
        if forest.edges[slot, first + index].proof != LOST:
            visits = np.int64(forest.edges[slot, first + index].visits - forest.moves[slot, index].visits_before)
            most, least = max(most, visits), min(least, visits)
    wanted = most
    if simulation < forest.schedule.shape[1]:
        wanted = np.int64(forest.schedule[slot, simulation])
    for attempt in (wanted, least):
        best, choice = -np.inf, np.int64(-1)
        for index in range(count):
            edge = first + index
            visits = np.int64(forest.edges[slot, edge].visits - forest.moves[slot, index].visits_before)
            if visits != attempt or forest.edges[slot, edge].proof == LOST:
                continue
            prior = max(np.float64(forest.edges[slot, edge].prior), _LEAST)
            score = forest.moves[slot, index].noise + log(prior) + values[index]
            if score > best:
                best, choice = score, edge
        if choice >= 0:
            return choice
    return first
