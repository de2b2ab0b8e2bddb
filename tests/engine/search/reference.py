"""The search again, slowly: Python objects over python-chess, written from the papers, with nothing
of engine.search in it.

PUCT: Silver et al. 2018, with lc0's first-play urgency. Several leaves of a tree may wait for their
values at once: N is of finished visits and N-in-flight of the others, as lc0 counts them. A visit
in flight counts in the denominators of exploration, and with PUCT as a virtual loss (Segal 2010),
but neither in Q(parent) nor in the visited policy, of which lc0's GetFpu makes the value of an
unvisited move. Gumbel: Danihelka et al. 2022 as mctx states it; values are of finished visits.
Proofs are left out, so compare where no game ends but by a draw.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import chess
import numpy as np

from engine.encoding.planes import label_of
from engine.evaluation.evaluator import Evaluator
from tests.engine.search.stubs import planes_of


@dataclass
class Node:
    """A position, seen by its mover."""

    board: chess.Board
    raw: float = 0.0
    over: bool = False
    moves: list[chess.Move] = field(default_factory=list)
    priors: np.ndarray = field(default_factory=lambda: np.zeros(0))
    children: dict[int, "Node"] = field(default_factory=dict)
    visits: int = 0
    value_sum: float = 0.0
    seen: list[float] = field(default_factory=list)
    """Every value that came back here."""
    in_flight: int = 0

    def flying(self) -> np.ndarray:
        return np.array(
            [
                self.children[i].in_flight if i in self.children else 0
                for i in range(len(self.moves))
            ]
        )

    def child_visits(self) -> np.ndarray:
        return np.array(
            [self.children[i].visits if i in self.children else 0 for i in range(len(self.moves))]
        )

    def values(self) -> np.ndarray:
        """Give each move's mean for the mover here; 0 where there is none."""
        pairs = [
            (self.children[i].value_sum, self.children[i].visits)
            if i in self.children
            else (0.0, 0)
            for i in self.all
        ]
        return np.array([-value_sum / max(visits, 1) for value_sum, visits in pairs])

    @property
    def all(self) -> range:
        return range(len(self.moves))

    def of(self, uci: str) -> "Node":
        return self.children[[move.uci() for move in self.moves].index(uci)]

    def visits_by_uci(self) -> dict[str, int]:
        return dict(
            zip([move.uci() for move in self.moves], self.child_visits().tolist(), strict=True)
        )


Choice = Callable[[Node], int]


def drawn(board: chess.Board, root: chess.Board) -> bool:
    """Tell whether the rules draw here, or the position has come before since the root."""
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


def expand(node: Node, root: chess.Board, evaluator: Evaluator, temperature: float) -> float:
    """Judge a new position and give its value for its mover."""
    assert not node.board.is_checkmate(), "compare where nobody mates"
    if node.board is not root and drawn(node.board, root):
        node.over = True
        return 0.0
    logits_BA, wdl_B3 = evaluator(planes_of(node.board)[None])
    node.moves = list(node.board.legal_moves)
    assert not any(move.promotion for move in node.moves), "compare where nothing promotes"
    logits = np.array(
        [logits_BA[0, label_of(move, node.board.turn)] for move in node.moves], dtype=np.float64
    )
    weights = np.exp((logits - logits.max()) / temperature)
    node.priors = (weights / weights.sum()).astype(np.float32).astype(np.float64)
    node.raw = float(wdl_B3[0, 0]) - float(wdl_B3[0, 2])
    return node.raw


def walk(root: Node, at_root: Choice, below: Choice) -> list[Node]:
    """Go down to a position without a value, or to an end."""
    path, node = [root], root
    while node.visits and not node.over:
        index = (at_root if node is root else below)(node)
        if index not in node.children:
            board = node.board.copy()
            board.push(node.moves[index])
            node.children[index] = Node(board)
        node = node.children[index]
        path.append(node)
    return path


def backup(path: list[Node], value: float) -> None:
    """Add a value, the last node's mover's, along a way."""
    for node in reversed(path):
        node.visits += 1
        node.value_sum += value
        node.seen.append(value)
        value = -value


def search(
    root: Node,
    evaluator: Evaluator,
    simulations: int,
    choices: tuple[Choice, Choice],
    temperature: float,
    leaves: int,
) -> None:
    """Search in rounds of up to `leaves` positions, which wait for each other; a walk to one that
    waits ends the round."""
    backup([root], expand(root, root.board, evaluator, temperature))
    done = 0
    while done < simulations:
        waiting: list[list[Node]] = []
        while len(waiting) < leaves and done < simulations:
            path = walk(root, *choices)
            if any(path[-1] is other[-1] for other in waiting):
                break
            done += 1
            if path[-1].over or drawn(path[-1].board, root.board):
                path[-1].over = True
                backup(path, 0.0)
                continue
            for node in path:
                node.in_flight += 1
            waiting.append(path)
        for path in waiting:
            for node in path:
                node.in_flight -= 1
            backup(path, expand(path[-1], root.board, evaluator, temperature))


def stdev_factor(node: Node, c_stdev: float) -> float:
    """Give KataGo's factor on exploration: two more values are assumed, 0.4 off the mean; one
    degree of freedom is lost."""
    seen, mean = np.array(node.seen), np.mean(node.seen)
    second_moment = ((seen**2).sum() + 2 * (mean**2 + 0.4**2)) / (len(seen) + 2 - 1)
    return 1 + c_stdev * (math.sqrt(second_moment - mean**2) / 0.4 - 1)


def puct_choice(
    c_puct: float, c_base: float, c_factor: float, c_stdev: float, fpu_reduction: float
) -> Choice:
    """Make PUCT's choice."""

    def choose(node: Node) -> int:
        finished, flying = node.child_visits(), node.flying()
        started = finished + flying
        visited = started.sum()
        c = c_puct + (c_factor * math.log((visited + 1 + c_base) / c_base) if c_factor else 0.0)
        c *= stdev_factor(node, c_stdev)
        charged = (node.values() * finished - flying) / np.maximum(started, 1)
        unvisited = node.value_sum / node.visits - fpu_reduction * math.sqrt(
            node.priors[finished > 0].sum()
        )
        scores = np.where(started > 0, charged, unvisited) + c * node.priors * math.sqrt(
            max(visited, 1)
        ) / (1 + started)
        return int(scores.argmax())

    return choose


def completed(node: Node, value_scale: float = 0.1, maxvisit_init: float = 50.0) -> np.ndarray:
    """Give sigma(completed Q): unvisited moves take the mixed value; rescaled to 0..1; grown with
    the visits."""
    visits, values = node.child_visits(), node.values()
    visited = visits > 0
    mixed = node.raw
    if visited.any():
        mean = (node.priors[visited] * values[visited]).sum() / node.priors[visited].sum()
        mixed = (node.raw + visits.sum() * mean) / (visits.sum() + 1)
    full = np.where(visited, values, mixed)
    scaled = (full - full.min()) / max(full.max() - full.min(), 1e-8)
    return (maxvisit_init + visits.max()) * value_scale * scaled


def improved(node: Node) -> np.ndarray:
    """Give softmax(logits + sigma(completed Q))."""
    scores = np.log(node.priors) + completed(node)
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def gumbel_inside(node: Node) -> int:
    """Choose inside the tree: whose share of visits lags most behind the improved policy."""
    started = node.child_visits() + node.flying()
    return int((improved(node) - started / (1 + started.sum())).argmax())


def halving(considered: int, simulations: int) -> list[int]:
    """Plan Sequential Halving: how often the move of each simulation has been visited before."""
    if considered <= 1:
        return list(range(simulations))
    rounds, plan, visits, left = math.ceil(math.log2(considered)), [], 0, considered
    while len(plan) < simulations:
        for _ in range(max(1, int(simulations / (rounds * left)))):
            plan += [visits] * left
            visits += 1
        left = max(2, left // 2)
    return plan[:simulations]


def puct(
    board: chess.Board,
    evaluator: Evaluator,
    simulations: int,
    *,
    c_puct: float = 1.745,
    c_base: float = 38739.0,
    c_factor: float = 3.894,
    c_stdev: float = 0.85,
    fpu_reduction: float = 0.33,
    temperature: float = 1.0,
    leaves: int = 1,
) -> Node:
    """Search by PUCT; the root's own evaluation is no simulation."""
    root = Node(board)
    choice = puct_choice(c_puct, c_base, c_factor, c_stdev, fpu_reduction)
    search(root, evaluator, simulations, (choice, choice), temperature, leaves)
    return root


def gumbel(
    board: chess.Board,
    evaluator: Evaluator,
    simulations: int,
    considered: int = 16,
    leaves: int = 1,
) -> Node:
    """Search by Gumbel without noise, so that the likeliest moves are considered."""
    root = Node(board)
    plan = halving(min(considered, board.legal_moves.count()), simulations)

    def at_root(node: Node) -> int:
        started = node.child_visits() + node.flying()
        wanted = plan[started.sum()]
        scores = np.log(node.priors) + completed(node)
        return int(np.where(started == wanted, scores, -np.inf).argmax())

    search(root, evaluator, simulations, (at_root, gumbel_inside), 1.0, leaves)
    return root
