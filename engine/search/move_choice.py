"""Which move is played after a search, and the root as its users see it.

Axes: G slots, N slots asked, M root moves.
"""

from dataclasses import dataclass
from math import log, sqrt
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from engine.board.position import MAX_MOVES
from engine.board.rng import share
from engine.encoding.planes import LabelError
from engine.search.gumbel import improved_policy, root_edge
from engine.search.tree import LOST, NO_NODE, UNKNOWN, WON, Forest

VISITS, LCB, IMPROVED = 0, 1, 2
"""Criteria of the choice: most visits; largest lower confidence bound of the value; the improved policy."""
CRITERIA = {"visits": VISITS, "lcb": LCB, "improved": IMPROVED}

CONFIDENCE = 1.96
"""Standard errors that the lower bound lies under the mean."""
ENOUGH = 0.1
"""A move needs this share of the most visits to be chosen by its bound (as Leela Zero)."""


@dataclass(frozen=True, slots=True)
class Root:
    """What a search found at a root: M legal moves, likeliest by prior first; promotions are four moves. Its mover's view."""

    labels: NDArray[np.uint16]  # [M]
    promotions: NDArray[np.uint8]  # [M] python-chess piece type, 0 for none
    visits: NDArray[np.int32]  # [M]
    values: NDArray[np.float32]  # [M] mean value in [-1, 1], proven ones exact; nan where there is no visit
    draws: NDArray[np.float32]  # [M] mean probability of a draw; nan where there is no visit
    priors: NDArray[np.float32]  # [M] as searched: with temperature and noise
    improved: NDArray[np.float32]  # [M] puct: shares of visits; gumbel: the improved policy
    mates: NDArray[np.int16]  # [M] plies to a proven mate, the move included: + the mover mates, - is mated; 0 none
    proven: NDArray[np.int8]  # [M] 2 unknown, 1 won, 0 drawn, -1 lost
    value: float
    draw: float
    bare_value: float
    """The evaluator's own value of the root, without search; 0 where it was never asked."""
    mate: int
    """Plies to a proven mate at the root, as in `mates`."""
    simulations: int
    """Simulations in the tree, those kept from before included."""
    nodes: int
    depth: float
    """Mean length of a walk since the last move, plies."""
    seldepth: int
    full: float
    """Share of the tree's memory in use."""

    def value_of(self, label: int, promotion: int) -> float:
        """Return the value of a move, the root's where the move was not visited. LabelError for a move that is not there."""
        found_M = np.flatnonzero((self.labels == label) & (self.promotions == promotion))
        if not len(found_M):
            raise LabelError(f"label {label} with promotion {promotion} is no legal move here")
        value = float(self.values[found_M[0]])
        return self.value if np.isnan(value) else value


@njit(cache=True, nogil=True)
def _plies(forest: Any, slot: Any, edge: Any) -> Any:
    """Return the plies to a proven end by a move, the move included, int64."""
    child = forest.edges[slot, edge].child
    return np.int64(1) + (np.int64(forest.nodes[slot, child].distance) if child >= 0 else np.int64(0))


@njit(cache=True, nogil=True)
def _proven_edge(forest: Any, slot: Any) -> Any:
    """Return the quickest won move, or where all are lost the slowest lost one; NO_NODE where neither is so."""
    first, best, choice = forest.nodes[slot, 0].first, np.int64(0), np.int64(NO_NODE)
    proof = forest.nodes[slot, 0].proof
    if proof != WON and proof != LOST:
        return choice
    for edge in range(first, first + forest.nodes[slot, 0].count):
        if forest.edges[slot, edge].proof == proof:
            plies = _plies(forest, slot, edge)
            if choice < 0 or (plies < best if proof == WON else plies > best):
                best, choice = plies, np.int64(edge)
    return choice


@njit(cache=True, nogil=True)
def _weights(forest: Any, slot: Any, criterion: Any, params: Any, out: Any) -> None:
    """Write a weight for each root move into `out` (float64[M]): visits, bound or improved policy; -inf for lost ones."""
    first, count = forest.nodes[slot, 0].first, np.int64(forest.nodes[slot, 0].count)
    assert count <= len(out)
    if criterion == IMPROVED:
        if params.gumbel:
            improved_policy(forest, slot, 0, params, out)
        else:
            criterion = VISITS
    most = 0.0
    for index in range(count):
        most = max(most, np.float64(forest.edges[slot, first + index].visits))
    for index in range(count):
        edge = first + index
        visits = np.float64(forest.edges[slot, edge].visits)
        if criterion == VISITS:
            out[index] = visits
        elif criterion == LCB:
            out[index] = -2.0 + 1e-3 * forest.edges[slot, edge].prior - 4.0 * (visits < ENOUGH * most)
            if visits > 0.0 and visits >= ENOUGH * most:
                mean, draw = forest.edges[slot, edge].value_sum / visits, forest.edges[slot, edge].draw_sum / visits
                out[index] = mean - CONFIDENCE * sqrt(max(1.0 - draw - mean * mean, 0.0) / visits)
        if forest.edges[slot, edge].proof == LOST:
            out[index] = -np.inf


@njit(cache=True, nogil=True)
def _largest(forest: Any, slot: Any, weights: Any) -> Any:
    """Return the index of the largest weight, int64; among equals the better value, then the likelier move."""
    first, choice, best = forest.nodes[slot, 0].first, np.int64(0), -np.inf
    value = -np.inf
    for index in range(forest.nodes[slot, 0].count):
        visits = np.float64(forest.edges[slot, first + index].visits)
        mean = forest.edges[slot, first + index].value_sum / visits if visits > 0.0 else -1.0
        if weights[index] > best or (weights[index] == best and mean > value):
            best, value, choice = weights[index], mean, np.int64(index)
    return choice


@njit(cache=True, nogil=True)
def _sampled(forest: Any, slot: Any, weights: Any, temperature: Any) -> Any:
    """Draw an index with probability proportional to weight ** (1 / temperature), int64."""
    count = np.int64(forest.nodes[slot, 0].count)
    most, total = 0.0, 0.0
    for index in range(count):
        most = max(most, weights[index])
    for index in range(count):
        if weights[index] > 0.0:
            weights[index] = np.exp(log(weights[index] / most) / temperature)
            total += weights[index]
        else:
            weights[index] = 0.0
    left, choice = share(forest.rng[slot]) * total, np.int64(NO_NODE)
    for index in range(count):
        if weights[index] > 0.0:
            choice = np.int64(index)
            left -= weights[index]
            if left < 0.0:
                break
    return choice


@njit(cache=True, nogil=True)
def choose_edge(forest: Any, slot: Any, criterion: Any, temperature: Any, params: Any) -> Any:
    """Choose a root move, int64 edge; NO_NODE where there is none."""
    first, count = np.int64(forest.nodes[slot, 0].first), np.int64(forest.nodes[slot, 0].count)
    if count < 1:
        return np.int64(NO_NODE)
    proven = _proven_edge(forest, slot)
    if proven >= 0:
        return proven
    if params.gumbel and temperature <= 0.0 and criterion == VISITS:
        return root_edge(forest, slot, np.int64(forest.schedule.shape[1]), params)
    weights = np.empty(MAX_MOVES, dtype=np.float64)
    _weights(forest, slot, criterion, params, weights)
    if temperature > 0.0 and criterion != LCB:
        index = _sampled(forest, slot, weights, temperature)
        if index >= 0:
            return first + index
    return first + _largest(forest, slot, weights)


@njit(cache=True, nogil=True)
def choose_all(forest: Any, slots: Any, criterion: Any, temperatures: Any, params: Any, out: Any) -> None:
    """Choose a move for each slot into `out` (int64[N, 2]: label, promotion); (-1, 0) where there is none."""
    for index in range(len(slots)):
        edge = choose_edge(forest, slots[index], criterion, temperatures[index], params)
        out[index, 0], out[index, 1] = -1, 0
        if edge >= 0:
            out[index, 0] = forest.edges[slots[index], edge].label
            out[index, 1] = forest.edges[slots[index], edge].promotion


@dataclass(frozen=True, slots=True)
class InteriorNode:
    """A node within a tree; its mover's view."""

    path: tuple[tuple[int, int], ...]
    """(label, promotion) of each move from the root to it."""
    value: float
    """Mean value in [-1, 1], exact where it is proven."""
    visits: int
    best: tuple[int, int]
    """(label, promotion) of its most visited move, the likelier one among equals."""


def interior_of(forest: Forest, slot: int, least: int) -> list[InteriorNode]:
    """Return the nodes below a slot's root with `least` visits or more and a move of theirs, in the order of the tree."""
    found: list[InteriorNode] = []

    def walk(node: int, path: tuple[tuple[int, int], ...]) -> None:
        start, count = int(forest.nodes["first"][slot, node]), max(int(forest.nodes["count"][slot, node]), 0)
        edges = forest.edges[slot, start : start + count]
        if path and count:
            record = forest.nodes[slot, node]
            proof, best = int(record["proof"]), edges[int(edges["visits"].argmax())]
            mean = float(np.clip(record["value_sum"] / max(int(record["visits"]), 1), -1.0, 1.0))
            value = float(proof) if proof != UNKNOWN else mean
            move = (int(best["label"]), int(best["promotion"]))
            found.append(InteriorNode(path, value, int(record["visits"]), move))
        for edge in edges[(edges["child"] >= 0) & (edges["visits"] >= least)]:
            walk(int(edge["child"]), (*path, (int(edge["label"]), int(edge["promotion"]))))

    walk(0, ())
    return found


def root_of(forest: Forest, slot: int, params: Any) -> Root:
    """Read a slot's root."""
    game, node = forest.slots[slot], forest.nodes[slot, 0]
    count = max(int(node["count"]), 0)
    moves = slice(int(node["first"]), int(node["first"]) + count)
    edges = forest.edges[slot, moves]
    visits, proven = edges["visits"].copy(), edges["proof"].copy()
    known = visits > 0
    values, draws = (np.full(count, np.nan, dtype=np.float32) for _ in range(2))
    np.divide(edges["value_sum"], visits, out=values, where=known, casting="unsafe")
    np.divide(edges["draw_sum"], visits, out=draws, where=known, casting="unsafe")
    values[proven != UNKNOWN] = proven[proven != UNKNOWN]
    draws[proven != UNKNOWN] = proven[proven != UNKNOWN] == 0
    child = edges["child"]
    plies = 1 + np.where(child >= 0, forest.nodes["distance"][slot, np.maximum(child, 0)], 0)
    improved = np.zeros(MAX_MOVES, dtype=np.float64)
    if params.gumbel and count:
        improved_policy(forest, slot, 0, params, improved)
    elif visits.sum() > 0:
        improved[:count] = visits / visits.sum()
    node_visits, proof = int(node["visits"]), int(node["proof"])
    exact = proof != UNKNOWN
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
        value=float(proof) if exact else float(np.clip(node["value_sum"] / max(node_visits, 1), -1.0, 1.0)),
        draw=float(proof == 0) if exact else float(np.clip(node["draw_sum"] / max(node_visits, 1), 0.0, 1.0)),
        bare_value=float(node["value"]),
        mate=proof * int(node["distance"]) if proof in (WON, LOST) else 0,
        simulations=int(visits.sum()),
        nodes=int(game["nodes"]),
        depth=float(game["plies"] / max(int(game["walks"]), 1)),
        seldepth=int(game["deepest"]),
        full=max(
            int(game["nodes"]) / forest.nodes.shape[1],
            int(game["edges"]) / forest.edges.shape[1],
        ),
    )
