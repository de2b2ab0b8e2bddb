"""The trees of many games side by side, in flat arrays: a slot a game, its nodes and edges in rows of their own.

One array holds all nodes and one all edges, as records: a walk reads several fields of one node at a time, and finds them in
one cache line. (An array a field was tried first and took twice the time; docs/log.md.)

A node is a position, seen by its mover; node 0 of a slot is the root. Its edges are its legal moves, likeliest first, a
promotion as four. Positions are not stored: a walk down plays the moves again from the root's. Nothing is shared between
slots, so a slot's tree does not depend on its neighbours.

A simulation that ends at a node (because it was new, or the game is over there) is counted in `ended`; so
    visits[node] = ended[node] + sum of visits over its edges,   and visits[edge] = visits[child] where there is a child,
unless the tree was full when the move was first visited: those simulations are the edge's alone.

A walk counts in `visits` of nodes and edges as soon as it has passed, so that those beside it go elsewhere, and in `value_sum`
when its value comes back; until then the nodes that it has passed have it in `waiting`. What a position or a move is worth
is the mean of the finished ones, visits - waiting of a node, or `in_flight` less of a move (as lc0's N and NInFlight).

Verdicts are proofs: WON, DRAWN, LOST for the side named, UNKNOWN otherwise. Values are expected score, win minus loss, in
[-1, 1]; draws are probabilities.

Axes: G slots, C nodes and E edges of a slot, H positions of the history, M root moves, S simulations, W words of a position.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from engine.board.position import MAX_MOVES, WORDS

WON, DRAWN, LOST, UNKNOWN = 1, 0, -1, 2
NEW, WAITING = -1, -2
"""In `count`: a node without edges yet; one whose evaluation is under way."""
NO_NODE = -1
"""In `child`: a move that leads to no node yet."""
TWOFOLD = 5
"""In `ending`, beside engine.board.rules' endings: a position of this walk again. Counted as a draw, never as a proof."""

HISTORY = 128
"""Positions before the root that are kept: more than fifty moves' worth."""
MAX_DEPTH = 512
"""Plies of one walk at most."""
EDGES_A_NODE = 40
"""Edges that room is made for, a node: real middlegames have 30 to 38."""


def _records(fields: str) -> np.dtype[np.void]:
    """Make the dtype of a record from "type name, type name"."""
    return np.dtype([(name, kind) for kind, name in (field.split() for field in fields.split(","))], align=True)


SLOT = _records("i4 history_length, i4 nodes, i4 edges, i4 deepest, i8 refused, i8 plies, i8 walks")
"""A game: earlier positions, nodes and edges in use; since the last move the longest walk, all walks' plies and their number;
since the game began the positions that found no room."""

NODE = _records(
    "f8 value_sum, f8 draw_sum, u8 key, i4 first, i4 count, i4 visits, i4 ended, i4 waiting, f4 visited_policy, f4 value,"
    "i2 distance, i1 proof, i1 ending"
)
"""A position: sums of values and of draw probabilities, engine.board.position.key, first edge, number of edges (or NEW,
WAITING), simulations that came here, those that went no further, and those that went on and wait for their value, sum
of the priors of moves with a finished visit, the evaluator's own word, plies to a proven end, proof, how the game ends
here (engine.board.params, or TWOFOLD)."""

EDGE = _records("f8 value_sum, f8 draw_sum, f4 prior, i4 child, i4 visits, u2 label, u1 promotion, i1 proof")
"""A move: sums of values and of draw probabilities as the node's mover sees them, prior, node it leads to (or NO_NODE),
simulations, label, promotion, proof."""

MOVE = _records("f4 bias, f4 noise, i4 visits_before")
"""A root move besides: added to its value; its Gumbel number; visits when this run began."""


class Forest(NamedTuple):
    """All trees."""

    slots: NDArray[np.void]  # [G] SLOT
    nodes: NDArray[np.void]  # [G, C] NODE
    edges: NDArray[np.void]  # [G, E] EDGE
    moves: NDArray[np.void]  # [G, M] MOVE
    roots: NDArray[np.uint64]  # [G, W] the roots' positions
    history: NDArray[np.uint64]  # [G, H] keys of the game's earlier positions that may come again
    rng: NDArray[np.uint64]  # [G, 1] the slot's random numbers
    schedule: NDArray[np.int32]  # [G, S] visits of the moves considered, by simulation (Sequential Halving)


def empty_forest(games: int, capacity: int, schedule: int) -> Forest:
    """Make room for `games` trees of `capacity` nodes; `schedule` simulations of Sequential Halving (0: none)."""
    return Forest(
        slots=np.zeros(games, dtype=SLOT),
        nodes=np.zeros((games, capacity), dtype=NODE),
        edges=np.zeros((games, capacity * EDGES_A_NODE + MAX_MOVES), dtype=EDGE),
        moves=np.zeros((games, MAX_MOVES), dtype=MOVE),
        roots=np.zeros((games, WORDS), dtype=np.uint64),
        history=np.zeros((games, HISTORY), dtype=np.uint64),
        rng=np.zeros((games, 1), dtype=np.uint64),
        schedule=np.zeros((games, schedule), dtype=np.int32),
    )


def bytes_of(capacity: int) -> int:
    """Return the memory of one tree of `capacity` nodes, bytes."""
    return capacity * NODE.itemsize + (capacity * EDGES_A_NODE + MAX_MOVES) * EDGE.itemsize


@njit(cache=True, nogil=True)
def in_flight(forest: Any, slot: Any, edge: Any) -> Any:
    """Return how many of a move's visits wait for their value, int64; 0 for a move without a node, of which it is unknown."""
    child = forest.edges[slot, edge].child
    if child < 0:
        return np.int64(0)
    return np.int64(forest.nodes[slot, child].waiting) + np.int64(forest.nodes[slot, child].count == WAITING)
