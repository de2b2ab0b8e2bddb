"""The root: expand it, start a run, choose a move, advance to the next position.

Axes: G slots, N slots of this run, M root moves.
"""

from math import log
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from engine.board.bitboard import U
from engine.board.movegen import MOVE_PLANES, MOVE_TYPES, has_no_moves, legal_key, legal_planes
from engine.board.position import COUNTERS, HALFMOVE_MASK, MAX_MOVES
from engine.board.rng import dirichlet, uniform
from engine.board.rules import MATE, STALEMATE
from engine.search.budget import allot_simulations, penalize_repetitions
from engine.search.chess_rules import mark_mates_in_one, play
from engine.search.config import SearchParams
from engine.search.gumbel import begin_halving, halving_edge, improved_policy
from engine.search.puct import EXPANDED, Round, expand
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
    plies_to_end,
    reset_tree,
    set_ending,
)


@njit(cache=True, nogil=True)
def expand_roots(forest: Forest, slots: Any, batch: Round, blank: Any, allowed: Any) -> Any:
    """Add the roots that need an evaluation to `batch`; return their number.

    `allowed` int64[M, 2] restricts the moves to these (label, promotion); empty allows all. `blank`
    is zeros.
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
    """Write a new root's planes; return whether it has legal moves and no mate in one."""
    root = forest.nodes[slot, 0]
    checkers = legal_planes(forest.roots[slot], planes)
    root.key = legal_key(forest.roots[slot], planes)
    if has_no_moves(planes):  # a root drawn by another rule is still searched
        set_ending(root, MATE if checkers > 0 else STALEMATE)
        root.count = 0
        return False
    if expand(forest, slot, np.int64(0), planes, blank, 1.0) == EXPANDED:
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
    """Keep only a root's `allowed` moves (int64[M, 2]; empty for all); rescale their priors."""
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
        move = forest.edges[slot, edge]
        move.prior = move.prior / total if total > 0.0 else 1.0 / kept


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
    """Prepare expanded roots; set `wanted` (int64[N]) to the number of simulations of each.

    `noise` bool[N] selects the roots that get noise. `fresh` bool[G] marks the roots not searched
    yet.
    """
    planes = np.empty(MOVE_PLANES + MOVE_TYPES, dtype=np.uint64)
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
        wanted[index] = allot_simulations(forest, slot, wanted[index], params)
        if params.repetition_penalty > 0.0:
            penalize_repetitions(forest, slot, planes, params.repetition_penalty)
        if params.gumbel:
            begin_halving(forest, slot, noise[index], wanted[index], params)


@njit(cache=True, nogil=True)
def _add_dirichlet(forest: Forest, slot: Int, params: SearchParams) -> None:
    """Mix Dirichlet noise into the root's priors, then sort its moves by prior."""
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
def choose_all(
    forest: Forest, slots: Any, temperatures: Any, params: SearchParams, out: Any
) -> None:
    """Write each slot's chosen move to `out` (int64[N, 2]: label, promotion; -1, 0 for none)."""
    for index in range(len(slots)):
        edge = choose_edge(forest, slots[index], temperatures[index], params)
        out[index, 0], out[index, 1] = -1, 0
        if edge >= 0:
            out[index, 0] = forest.edges[slots[index], edge].label
            out[index, 1] = forest.edges[slots[index], edge].promotion


@njit(cache=True, nogil=True)
def choose_edge(forest: Forest, slot: Int, temperature: float, params: SearchParams) -> Any:
    """Choose a root edge by visits, or (gumbel) the improved policy; NO_NODE if there is none."""
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
        improved_policy(forest, slot, np.int64(0), params, weights)
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
    """Return the edge of the fastest win, or of the slowest loss if the root is lost, int64."""
    root, best, choice = forest.nodes[slot, 0], np.int64(0), np.int64(NO_NODE)
    for edge in range(root.first, root.first + root.count):
        if forest.edges[slot, edge].proof == root.proof:
            plies = plies_to_end(forest, slot, edge)
            if choice < 0 or (plies < best if root.proof == WON else plies > best):
                best, choice = plies, np.int64(edge)
    return choice


@njit(cache=True, nogil=True)
def _draw(rng: Any, weights: NDArray[np.float64], temperature: float) -> Any:
    """Sample an index in proportion to weight ** (1 / temperature); overwrites the weights."""
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
    """Return the index of the largest weight, int64; the value, then the prior breaks ties."""
    root, choice, best, best_mean = forest.nodes[slot, 0], np.int64(0), -np.inf, -np.inf
    for index in range(root.count):
        move = forest.edges[slot, root.first + index]
        mean = move.value_sum / np.float64(move.visits) if move.visits > 0 else -1.0
        if weights[index] > best or (weights[index] == best and mean > best_mean):
            best, best_mean, choice = weights[index], mean, np.int64(index)
    return choice


@njit(cache=True, nogil=True)
def advance(forest: Forest, slot: Int, label: Int, promotion: Int, spare: Any) -> Any:
    """Play a legal move at the root and keep its subtree; return whether there was one."""
    planes = np.empty(MOVE_PLANES + MOVE_TYPES, dtype=np.uint64)
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
        move = forest.edges[slot, edge]
        if move.label == label and move.promotion == promotion:
            child = np.int64(move.child)
    play(forest.roots[slot], label, promotion)
    if forest.roots[slot, COUNTERS] & HALFMOVE_MASK == U(0):
        game.history_length = 0
    if child < 0 or forest.nodes[slot, child].count < 1:
        reset_tree(forest, slot)
        return False
    game.deepest = 0
    keep_subtree(forest, slot, child, spare)
    return True
