"""Optional search heuristics, all off by default: move filters and simulation budgets.

    count_selectable      top-k, tail filter, progressive widening: number of selectable moves
    is_decided            early stop, dominance: whether the search of a root can end
    allot_simulations     budget by the number of moves and the phase of the game
    penalize_repetitions  penalty for root moves that repeat a position

Each function reads its options once per node, root or round, never once per move. Options are
branches at run time: constants would require compiling a kernel for each combination.
"""

from math import ceil
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from engine.board.bitboard import U, popcount
from engine.board.movegen import legal_planes, position_key
from engine.board.position import KING
from engine.search.chess_rules import count_in_history, play
from engine.search.config import SearchParams
from engine.search.tree import Forest, Int

TYPICAL_MOVES, MIN_FACTOR, MAX_FACTOR = 30.0, 0.25, 2.0
"""Number of legal moves that leaves the budget unchanged, and bounds of the budget's factor."""


@njit(cache=True, nogil=True)
def count_selectable(forest: Forest, slot: Int, index: Int, params: SearchParams) -> Any:
    """Return the number of a node's moves that can be selected now, likeliest first, int64."""
    node = forest.nodes[slot, index]
    count = kept = np.int64(node.count)
    if params.top_k > 0:
        kept = min(kept, np.int64(params.top_k))
    if params.tail_mass > 0.0:
        before_tail, tail = count, 0.0
        while before_tail > 1:
            tail += forest.edges[slot, node.first + before_tail - 1].prior
            if tail > params.tail_mass:
                break
            before_tail -= 1
        kept = min(kept, before_tail)
    if params.widening_factor > 0.0:
        wide = np.int64(ceil(params.widening_factor * np.float64(node.visits) ** 0.5))
        kept = min(kept, max(wide, np.int64(1)))
    return kept


@njit(cache=True, nogil=True)
def is_decided(forest: Forest, slot: Int, wanted: Int, done: Int, params: SearchParams) -> Any:
    """Return whether the search can stop: no other move can, or is likely to, get more visits."""
    if params.gumbel or not (params.early_stop or params.dominance > 0.0):
        return False
    root = forest.nodes[slot, 0]
    first = second = total = np.int64(0)
    for edge in range(root.first, root.first + root.count):
        visits = np.int64(forest.edges[slot, edge].visits)
        total += visits
        if visits > first:
            first, second = visits, first
        elif visits > second:
            second = visits
    if params.early_stop and first - second > wanted - done:
        return True
    return (
        params.dominance > 0.0
        and 2 * done >= wanted
        and np.float64(first) >= params.dominance * np.float64(total)
    )


@njit(cache=True, nogil=True)
def allot_simulations(forest: Forest, slot: Int, simulations: Int, params: SearchParams) -> Any:
    """Scale a root's number of simulations, int64, to at least 1; 0 stays 0."""
    if simulations < 1:
        return np.int64(0)
    factor = 1.0
    if params.branching_exponent > 0.0:
        moves = np.float64(forest.nodes[slot, 0].count)
        by_moves = (moves / TYPICAL_MOVES) ** params.branching_exponent
        factor *= min(max(by_moves, MIN_FACTOR), MAX_FACTOR)
    if params.endgame_factor < 1.0:
        pieces = U(0)
        for word in range(KING):
            pieces += popcount(forest.roots[slot, word])
        share = min(np.float64(pieces) / 30.0, 1.0)  # a game begins with 30 pieces besides kings
        factor *= params.endgame_factor + (1.0 - params.endgame_factor) * share
    return max(np.int64(np.float64(simulations) * factor), np.int64(1))


@njit(cache=True, nogil=True)
def penalize_repetitions(
    forest: Forest, slot: Int, planes: NDArray[np.uint64], penalty: Any
) -> None:
    """Set the bias of root moves: -penalty if the move repeats a position of the game, else 0."""
    root, position = forest.nodes[slot, 0], np.empty_like(forest.roots[slot])
    for edge in range(root.first, root.first + root.count):
        move = forest.edges[slot, edge]
        position[:] = forest.roots[slot]
        play(position, np.int64(move.label), np.int64(move.promotion))
        legal_planes(position, planes)
        repeats = count_in_history(forest, slot, position_key(position, planes)) > 0
        move.bias = -penalty if repeats else 0.0
