"""Read results from a tree: the root's statistics and the principal variation.

Axes: M root moves.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.board.position import MAX_MOVES
from engine.search.config import SearchParams
from engine.search.gumbel import write_improved_policy
from engine.search.tree import LOST, UNKNOWN, WON, Forest


@dataclass(frozen=True, slots=True)
class Root:
    """Result of a search at its root, in the mover's view.

    The M legal (or allowed) moves are in descending order of prior; a promotion is four moves.
    """

    labels: NDArray[np.uint16]  # [M]
    promotions: NDArray[np.uint8]  # [M] python-chess piece type, 0 for none
    visits: NDArray[np.int32]  # [M]
    # [M] mean value in [-1, 1], exact if proven; NaN for unvisited moves
    values: NDArray[np.float32]
    # [M] mean probability of a draw; the root's for moves without visits or without a node
    draws: NDArray[np.float32]
    priors: NDArray[np.float32]  # [M] including temperature and noise
    improved: NDArray[np.float32]  # [M] gumbel: the improved policy; puct: shares of visits
    # [M] plies to a proven mate, this move included: > 0 mover mates, < 0 mover is mated, 0 none
    mates: NDArray[np.int16]
    proven: NDArray[np.int8]  # [M] 2 unknown, 1 won, 0 drawn, -1 lost
    value: float
    draw: float
    mate: int
    """Plies from the root to a proven mate, signed as in `mates`."""
    simulations: int
    """Simulations in the tree, including those kept from the previous move."""
    nodes: int
    seldepth: int
    """Maximum depth since the last move, plies."""
    full: float
    """Share of the tree's memory in use."""

    def index_of(self, label: int, promotion: int) -> int:
        """Return the index of a legal move in the arrays."""
        return int(np.flatnonzero((self.labels == label) & (self.promotions == promotion))[0])

    def rank_moves(self, best: int) -> list[int]:
        """Return all moves' indices: `best`, then the others by proof, visits, value and prior."""
        values_M = np.nan_to_num(self.values, nan=-2.0)
        proven_M = np.where(self.proven == UNKNOWN, 0, self.proven)
        order_M = np.lexsort((-self.priors, -values_M, -self.visits, -proven_M))
        return [best, *(index for index in order_M.tolist() if index != best)]

    def value_at(self, index: int) -> float:
        """Return the value of a move by its index, or the root's value if it was not visited."""
        value = float(self.values[index])
        return self.value if np.isnan(value) else value


def read_root(forest: Forest, slot: int, params: SearchParams) -> Root:
    """Return the result at a slot's root."""
    game, node = forest.slots[slot], forest.nodes[slot, 0]
    edges = get_edges(forest, slot, 0)
    count, visits, proven = len(edges), edges["visits"].copy(), edges["proof"].copy()
    has_child, proof = edges["child"] >= 0, int(node["proof"])
    mean = float(np.clip(node["value_sum"] / max(int(node["visits"]), 1), -1.0, 1.0))
    draw = float(np.clip(node["draw_sum"] / max(int(node["visits"]), 1), 0.0, 1.0))
    children = forest.nodes[slot, np.maximum(edges["child"], 0)]
    values = np.full(count, np.nan, dtype=np.float32)
    np.divide(edges["value_sum"], visits, out=values, where=visits > 0, casting="unsafe")
    draws = np.full(count, draw, dtype=np.float32)
    has_draws, sums = has_child & (visits > 0), children["draw_sum"]
    np.divide(sums, children["visits"], out=draws, where=has_draws, casting="unsafe")
    values[proven != UNKNOWN] = proven[proven != UNKNOWN]
    draws[proven != UNKNOWN] = proven[proven != UNKNOWN] == 0
    plies = 1 + np.where(has_child, children["distance"], 0)
    improved = np.zeros(MAX_MOVES, dtype=np.float64)
    if params.gumbel and count:
        write_improved_policy(forest, slot, 0, params, improved)
    elif visits.sum() > 0:
        improved[:count] = visits / visits.sum()
    return Root(
        labels=edges["label"].copy(),
        promotions=edges["promotion"].copy(),
        visits=visits,
        values=np.clip(values, -1.0, 1.0),
        draws=np.clip(draws, 0.0, 1.0),
        priors=edges["prior"].copy(),
        improved=improved[:count].astype(np.float32),
        mates=np.where(np.abs(proven) == 1, proven * plies, 0).astype(np.int16),
        proven=proven,
        value=mean if proof == UNKNOWN else float(proof),
        draw=draw if proof == UNKNOWN else float(proof == 0),
        mate=proof * int(node["distance"]) if proof in (WON, LOST) else 0,
        simulations=int(visits.sum()),
        nodes=int(game["nodes"]),
        seldepth=int(game["deepest"]),
        full=max(game["nodes"] / forest.nodes.shape[1], game["edges"] / forest.edges.shape[1]),
    )


def get_edges(forest: Forest, slot: int, node: int) -> NDArray[np.void]:
    """Return the edges of a node, EDGE_DTYPE[M]."""
    first, count = (int(forest.nodes[name][slot, node]) for name in ("first", "count"))
    return forest.edges[slot, first : first + max(count, 0)]


def principal_variation(forest: Forest, slot: int, edge: int) -> list[tuple[int, int]]:
    """Return the principal variation from an edge on, as (label, promotion) of each move.

    It follows the most visited moves or, where a mate is proven, the mate.
    """
    moves = []
    while edge >= 0:
        move = forest.edges[slot, edge]
        moves.append((int(move["label"]), int(move["promotion"])))
        edges = get_edges(forest, slot, int(move["child"]))
        if move["child"] < 0 or not len(edges):
            break
        node = forest.nodes[slot, int(move["child"])]
        scores = edges["visits"].astype(np.float64)
        if node["proof"] in (WON, LOST):
            below = forest.nodes["distance"][slot, np.maximum(edges["child"], 0)]
            plies = np.where(edges["child"] >= 0, below, 0)
            # above all visits; the shortest win or the longest loss is the largest
            mate_scores = 2e9 - int(node["proof"]) * plies
            scores = np.where(edges["proof"] == node["proof"], mate_scores, scores)
        if scores.max() <= 0:
            break
        edge = int(node["first"]) + int(scores.argmax())
    return moves
