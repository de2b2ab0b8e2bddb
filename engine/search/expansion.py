"""Expanding a node: its legal moves become edges, likeliest first, with priors from the evaluator's logits.

Axes: B rows of a batch, P planes, A labels, M moves of a node.
"""

from math import exp, isfinite
from typing import Any

import numpy as np
from numba import njit

from engine.board.bitboard import EMPTY, RANK_8, U, bit, lowest
from engine.board.movegen import MOVE_PLANES, TYPES, count_moves
from engine.board.position import MAX_MOVES, PAWN
from engine.search.tree import NO_NODE, UNKNOWN

_SEVENTH = RANK_8 << U(8)
_QUEEN = 5
_UNDERPROMOTIONS = np.array([0.0, 0.0, 0.0084, 0.0036, 0.0185, 0.9695])
"""Share of a promotion's prior by python-chess piece type: measured on 13,645 promotions of rapid games."""
_LOWEST = -1e30

EXPANDED, NO_ROOM, NOT_FINITE = 0, 1, 2
"""What `expand` returns; a node that was not expanded is as it was."""


@njit(cache=True, nogil=True)
def list_moves(planes: Any, moves: Any) -> Any:
    """List the legal moves of planes (uint64[77]) into new edges (EDGE[M], room for all); return their number, int64."""
    assert count_moves(planes, planes) <= len(moves)
    seventh = planes[PAWN] & _SEVENTH
    count = np.int64(0)
    for kind in range(TYPES):
        sources = planes[MOVE_PLANES + kind]
        while sources != EMPTY:
            source = lowest(sources)
            sources &= sources - U(1)
            promotes = bit(source) & seventh != EMPTY
            for piece in range(4 if promotes else 1):
                move = moves[count]
                move.label = kind * 64 + np.int64(source)
                move.promotion = _QUEEN - piece if promotes else 0
                move.child, move.visits, move.proof = NO_NODE, 0, UNKNOWN
                move.value_sum = move.draw_sum = 0.0
                count += 1
    return count


@njit(cache=True, nogil=True)
def _priors(logits: Any, moves: Any, temperature: Any) -> Any:
    """Set the priors of edges: softmax of their logits (float32[A]), a promotion's divided among its four pieces.

    Return whether they are finite: NaN and infinity are not, and -inf is a prior of 0.
    """
    most = _LOWEST
    for index in range(len(moves)):
        logit = np.float64(logits[moves[index].label])
        if logit > most and isfinite(logit):
            most = logit
    total = 0.0
    for index in range(len(moves)):
        logit = np.float64(logits[moves[index].label])
        weight = exp((logit - most) / temperature)
        if moves[index].promotion > 0:
            weight *= _UNDERPROMOTIONS[moves[index].promotion]
        moves[index].prior = weight
        total += weight
    for index in range(len(moves)):
        moves[index].prior = moves[index].prior / total if total > 0.0 else 1.0 / len(moves)
    return isfinite(total)


@njit(cache=True, nogil=True)
def sort_edges(moves: Any) -> None:
    """Put new edges (EDGE[M]) in order of their priors, likeliest first; equal ones stay in order.

    Insertion: lists are short.
    """
    for index in range(1, len(moves)):
        prior = moves[index].prior
        if prior <= moves[index - 1].prior:
            continue
        label, promotion, place = moves[index].label, moves[index].promotion, index
        while place > 0 and moves[place - 1].prior < prior:
            moves[place].prior = moves[place - 1].prior
            moves[place].label = moves[place - 1].label
            moves[place].promotion = moves[place - 1].promotion
            place -= 1
        moves[place].prior, moves[place].label, moves[place].promotion = prior, label, promotion


@njit(cache=True, nogil=True)
def expand(forest: Any, slot: Any, node: Any, planes: Any, logits: Any, temperature: Any) -> Any:
    """Add the edges of a node, for which there must be room; return EXPANDED, NO_ROOM or NOT_FINITE.

    `planes` uint64[77] and `logits` float32[A] are of the node's position, its mover's view. There is never room for more
    than MAX_MOVES.
    """
    first = np.int64(forest.slots[slot].edges)
    count = count_moves(planes, planes)
    if count > MAX_MOVES or first + count > forest.edges.shape[1]:
        forest.slots[slot].refused += 1
        return NO_ROOM
    last = first + count
    moves = forest.edges[slot, first:last]
    list_moves(planes, moves)
    if not _priors(logits, moves, temperature):
        return NOT_FINITE
    sort_edges(moves)
    forest.slots[slot].edges = last
    forest.nodes[slot, node].first, forest.nodes[slot, node].count = first, count
    return EXPANDED
