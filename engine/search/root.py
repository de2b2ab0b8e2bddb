"""The root: priors, noise, the plan of Sequential Halving, the choice of a move, the step to the
next position.

Axes: G slots, N slots of this run, M root moves.
"""

from math import log
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from engine.board.bitboard import U, popcount
from engine.board.movegen import MOVE_PLANES, TYPES, legal_key, legal_planes, no_moves
from engine.board.position import COUNTERS, HALFMOVE_MASK, KING, MAX_MOVES
from engine.board.rng import dirichlet, gumbel, uniform
from engine.board.rules import MATE, STALEMATE
from engine.search.chess_rules import mark_mates_in_one, play, times_in_history
from engine.search.config import SearchParams
from engine.search.select import halving_edge, improved_policy, plan_halving
from engine.search.simulate import EXPANDED, Round, expand, plies_to_end
from engine.search.tree import (
    HISTORY,
    LOST,
    NO_NODE,
    UNKNOWN,
    WAITING,
    WON,
    Forest,
    Int,
    keep_subtree,
    reset_tree,
    set_ending,
)


@njit(cache=True, nogil=True)
def expand_roots(forest: Forest, slots: Any, batch: Round, blank: Any, allowed: Any) -> Any:
    """Check the slots' roots; those that need an evaluation become rows of `batch`. Return their
    number.

    `allowed` int64[N, 2] are the (label, promotion) that new roots will be restricted to, empty for
    all; `blank` float32[A] is zeros.
    """
    rows = 0
    for slot in slots:
        root = forest.nodes[slot, 0]
        if root.count >= 0:
            if root.count > 0 and root.proof == UNKNOWN:
                mark_mates_in_one(forest, slot, batch.planes[rows])
        elif root.proof == UNKNOWN and _needs_evaluation(
            forest, slot, batch.planes[rows], blank, allowed
        ):
            batch.slots[rows], batch.leaves[rows], batch.depths[rows] = slot, 0, 0
            rows += 1
    return rows


@njit(cache=True, nogil=True)
def _needs_evaluation(forest: Forest, slot: Int, planes: Any, blank: Any, allowed: Any) -> Any:
    """Write a new root's planes; return whether it needs an evaluation: not if it has no move or a
    mate in one.
    """
    root = forest.nodes[slot, 0]
    checkers = legal_planes(forest.roots[slot], planes)
    root.key = legal_key(forest.roots[slot], planes)
    if no_moves(planes):  # drawn by another rule, a root is searched all the same
        set_ending(root, MATE if checkers > 0 else STALEMATE)
        root.count = 0
        return False
    if expand(forest, slot, 0, planes, blank, 1.0) == EXPANDED:
        restrict_root(forest, slot, allowed)
        if mark_mates_in_one(forest, slot, np.empty_like(planes)):
            root.visits = root.ended = 1
            root.value_sum = root.value = 1.0
            return False
    forest.slots[slot].edges = 0
    root.count = WAITING
    return True


@njit(cache=True, nogil=True)
def restrict_root(forest: Forest, slot: Int, allowed: Any) -> None:
    """Keep only the `allowed` moves of an expanded root and rescale their priors; int64[N, 2], all
    if it is empty.
    """
    root, kept, total = forest.nodes[slot, 0], np.int64(0), 0.0
    if len(allowed) == 0 or root.count < 1:
        return
    for edge in range(root.first, root.first + root.count):
        move = forest.edges[slot, edge]
        for index in range(len(allowed)):
            if allowed[index, 0] == move.label and allowed[index, 1] == move.promotion:
                forest.edges[slot, root.first + kept] = forest.edges[slot, edge]
                total += move.prior
                kept += 1
                break
    root.count = kept
    for edge in range(root.first, root.first + kept):
        forest.edges[slot, edge].prior = (
            forest.edges[slot, edge].prior / total if total > 0.0 else 1.0 / kept
        )


@njit(cache=True, nogil=True)
def begin_run(
    forest: Forest,
    slots: Any,
    wanted: Any,
    noise: Any,
    allowed: Any,
    fresh: Any,
    params: SearchParams,
) -> None:
    """Prepare expanded roots; `wanted` int64[N] is overwritten with the simulations that each root
    gets, 0 for none.

    `noise` bool[N] selects the roots that get noise, `fresh` bool[G] those not searched yet;
    `allowed` as in `expand_roots`.
    """
    for index in range(len(slots)):
        slot = slots[index]
        root = forest.nodes[slot, 0]
        restrict_root(forest, slot, allowed)
        if root.proof != UNKNOWN or root.count < 1:
            wanted[index] = 0
            continue
        if fresh[slot] and noise[index] and not params.gumbel and params.dirichlet_fraction > 0.0:
            _add_dirichlet(forest, slot, params)
        fresh[slot] = False
        wanted[index] = _allotted(forest, slot, wanted[index], params)
        _set_root_moves(forest, slot, noise[index], params)
        if params.gumbel:
            considered = min(np.int64(params.max_considered_actions), np.int64(root.count))
            planned = min(np.int64(forest.schedule.shape[1]), wanted[index])
            plan_halving(considered, planned, forest.schedule[slot])


@njit(cache=True, nogil=True)
def _add_dirichlet(forest: Forest, slot: Int, params: SearchParams) -> None:
    """Mix Dirichlet noise into the root's priors, and sort its moves again."""
    root, fraction = forest.nodes[slot, 0], params.dirichlet_fraction
    moves = forest.edges[slot, root.first : root.first + root.count]
    drawn = np.zeros(len(moves), dtype=np.float64)
    dirichlet(forest.rng[slot], params.dirichlet_alpha, drawn)
    root.visited_policy = 0.0
    for index in range(len(moves)):
        moves[index].prior = (1.0 - fraction) * moves[index].prior + fraction * drawn[index]
        if moves[index].visits > 0:
            root.visited_policy += moves[index].prior
        drawn[index] = -moves[index].prior
    order, before = np.argsort(drawn, kind="mergesort"), moves.copy()  # stable, likeliest first
    for index in range(len(moves)):
        moves[index] = before[order[index]]


@njit(cache=True, nogil=True)
def _allotted(forest: Forest, slot: Int, simulations: Int, params: SearchParams) -> Any:
    """Return the simulations that a root gets, int64: 0 for 0, otherwise at least 1."""
    if simulations < 1:
        return np.int64(0)
    factor = 1.0
    if params.branching_exponent > 0.0:
        moves = np.float64(forest.nodes[slot, 0].count)
        factor *= min(max((moves / 30.0) ** params.branching_exponent, 0.25), 2.0)
    if params.endgame_factor < 1.0:
        pieces = U(0)
        for word in range(KING):
            pieces += popcount(forest.roots[slot, word])
        left = min(np.float64(pieces) / 30.0, 1.0)
        factor *= params.endgame_factor + (1.0 - params.endgame_factor) * left
    return max(np.int64(np.float64(simulations) * factor), np.int64(1))


@njit(cache=True, nogil=True)
def _set_root_moves(forest: Forest, slot: Int, noise: bool, params: SearchParams) -> None:
    """Set the MOVE records of a run: visits so far, Gumbel noise, repetition penalty."""
    root = forest.nodes[slot, 0]
    position, planes = (
        np.empty_like(forest.roots[slot]),
        np.empty(MOVE_PLANES + TYPES, dtype=np.uint64),
    )
    scale = params.gumbel_scale if noise else 0.0
    assert root.count <= forest.moves.shape[1]
    for index in range(root.count):
        edge, move = forest.edges[slot, root.first + index], forest.moves[slot, index]
        move.visits_before = edge.visits
        move.bias = 0.0
        if params.gumbel:
            move.noise = scale * gumbel(forest.rng[slot])
        if params.repetition_penalty > 0.0:
            position[:] = forest.roots[slot]
            play(position, edge.label, edge.promotion)
            legal_planes(position, planes)
            if times_in_history(forest, slot, legal_key(position, planes)) > 0:
                move.bias = -params.repetition_penalty


@njit(cache=True, nogil=True)
def choose_all(
    forest: Forest, slots: Any, temperatures: Any, params: SearchParams, out: Any
) -> None:
    """Choose a move for each slot into `out` (int64[N, 2]: label, promotion); (-1, 0) where there
    is none.
    """
    for index in range(len(slots)):
        edge = choose_edge(forest, slots[index], temperatures[index], params)
        out[index, 0], out[index, 1] = -1, 0
        if edge >= 0:
            out[index, 0] = forest.edges[slots[index], edge].label
            out[index, 1] = forest.edges[slots[index], edge].promotion


@njit(cache=True, nogil=True)
def choose_edge(forest: Forest, slot: Int, temperature: float, params: SearchParams) -> Any:
    """Choose a root move by its visits or (gumbel) the improved policy, int64 edge; NO_NODE where
    there is none.
    """
    root = forest.nodes[slot, 0]
    first = np.int64(root.first)
    if root.count < 1:
        return np.int64(NO_NODE)
    if root.proof == WON or root.proof == LOST:
        return _proven_edge(forest, slot)
    if params.gumbel and temperature <= 0.0:
        return halving_edge(forest, slot, np.int64(forest.schedule.shape[1]), params)
    weights = np.empty(MAX_MOVES, dtype=np.float64)
    if params.gumbel:
        improved_policy(forest, slot, 0, params, weights)
    for index in range(root.count):
        move = forest.edges[slot, first + index]
        if not params.gumbel:
            weights[index] = np.float64(move.visits)
        if move.proof == LOST:
            weights[index] = -np.inf
    if temperature > 0.0:
        index = _draw(forest.rng[slot], weights[: root.count].copy(), temperature)
        if index >= 0:
            return first + index
    return first + _largest(forest, slot, weights)


@njit(cache=True, nogil=True)
def _proven_edge(forest: Forest, slot: Int) -> Any:
    """Return the quickest won move of a won root, the slowest lost one of a lost root, int64
    edge.
    """
    root, best, choice = forest.nodes[slot, 0], np.int64(0), np.int64(NO_NODE)
    for edge in range(root.first, root.first + root.count):
        if forest.edges[slot, edge].proof == root.proof:
            plies = plies_to_end(forest, slot, edge)
            if choice < 0 or (plies < best if root.proof == WON else plies > best):
                best, choice = plies, np.int64(edge)
    return choice


@njit(cache=True, nogil=True)
def _draw(rng: Any, weights: NDArray[np.float64], temperature: float) -> Any:
    """Draw an index with probability proportional to weight ** (1 / temperature), int64; the
    weights are overwritten.
    """
    most, total = max(weights.max(), 0.0), 0.0
    for index in range(len(weights)):
        if weights[index] > 0.0:
            weights[index] = np.exp(log(weights[index] / most) / temperature)
            total += weights[index]
        else:
            weights[index] = 0.0
    left, choice = uniform(rng) * total, np.int64(NO_NODE)
    for index in range(len(weights)):
        if weights[index] > 0.0:
            choice = np.int64(index)
            left -= weights[index]
            if left < 0.0:
                break
    return choice


@njit(cache=True, nogil=True)
def _largest(forest: Forest, slot: Int, weights: NDArray[np.float64]) -> Any:
    """Return the index of the largest weight, int64; among equals the better value, then the
    likelier move.
    """
    root, choice, best, best_mean = forest.nodes[slot, 0], np.int64(0), -np.inf, -np.inf
    for index in range(root.count):
        move = forest.edges[slot, root.first + index]
        mean = move.value_sum / np.float64(move.visits) if move.visits > 0 else -1.0
        if weights[index] > best or (weights[index] == best and mean > best_mean):
            best, best_mean, choice = weights[index], mean, np.int64(index)
    return choice


@njit(cache=True, nogil=True)
def advance(forest: Forest, slot: Int, label: Int, promotion: Int, spare: Any) -> Any:
    """Play a legal move at the root and keep its subtree; return whether there was one.

    `spare` = (int32[C], EDGE[E]) is scratch.
    """
    planes = np.empty(MOVE_PLANES + TYPES, dtype=np.uint64)
    root, game = forest.nodes[slot, 0], forest.slots[slot]
    legal_planes(forest.roots[slot], planes)
    root.key = legal_key(forest.roots[slot], planes)
    if game.history_length == HISTORY:  # drop the oldest
        for index in range(HISTORY - 1):
            forest.history[slot, index] = forest.history[slot, index + 1]
        game.history_length -= 1
    forest.history[slot, game.history_length] = root.key
    game.history_length += 1
    child = np.int64(NO_NODE)
    for edge in range(root.first, root.first + max(np.int64(root.count), np.int64(0))):
        if (
            forest.edges[slot, edge].label == label
            and forest.edges[slot, edge].promotion == promotion
        ):
            child = np.int64(forest.edges[slot, edge].child)
    play(forest.roots[slot], label, promotion)
    if forest.roots[slot, COUNTERS] & HALFMOVE_MASK == U(0):
        game.history_length = 0
    if child < 0 or forest.nodes[slot, child].count < 1:
        reset_tree(forest, slot)
        return False
    game.deepest = 0
    keep_subtree(forest, slot, child, spare)
    return True
