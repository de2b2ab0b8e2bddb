"""Slow reference implementation of the search, with Python objects and python-chess.

It shares only the settings with engine.search. PUCT is that of Silver et al. 2018, with lc0's
first-play urgency and KataGo's scaling by variance. Gumbel is that of Danihelka et al. 2022 and
mctx, without noise.

A visit in flight counts in the denominators of exploration and, with PUCT, as a virtual loss (Segal
2010), but neither in Q(parent) nor in the visited policy. Gumbel's values use finished visits.
Nothing is proven, so positions must not end in mate.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import chess
import numpy as np

from engine.encoding.planes import label_from_move
from engine.evaluation.evaluator import Evaluator
from engine.search import SearchConfig
from tests.engine.search.stubs import Arrays, planes_of


@dataclass
class Node:
    """A position in the mover's view; arrays have an entry for each move."""

    board: chess.Board
    raw: float = 0.0
    over: bool = False
    moves: list[chess.Move] = field(default_factory=list)
    priors: np.ndarray = field(default_factory=lambda: np.zeros(0))
    bias: np.ndarray = field(default_factory=lambda: np.zeros(0))
    children: dict[int, "Node"] = field(default_factory=dict)
    visits: int = 0
    in_flight: int = 0
    value_sum: float = 0.0
    seen: list[float] = field(default_factory=list)
    """Every value that was backed up to this node."""

    def by_move(self, get: Callable[["Node"], float]) -> np.ndarray:
        """Return a number of each move's node, or 0 if it has none."""
        children = [self.children.get(index) for index in range(len(self.moves))]
        return np.array([get(child) if child else 0 for child in children])

    @property
    def finished(self) -> np.ndarray:
        return self.by_move(lambda child: child.visits)

    @property
    def started(self) -> np.ndarray:
        return self.by_move(lambda child: child.visits + child.in_flight)

    @property
    def values(self) -> np.ndarray:
        return self.by_move(lambda child: -child.value_sum / max(child.visits, 1))


def is_draw(board: chess.Board, root: chess.Board) -> bool:
    """Return whether the game is drawn, or the position repeats one since the root."""
    if board.is_stalemate() or board.is_insufficient_material() or board.halfmove_clock >= 100:
        return True
    if board.is_repetition(3):
        return True
    here, back = board._transposition_key(), board.copy()
    for _ in range(len(board.move_stack) - len(root.move_stack)):
        back.pop()
        if back._transposition_key() == here:
            return True
    return False


def expand(node: Node, answer: Arrays, temperature: float) -> float:
    """Set a new node's moves and priors; return its value for the mover."""
    assert not node.board.is_checkmate(), "the reference has no mates"
    logits_BA, wdl_B3 = answer
    node.moves = list(node.board.legal_moves)
    assert not any(move.promotion for move in node.moves), "the reference has no promotions"
    labels = [label_from_move(move, node.board.turn) for move in node.moves]
    logits = logits_BA[0, labels].astype(np.float64)
    weights = np.exp((logits - logits.max()) / temperature)
    node.priors = (weights / weights.sum()).astype(np.float32).astype(np.float64)
    node.bias = np.zeros(len(node.moves))
    node.raw = float(wdl_B3[0, 0]) - float(wdl_B3[0, 2])
    return node.raw


def backup(path: list[Node], value: float) -> None:
    """Add a value, from the view of the last node's mover, along a path."""
    for node in reversed(path):
        node.visits += 1
        node.value_sum += value
        node.seen.append(value)
        value = -value


def find_selectable(node: Node, config: SearchConfig) -> np.ndarray:
    """Return which moves pass top-k, the tail filter and progressive widening, bool."""
    order = np.argsort(-node.priors, kind="stable")
    kept = len(order)
    if config.top_k:
        kept = min(kept, config.top_k)
    if config.tail_mass:
        tails = np.cumsum(node.priors[order][::-1])[::-1]
        kept = min(kept, max(1, int((tails > config.tail_mass).sum())))
    if config.widening_factor:
        visits = node.visits + node.in_flight
        kept = min(kept, max(1, math.ceil(config.widening_factor * math.sqrt(visits))))
    return np.isin(np.arange(len(order)), order[:kept])


def compute_stdev_factor(node: Node, c_stdev: float) -> float:
    """Return KataGo's factor, with a prior of two values 0.4 from the mean."""
    seen, mean = np.array(node.seen), np.mean(node.seen)
    second_moment = ((seen**2).sum() + 2 * (mean**2 + 0.4**2)) / (len(seen) + 2 - 1)
    return 1 + c_stdev * (math.sqrt(second_moment - mean**2) / 0.4 - 1)


def choose_by_puct(node: Node, config: SearchConfig) -> int:
    """Choose a move by PUCT."""
    finished, started = node.finished, node.started
    total = started.sum()
    c = config.c_puct + config.c_factor * math.log((total + 1 + config.c_base) / config.c_base)
    c *= compute_stdev_factor(node, config.c_stdev)
    with_loss = (node.values * finished - (started - finished)) / np.maximum(started, 1)
    visited_policy = node.priors[finished > 0].sum()
    unvisited = node.value_sum / node.visits - config.fpu_reduction * math.sqrt(visited_policy)
    scores = np.where(started > 0, with_loss, unvisited) + node.bias
    scores += c * node.priors * math.sqrt(max(total, 1)) / (1 + started)
    return int(np.where(find_selectable(node, config), scores, -np.inf).argmax())


def complete_values(node: Node, config: SearchConfig, maxvisit_init: float = 50.0) -> np.ndarray:
    """Return sigma(completed Q), where unvisited moves have the mixed value."""
    visits, values = node.finished, node.values
    visited = visits > 0
    mixed = node.raw
    if visited.any():
        mean = (node.priors[visited] * values[visited]).sum() / node.priors[visited].sum()
        mixed = (node.raw + visits.sum() * mean) / (visits.sum() + 1)
    full = np.where(visited, values, mixed) + node.bias
    span = max(full.max() - full.min(), 1e-8) if config.rescale_values else 2.0
    return (maxvisit_init + visits.max()) * config.value_scale * (full - full.min()) / span


def improve_policy(node: Node, config: SearchConfig) -> np.ndarray:
    """Return softmax(logits + sigma(completed Q))."""
    scores = np.log(node.priors) + complete_values(node, config)
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def choose_by_gumbel(node: Node, config: SearchConfig, wanted: int | None) -> int:
    """Choose by the planned visits at the root, else by the improved policy and visit shares."""
    started = node.started
    if wanted is None:
        return int((improve_policy(node, config) - started / (1 + started.sum())).argmax())
    scores = np.log(node.priors) + complete_values(node, config)
    return int(np.where(started == wanted, scores, -np.inf).argmax())


def plan_halving(considered: int, simulations: int) -> list[int]:
    """Plan Sequential Halving: the visits that the move of each simulation has before."""
    if considered <= 1:
        return list(range(simulations))
    rounds, plan, visits, left = math.ceil(math.log2(considered)), [], 0, considered
    while len(plan) < simulations:
        for _ in range(max(1, int(simulations / (rounds * left)))):
            plan += [visits] * left
            visits += 1
        left = max(2, left // 2)
    return plan[:simulations]


def allot_simulations(root: Node, config: SearchConfig) -> int:
    """Return the simulations of a root, by its number of moves and its pieces."""
    factor = 1.0
    if config.branching_exponent:
        factor = min(max((len(root.moves) / 30) ** config.branching_exponent, 0.25), 2)
    pieces = min((chess.popcount(root.board.occupied) - 2) / 30, 1)
    factor *= config.endgame_factor + (1 - config.endgame_factor) * pieces
    return max(int(config.simulations * factor), 1)


def penalize_repetitions(root: Node, penalty: float) -> None:
    """Set the bias of moves that repeat a position of the game."""
    past, board = set(), root.board.copy()
    while board.move_stack:
        board.pop()
        past.add(board._transposition_key())
    for index, move in enumerate(root.moves):
        board = root.board.copy()
        board.push(move)
        if board._transposition_key() in past:
            root.bias[index] = -penalty


def is_decided(root: Node, done: int, simulations: int, config: SearchConfig) -> bool:
    """Return whether early stop or dominance ends a search (PUCT)."""
    second, first = np.sort(np.append(root.started, 0))[-2:]
    if config.algorithm == "gumbel":
        return False
    if config.early_stop and first - second > simulations - done:
        return True
    share = config.dominance * root.started.sum()
    return bool(config.dominance and 2 * done >= simulations and first >= share)


def search(
    board: chess.Board, evaluator: Evaluator, config: SearchConfig, answer: Arrays | None = None
) -> Node:
    """Search in rounds of up to `config.leaves` positions.

    The root's evaluation, `answer` if given, does not count as a simulation.
    """
    root = Node(board)
    answer = answer or evaluator(planes_of(board)[None])
    backup([root], expand(root, answer, config.policy_temperature))
    simulations = allot_simulations(root, config)
    penalize_repetitions(root, config.repetition_penalty)
    plan = plan_halving(min(config.max_considered_actions, len(root.moves)), simulations)

    def choose(node: Node) -> int:
        if config.algorithm == "puct":
            return choose_by_puct(node, config)
        return choose_by_gumbel(node, config, plan[done] if node is root else None)

    def descend() -> list[Node]:
        path = [root]
        while path[-1].visits and not path[-1].over:
            node = path[-1]
            index = choose(node)
            if index not in node.children:
                after = node.board.copy()
                after.push(node.moves[index])
                node.children[index] = Node(after, over=is_draw(after, board))
            path.append(node.children[index])
        return path

    done, ended = 0, False
    while done < simulations and not ended:
        in_flight: list[list[Node]] = []
        while len(in_flight) < config.leaves and done < simulations:
            ended = is_decided(root, done, simulations, config)
            path = descend()
            if ended or any(path[-1] is other[-1] for other in in_flight):
                break
            done += 1
            if path[-1].over:
                backup(path, 0.0)
                continue
            for node in path:
                node.in_flight += 1
            in_flight.append(path)
        for path in in_flight:
            for node in path:
                node.in_flight -= 1
            answer = evaluator(planes_of(path[-1].board)[None])
            backup(path, expand(path[-1], answer, config.policy_temperature))
    return root
