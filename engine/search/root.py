"""Expand roots, begin a run, choose moves, and advance a root to the next position.

Axes: G slots, N slots of this run, M root moves.
"""

from math import log
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from engine.board.bitboard import U
from engine.board.movegen import (
    MOVE_PLANES,
    MOVE_TYPES,
    has_no_legal_move,
    legal_planes,
    position_key,
)
from engine.board.position import COUNTERS, HALFMOVE_MASK, MAX_MOVES
from engine.board.rng import dirichlet, uniform
from engine.board.rules import MATE, STALEMATE
from engine.search.budget import allot_simulations, penalize_repetitions
from engine.search.chess_rules import mark_mates_in_one, play
from engine.search.config import SearchParams
from engine.search.gumbel import begin_halving, select_halving_edge, write_improved_policy
from engine.search.puct import EXPANDED, Round, expand
from engine.search.tree import (
    EVALUATING,
    LOST,
    MAX_HISTORY,
    NO_NODE,
    UNKNOWN,
    WON,
    Forest,
    Int,
    keep_subtree,
    plies_to_end,
    reset_tree,
    set_ending,
)


@njit(cache=True, nogil=True)
def expand_roots(forest: Forest, slots: Any, batch: Round, zero_logits: Any, allowed: Any) -> Any:
    """Add the roots that need an evaluation to `batch`; return their number.

    `allowed` (int64[M, 2]) has the (label, promotion) of the allowed moves; if empty, all are.
    """
    rows = 0
    for slot in slots:
        root = forest.nodes[slot, 0]
        if root.count >= 0:
            if root.count > 0 and root.proof == UNKNOWN:
                mark_mates_in_one(forest, slot, batch.planes[rows])
        elif root.proof == UNKNOWN and _needs_evaluation(
            forest, slot, batch.planes[rows], zero_logits, allowed
        ):
            batch.slots[rows], batch.leaves[rows], batch.depths[rows] = slot, 0, 0
            rows += 1
    return rows


@njit(cache=True, nogil=True)
def _needs_evaluation(
    forest: Forest, slot: Int, planes: Any, zero_logits: Any, allowed: Any
) -> Any:
    """Write the planes of a new root; return whether it has legal moves but no mate in one."""
    root = forest.nodes[slot, 0]
    checkers = legal_planes(forest.roots[slot], planes)
    root.key = position_key(forest.roots[slot], planes)
    if has_no_legal_move(planes):  # roots that are drawn by other rules are searched
        set_ending(root, MATE if checkers > 0 else STALEMATE)
        root.count = 0
        return False
    if expand(forest, slot, np.int64(0), planes, zero_logits, 1.0) == EXPANDED:
        restrict_root(forest, slot, allowed)
        if mark_mates_in_one(forest, slot, np.empty_like(planes)):
            root.visits = root.ended = 1
            root.value_sum = root.value = 1.0
            return False
    forest.slots[slot].edges = 0
    root.count = EVALUATING
    return True


@njit(cache=True, nogil=True)
def restrict_root(forest: Forest, slot: Int, allowed: Any) -> None:
    """Keep only a root's `allowed` moves (int64[M, 2], or empty for all); rescale their priors."""
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
    unsearched: Any,
    params: SearchParams,
) -> None:
    """Prepare expanded roots; scale `wanted` (int64[N]), the number of simulations of each.

    `noise` (bool[N]) selects the roots that get noise. `unsearched` (bool[G]) marks the slots whose
    roots have not been searched yet.
    """
    planes = np.empty(MOVE_PLANES + MOVE_TYPES, dtype=np.uint64)
    adds_dirichlet = not params.gumbel and params.dirichlet_fraction > 0.0
    for index in range(len(slots)):
        slot = slots[index]
        root = forest.nodes[slot, 0]
        restrict_root(forest, slot, allowed)
        if root.proof != UNKNOWN or root.count < 1:
            wanted[index] = 0
            continue
        if adds_dirichlet and unsearched[slot] and noise[index]:
            _add_dirichlet(forest, slot, params)
        unsearched[slot] = False
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
    noise = np.zeros(len(moves), dtype=np.float64)
    dirichlet(forest.rng[slot], params.dirichlet_alpha, noise)
    root.visited_policy = 0.0
    for index in range(len(moves)):
        moves[index].prior = (1.0 - fraction) * moves[index].prior + fraction * noise[index]
        if moves[index].visits > 0:
            root.visited_policy += moves[index].prior
        noise[index] = -moves[index].prior
    order, before = np.argsort(noise, kind="mergesort"), moves.copy()  # stable; likeliest first
    for index in range(len(moves)):
        moves[index] = before[order[index]]


@njit(cache=True, nogil=True)
def choose_moves(
    forest: Forest, slots: Any, temperatures: Any, params: SearchParams, out: Any
) -> None:
    """Write the (label, promotion) chosen in each slot to `out`, int64[N, 2]; -1, 0 for none."""
    for index in range(len(slots)):
        edge = choose_edge(forest, slots[index], temperatures[index], params)
        out[index, 0], out[index, 1] = -1, 0
        if edge >= 0:
            out[index, 0] = forest.edges[slots[index], edge].label
            out[index, 1] = forest.edges[slots[index], edge].promotion


@njit(cache=True, nogil=True)
def choose_edge(forest: Forest, slot: Int, temperature: float, params: SearchParams) -> Any:
    """Return the chosen root edge, or NO_NODE if there is none; `Search.choose` has the rules."""
    root = forest.nodes[slot, 0]
    first = np.int64(root.first)
    if root.count < 1:
        return np.int64(NO_NODE)
    if root.proof == WON or root.proof == LOST:
        return _find_proven_edge(forest, slot)
    if params.gumbel and temperature <= 0.0:
        return select_halving_edge(forest, slot, np.int64(forest.schedule.shape[1]), params)
    weights = np.empty(MAX_MOVES, dtype=np.float64)
    if params.gumbel:
        write_improved_policy(forest, slot, np.int64(0), params, weights)
    for index in range(root.count):
        move = forest.edges[slot, first + index]
        if not params.gumbel:
            weights[index] = np.float64(move.visits)
        if move.proof == LOST:
            weights[index] = -np.inf
    if temperature > 0.0:
        index = _sample_index(forest.rng[slot], weights[: root.count].copy(), temperature)
        if index >= 0:
            return first + index
    return first + _find_largest(forest, slot, weights)


@njit(cache=True, nogil=True)
def _find_proven_edge(forest: Forest, slot: Int) -> Any:
    """Return the edge of the fastest win, or of the slowest loss if the root is lost, int64."""
    root, best, choice = forest.nodes[slot, 0], np.int64(0), np.int64(NO_NODE)
    for edge in range(root.first, root.first + root.count):
        if forest.edges[slot, edge].proof == root.proof:
            plies = plies_to_end(forest, slot, edge)
            if choice < 0 or (plies < best if root.proof == WON else plies > best):
                best, choice = plies, np.int64(edge)
    return choice


@njit(cache=True, nogil=True)
def _sample_index(rng: Any, weights: NDArray[np.float64], temperature: float) -> Any:
    """Sample an index by weight ** (1 / temperature), NO_NODE if all are 0; overwrite `weights`."""
    largest, total = max(weights.max(), 0.0), 0.0
    for index in range(len(weights)):
        if weights[index] > 0.0:
            weights[index] = np.exp(log(weights[index] / largest) / temperature)
            total += weights[index]
        else:
            weights[index] = 0.0
    remaining, choice = uniform(rng) * total, np.int64(NO_NODE)
    for index in range(len(weights)):
        if weights[index] > 0.0:
            choice = np.int64(index)
            remaining -= weights[index]
            if remaining < 0.0:
                break
    return choice


@njit(cache=True, nogil=True)
def _find_largest(forest: Forest, slot: Int, weights: NDArray[np.float64]) -> Any:
    """Return the index of the largest weight, int64; ties are broken by value, then by prior."""
    root, choice, best, best_mean = forest.nodes[slot, 0], np.int64(0), -np.inf, -np.inf
    for index in range(root.count):
        move = forest.edges[slot, root.first + index]
        mean = move.value_sum / np.float64(move.visits) if move.visits > 0 else -1.0
        if weights[index] > best or (weights[index] == best and mean > best_mean):
            best, best_mean, choice = weights[index], mean, np.int64(index)
    return choice


@njit(cache=True, nogil=True)
def advance(forest: Forest, slot: Int, label: Int, promotion: Int, scratch: Any) -> Any:
    """Play a legal move at the root and keep its subtree; return whether there was a subtree."""
    planes = np.empty(MOVE_PLANES + MOVE_TYPES, dtype=np.uint64)
    root, game = forest.nodes[slot, 0], forest.slots[slot]
    legal_planes(forest.roots[slot], planes)
    root.key = position_key(forest.roots[slot], planes)
    if game.history_length == MAX_HISTORY:  # drop the oldest key
        for index in range(MAX_HISTORY - 1):
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
    keep_subtree(forest, slot, child, scratch)
    return True
