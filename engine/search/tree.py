"""The trees of many games as records in flat arrays, with one slot per game.

A node is a position; node 0 of a slot is the root. Its edges are its legal moves, likeliest first;
a promotion is four edges. Positions are not stored: a descent replays the moves from the root.
Slots share nothing, so trees are independent. A record holds all fields of a node, since a descent
reads several of them together: one array per field took twice the time.

A simulation that ends at a node, because it is new or the game is over, counts in `ended`:

    node.visits = node.ended + the sum of visits over its edges
    edge.visits = visits of its child; if the tree is full, there is no child
                  and only the edge counts.

A descent increments `visits` and `in_flight` of its nodes and edges; its value is added to
`value_sum` later. Mean values are over finished visits (visits - in_flight), as in lc0.

Values are win minus loss in [-1, 1], from the view of the side to move at the node.

Axes: G slots, C nodes and E edges of a slot, H positions of the history, M root moves, S
simulations, W words of a position.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from engine.board.position import MAX_MOVES, WORDS
from engine.board.rules import MATE, ONGOING

WON, DRAWN, LOST, UNKNOWN = 1, 0, -1, 2
"""Proven results, from the view of the side to move at the node."""
NEW, WAITING = -1, -2
"""Values of `count`: not expanded yet; evaluation in flight."""
NO_NODE = -1
"""Value of `child` if the move has no node."""
TWOFOLD = 5
"""Value of `ending` besides those of engine.board.rules: the position occurs twice on this path. It
counts as a draw, but is not proven."""

HISTORY = 128
"""Maximum number of stored positions before the root: more than fifty moves of both sides."""
MAX_DEPTH = 512
"""Maximum depth of a descent, plies."""
EDGES_PER_NODE = 40
"""Edges allocated per node: real middlegames have 30 to 38 moves."""

Int = int | np.int64
"""An integer in compiled code."""


def _record(fields: str) -> np.dtype[np.void]:
    """Return the dtype of a record given as "type name, type name"."""
    return np.dtype(
        [(name, kind) for kind, name in (field.split() for field in fields.split(","))], align=True
    )


SLOT = _record("i4 history_length, i4 nodes, i4 edges, i4 deepest")
"""A game: length of its history; nodes and edges in use; maximum depth since the last move."""

NODE = _record(
    "f8 value_sum, f8 square_sum, f8 draw_sum, u8 key, i4 first, i4 count, i4 visits, i4 ended, i4 "
    "in_flight,"
    "f4 visited_policy, f4 value, i2 distance, i1 proof, i1 ending"
)
"""A position: sums of values, of their squares, and of draws; engine.board.position.key; first
edge, number of edges (or NEW, WAITING); simulations: all, those that ended here, those in flight;
sum of the priors of moves with a finished visit; the evaluator's value; plies to a proven end;
proven result; ending of the game (engine.board.rules or TWOFOLD)."""

EDGE = _record(
    "f8 value_sum, f4 prior, f4 bias, i4 child, i4 visits, i4 in_flight, u2 label, u1 promotion,"
    "i1 proof"
)
"""A move, from the view of the side that plays it: sum of values; prior; bias added to its value (0
except for root moves that repeat a position); child (or NO_NODE); simulations: all, those in
flight; label; promotion; proven result."""

MOVE = _record("f4 noise, i4 visits_before")
"""A root move in Sequential Halving: its Gumbel noise; its visits at the start of the run."""


class Forest(NamedTuple):
    """All trees."""

    slots: NDArray[np.void]  # [G] SLOT
    nodes: NDArray[np.void]  # [G, C] NODE
    edges: NDArray[np.void]  # [G, E] EDGE
    moves: NDArray[np.void]  # [G, M] MOVE
    roots: NDArray[np.uint64]  # [G, W] the roots' positions
    history: NDArray[np.uint64]  # [G, H] keys of earlier positions that can recur
    rng: NDArray[np.uint64]  # [G, 1] the slot's random stream
    # [G, S] Sequential Halving: simulation S selects among moves with this visit count
    schedule: NDArray[np.int32]


def empty_forest(games: int, capacity: int, schedule: int) -> Forest:
    """Allocate `games` trees of `capacity` nodes, and Gumbel plans of `schedule` simulations."""
    return Forest(
        slots=np.zeros(games, dtype=SLOT),
        nodes=np.zeros((games, capacity), dtype=NODE),
        edges=np.zeros((games, capacity * EDGES_PER_NODE + MAX_MOVES), dtype=EDGE),
        moves=np.zeros((games, MAX_MOVES), dtype=MOVE),
        roots=np.zeros((games, WORDS), dtype=np.uint64),
        history=np.zeros((games, HISTORY), dtype=np.uint64),
        rng=np.zeros((games, 1), dtype=np.uint64),
        schedule=np.zeros((games, schedule), dtype=np.int32),
    )


def tree_bytes(capacity: int) -> int:
    """Return the size of a tree of `capacity` nodes, in bytes."""
    return capacity * NODE.itemsize + (capacity * EDGES_PER_NODE + MAX_MOVES) * EDGE.itemsize


@njit(cache=True, nogil=True)
def new_node(forest: Forest, slot: Int) -> Any:
    """Return the slot's next free node, cleared, int64; NO_NODE if the tree is full."""
    index = np.int64(forest.slots[slot].nodes)
    if index >= forest.nodes.shape[1]:
        return np.int64(NO_NODE)
    forest.slots[slot].nodes += 1
    node = forest.nodes[slot, index]
    node.count = NEW
    node.visits = node.ended = node.in_flight = node.distance = 0
    node.value_sum = node.square_sum = node.draw_sum = node.visited_policy = node.value = 0.0
    node.proof, node.ending = UNKNOWN, ONGOING
    return index


@njit(cache=True, nogil=True)
def set_ending(node: Any, ending: Int) -> None:
    """Set a node's ending and, if the rules decide the game, its proven result."""
    node.ending = ending
    if ending == MATE:
        node.proof = LOST
    elif ending not in (ONGOING, TWOFOLD):
        node.proof = DRAWN


@njit(cache=True, nogil=True)
def propagate_proof(forest: Forest, slot: Int, index: Int) -> Any:
    """Prove a node from its moves, if possible; return whether it is proven now.

    One winning move proves a win; otherwise all moves must be proven. The distance assumes that the
    winner takes the shortest line and the loser the longest.
    """
    node = forest.nodes[slot, index]
    best, distance, complete = np.int64(LOST), np.int64(-1), True
    for edge in range(node.first, node.first + node.count):
        proof = np.int64(forest.edges[slot, edge].proof)
        if proof == UNKNOWN:
            complete = False
            continue
        plies = plies_to_end(forest, slot, edge)
        if proof > best or distance < 0:
            best, distance = proof, plies
        elif proof == best:
            distance = min(distance, plies) if proof == WON else max(distance, plies)
    if best != WON and not complete:
        return False
    node.proof, node.distance = best, distance
    return True


@njit(cache=True, nogil=True)
def plies_to_end(forest: Forest, slot: Int, edge: Int) -> Any:
    """Return the plies to the proven end of the game, including this move, int64."""
    child = forest.edges[slot, edge].child
    below = np.int64(forest.nodes[slot, child].distance) if child >= 0 else np.int64(0)
    return np.int64(1) + below


@njit(cache=True, nogil=True)
def reset_tree(forest: Forest, slot: Int) -> None:
    """Reset a slot's tree to an unexpanded root."""
    forest.slots[slot].nodes = forest.slots[slot].edges = forest.slots[slot].deepest = 0
    new_node(forest, slot)


@njit(cache=True, nogil=True)
def keep_subtree(forest: Forest, slot: Int, child: Int, spare: Any) -> None:
    """Make `child` the root and move its subtree to the front.

    `spare` = (int32[C], EDGE[E]) is scratch memory. A child's index is larger than its parent's, so
    one pass finds the subtree, and nodes only move down. Edges are in the order of expansion, not
    of node index, so they are copied through `spare`. TWOFOLD endings are cleared: the first
    occurrence may now be before the root, where only a third occurrence is a draw.
    """
    order, room = spare
    nodes, kept, edges = forest.slots[slot].nodes, np.int64(0), np.int64(0)
    order[:nodes] = NO_NODE
    order[child] = 0
    for index in range(child, nodes):
        if order[index] == NO_NODE:
            continue
        order[index] = kept
        forest.nodes[slot, kept] = forest.nodes[slot, index]
        node = forest.nodes[slot, kept]
        if node.ending == TWOFOLD:
            node.ending = ONGOING
        if node.count > 0:
            for edge in range(node.first, node.first + node.count):
                if forest.edges[slot, edge].child >= 0:
                    order[forest.edges[slot, edge].child] = 0
                room[edges + edge - node.first] = forest.edges[slot, edge]
            node.first = edges
            edges += node.count
        kept += 1
    for edge in range(edges):
        forest.edges[slot, edge] = room[edge]
        if forest.edges[slot, edge].child >= 0:
            forest.edges[slot, edge].child = order[forest.edges[slot, edge].child]
    forest.slots[slot].nodes, forest.slots[slot].edges = kept, edges
