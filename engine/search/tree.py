"""Store the search trees of many games as records in flat arrays, with one slot per game.

A node is a position; node 0 of a slot is the root. Its edges are its legal moves, likeliest first;
a promotion is four edges. Positions are not stored: a descent replays the moves from the root.
Slots share nothing, so trees are independent. A record has all fields of a node, because a descent
reads several of them together; with one array per field, it took twice the time.

A simulation ends at a node that is new or where the game is over. `ended` counts these simulations:

    node.visits = node.ended + the sum of visits over its edges
    edge.visits = visits of its child; without a child, because the tree is full,
                  only the edge counts them

A descent increments `visits` and `in_flight` of its nodes and edges, and its value is added to
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
UNEXPANDED, EVALUATING = -1, -2
"""Values of `count` of a node without edges: not expanded yet, or being evaluated."""
NO_NODE = -1
"""Value of `child` if the move has no node."""
TWOFOLD_REPETITION = 5
"""Value of `ending` besides those of engine/board/rules.py: the position occurs twice on this path.
It counts as a draw, but is not proven."""

MAX_HISTORY = 128
"""Maximum number of stored positions before the root; fifty moves of both sides are 100."""
MAX_DEPTH = 512
"""Maximum depth of a descent, plies."""
EDGES_PER_NODE = 40
"""Edges allocated per node; positions of real middlegames have 30 to 38 moves."""

Int = int | np.int64
"""An integer in compiled code."""


def _make_dtype(table: str) -> np.dtype[np.void]:
    """Return the dtype of a record from a table: type, name and meaning of a field per line."""
    fields = [line.split()[:2] for line in table.strip().splitlines()]
    return np.dtype([(name, kind) for kind, name in fields], align=True)


SLOT_DTYPE = _make_dtype("""
    i4 history_length  number of positions in the history
    i4 nodes           number of nodes in use
    i4 edges           number of edges in use
    i4 deepest         maximum depth of a descent since the last move
""")
"""Record of a slot's game."""

NODE_DTYPE = _make_dtype("""
    f8 value_sum       sum of the values of finished visits
    f8 square_sum      sum of the squares of these values
    f8 draw_sum        sum of the probabilities of a draw
    u8 key             hash for the repetition rule (position_key in engine/board/movegen.py)
    i4 first           index of the first edge
    i4 count           number of edges, or UNEXPANDED or EVALUATING
    i4 visits          simulations
    i4 ended           simulations that ended here
    i4 in_flight       simulations without a value yet
    f4 visited_policy  sum of the priors of moves with a finished visit
    f4 value           the evaluator's value
    i2 distance        plies to a proven end
    i1 proof           WON, DRAWN, LOST or UNKNOWN
    i1 ending          ending of the game (engine/board/rules.py), or TWOFOLD_REPETITION
""")
"""Record of a node: a position."""

EDGE_DTYPE = _make_dtype("""
    f8 value_sum  sum of the values of finished visits
    f4 prior      probability of the move
    f4 bias       added to the value; 0 except for root moves that repeat a position
    i4 child      node after the move, or NO_NODE
    i4 visits     simulations
    i4 in_flight  simulations without a value yet
    u2 label      the move's label
    u1 promotion  python-chess piece type, or 0
    i1 proof      WON, DRAWN, LOST or UNKNOWN
""")
"""Record of an edge: a move, from the view of the side that plays it."""

ROOT_MOVE_DTYPE = _make_dtype("""
    f4 noise          Gumbel noise
    i4 visits_before  visits at the start of the run
""")
"""Record of a root move in Sequential Halving."""


class Forest(NamedTuple):
    """Search trees of all slots."""

    slots: NDArray[np.void]  # [G] SLOT_DTYPE
    nodes: NDArray[np.void]  # [G, C] NODE_DTYPE
    edges: NDArray[np.void]  # [G, E] EDGE_DTYPE
    moves: NDArray[np.void]  # [G, M] ROOT_MOVE_DTYPE
    roots: NDArray[np.uint64]  # [G, W] the roots' positions
    history: NDArray[np.uint64]  # [G, H] keys of earlier positions that can recur
    rng: NDArray[np.uint64]  # [G, 1] the slot's random stream
    # [G, S] Sequential Halving: simulation s selects among the moves with this number of visits
    schedule: NDArray[np.int32]


def empty_forest(games: int, capacity: int, schedule: int) -> Forest:
    """Allocate `games` trees of `capacity` nodes, and Gumbel plans of `schedule` simulations."""
    return Forest(
        slots=np.zeros(games, dtype=SLOT_DTYPE),
        nodes=np.zeros((games, capacity), dtype=NODE_DTYPE),
        edges=np.zeros((games, capacity * EDGES_PER_NODE + MAX_MOVES), dtype=EDGE_DTYPE),
        moves=np.zeros((games, MAX_MOVES), dtype=ROOT_MOVE_DTYPE),
        roots=np.zeros((games, WORDS), dtype=np.uint64),
        history=np.zeros((games, MAX_HISTORY), dtype=np.uint64),
        rng=np.zeros((games, 1), dtype=np.uint64),
        schedule=np.zeros((games, schedule), dtype=np.int32),
    )


def tree_bytes(capacity: int) -> int:
    """Return the size of a tree of `capacity` nodes, in bytes."""
    edges = capacity * EDGES_PER_NODE + MAX_MOVES
    return capacity * NODE_DTYPE.itemsize + edges * EDGE_DTYPE.itemsize


@njit(cache=True, nogil=True)
def new_node(forest: Forest, slot: Int) -> Any:
    """Return the slot's next free node, cleared, int64; NO_NODE if the tree is full."""
    index = np.int64(forest.slots[slot].nodes)
    if index >= forest.nodes.shape[1]:
        return np.int64(NO_NODE)
    forest.slots[slot].nodes += 1
    node = forest.nodes[slot, index]
    node.count = UNEXPANDED
    node.visits = node.ended = node.in_flight = node.distance = 0
    node.value_sum = node.square_sum = node.draw_sum = node.visited_policy = node.value = 0.0
    node.proof, node.ending = UNKNOWN, ONGOING
    return index


@njit(cache=True, nogil=True)
def set_ending(node: Any, ending: Int) -> None:
    """Set a node's ending, and its proven result if the rules decide the game."""
    node.ending = ending
    if ending == MATE:
        node.proof = LOST
    elif ending not in (ONGOING, TWOFOLD_REPETITION):
        node.proof = DRAWN


@njit(cache=True, nogil=True)
def propagate_proof(forest: Forest, slot: Int, index: Int) -> Any:
    """Prove a node from the proofs of its moves, if possible; return whether it is proven now.

    One winning move proves a win; otherwise all moves must be proven. The node's distance assumes
    that the winner takes the shortest line and the loser the longest.
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
def keep_subtree(forest: Forest, slot: Int, child: Int, scratch: Any) -> None:
    """Make `child` the root and move its subtree to the front.

    `scratch` is (int32[C], EDGE_DTYPE[E]). A child's index is larger than its parent's, so one pass
    finds the subtree, and nodes only move down. Edges are in the order of expansion instead, so
    they are copied through a buffer. TWOFOLD_REPETITION is cleared: the first occurrence may now be
    before the root, where only a third occurrence is a draw.
    """
    new_index, edge_buffer = scratch
    nodes, kept, edges = forest.slots[slot].nodes, np.int64(0), np.int64(0)
    new_index[:nodes] = NO_NODE
    new_index[child] = 0
    for index in range(child, nodes):
        if new_index[index] == NO_NODE:
            continue
        new_index[index] = kept
        forest.nodes[slot, kept] = forest.nodes[slot, index]
        node = forest.nodes[slot, kept]
        if node.ending == TWOFOLD_REPETITION:
            node.ending = ONGOING
        if node.count > 0:
            for edge in range(node.first, node.first + node.count):
                if forest.edges[slot, edge].child >= 0:
                    new_index[forest.edges[slot, edge].child] = 0
                edge_buffer[edges + edge - node.first] = forest.edges[slot, edge]
            node.first = edges
            edges += node.count
        kept += 1
    for edge in range(edges):
        forest.edges[slot, edge] = edge_buffer[edge]
        if forest.edges[slot, edge].child >= 0:
            forest.edges[slot, edge].child = new_index[forest.edges[slot, edge].child]
    forest.slots[slot].nodes, forest.slots[slot].edges = kept, edges
