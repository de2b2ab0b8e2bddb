"""The players of a match: our evaluators, searching or not, and engines that speak UCI, behind one small interface.

A match holds `width` games at a time in slots. A *side* is one player in all of them: it is asked for the moves of every game
in which it is to move at once, so that our search is one batch, and every move is pushed to it, so that subtrees are kept.
Scores are centipawns, or moves to mate, from the mover's view.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import chess
import numpy as np

from engine.encoding.planes import label_of, legal_mask, move_of, planes_of
from engine.evaluation.evaluator import Evaluator
from engine.evaluation.score import centipawns
from engine.match.config import Limit
from engine.progress import Stop
from engine.search import Search, SearchConfig
from engine.search.chess_rules import position_and_history
from engine.search.time_manager import Limits, RoundTimer, budget

OVERHEAD = 0.003
"""Seconds of a timed move that our players leave unused, for what comes after the search."""
TIMED_NODES = 100_000
"""Positions that ours may hold in a tree when time is all that bounds it."""
ENDLESS = 1 << 30
"""Simulations of a timed move: more than any time allows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Player:
    """One player of a match: an evaluator of ours, with or without search, or the command of a UCI engine."""

    name: str
    """What the games and the summary call it."""
    limit: Limit = field(default_factory=Limit)
    """What a move may cost."""
    evaluator: Evaluator | None = None
    """Ours: the evaluator. None: a UCI engine is started by its command."""
    search: SearchConfig | None = None
    """Ours: how to search. None: the evaluator's likeliest move is played, without search."""
    seed: int = 0
    """Ours: random seed of the search."""
    command: tuple[str, ...] = ()
    """An engine: the words that start it."""
    options: Mapping[str, str] = field(default_factory=dict)
    """An engine: its UCI options."""


class Score(NamedTuple):
    """A player's score of its position, the mover's view: centipawns, or moves to mate."""

    centipawns: int | None
    mate: int | None = None
    """Above 0 the mover mates, below 0 it is mated."""


class MoveRequest(NamedTuple):
    """A game in which a side is to move, and the time it has."""

    slot: int
    board: chess.Board
    """The game so far, with its moves; not to be changed."""
    clocks: tuple[float, float] | None
    """Seconds left of White and Black, None without clocks."""
    moves_to_go: int | None = None
    """Moves until the mover's clock gains time, this one included; None where it only gains increments."""

    @property
    def left(self) -> float | None:
        """Seconds left on the mover's clock."""
        return None if self.clocks is None else self.clocks[0 if self.board.turn else 1]


class PlayResult(NamedTuple):
    """What a side made of a request."""

    move: chess.Move | None
    score: Score | None
    seconds: float
    fault: str | None = None
    """Why there is no move: `crash`, `timeout` or `illegal move`..."""
    detail: str = ""
    """...and more of it for people."""


class Side(Protocol):
    """A player in `width` games. Every method but `play` does nothing unless a side has something to do."""

    def new_game(self, slot: int, board: chess.Board, game: int) -> None:
        """Begin a new game, of this number, in a slot."""
        return

    def play(self, requests: Sequence[MoveRequest]) -> list[PlayResult]:
        """Return a move for each request, in their order."""

    def push(self, moves: Sequence[tuple[int, chess.Move, chess.Color]]) -> None:
        """Play the moves (slot, move, who made it) in the games, the side's own included."""
        return

    def close(self) -> None:
        """Free what the side holds; processes end."""
        return


class PolicySide(Side):
    """Plays the evaluator's likeliest legal move; pawns become queens."""

    def __init__(self, evaluator: Evaluator) -> None:
        self.evaluator = evaluator

    def play(self, requests: Sequence[MoveRequest]) -> list[PlayResult]:
        """Evaluate all positions in one batch."""
        begun = time.perf_counter()
        planes_BP = planes_of([request.board for request in requests])
        logits_BA, wdl_BW = self.evaluator(planes_BP)
        labels_B = np.where(legal_mask(planes_BP), logits_BA, -np.inf).argmax(axis=1)
        moves = [_queened(request.board, int(label)) for request, label in zip(requests, labels_B, strict=True)]
        scores = [Score(centipawns(float(wdl_W[0] - wdl_W[2]))) for wdl_W in wdl_BW]
        seconds = time.perf_counter() - begun
        return [PlayResult(move, score, seconds) for move, score in zip(moves, scores, strict=True)]


def _queened(board: chess.Board, label: int) -> chess.Move:
    """Return the move of a label, a queen where a pawn arrives."""
    move = move_of(label, 0, board.turn)
    arrives = chess.square_rank(move.to_square) in (0, 7) and board.piece_type_at(move.from_square) == chess.PAWN
    return chess.Move(move.from_square, move.to_square, chess.QUEEN) if arrives else move


class SearchSide(Side):
    """Plays what a batched search chooses; one tree a slot."""

    def __init__(self, player: Player, evaluator: Evaluator, config: SearchConfig, width: int) -> None:
        self.limit, self.config = player.limit, config
        self.search = Search(evaluator, config, games=width, seed=player.seed)
        if self.limit.timed:
            self._warm_up()

    def _warm_up(self) -> None:
        """Search a first time before any clock runs: kernels are compiled or loaded when they are first called."""
        board = chess.Board()
        self.new_game(0, board, 0)
        move = self._played([MoveRequest(0, board, None)], 0.0, lambda: self.search.evaluations > 4)[0].move
        assert move is not None, "the first position has moves"
        self.push([(0, move, board.turn)])

    def new_game(self, slot: int, board: chess.Board, game: int) -> None:
        """Reset the slot's tree."""
        position, keys = position_and_history(board)
        self.search.start(slot, position, keys, game=game)

    def push(self, moves: Sequence[tuple[int, chess.Move, chess.Color]]) -> None:
        """Keep the subtrees of the moves that were played."""
        labels_N = np.array([label_of(move, turn) for _, move, turn in moves], dtype=np.int64)
        promotions_N = np.array([move.promotion or 0 for _, move, _ in moves], dtype=np.int64)
        self.search.play_all(labels_N, promotions_N, np.array([slot for slot, _, _ in moves], dtype=np.int64))

    def play(self, requests: Sequence[MoveRequest]) -> list[PlayResult]:
        """Search all positions side by side, in so many simulations or in the time there is."""
        begun = time.perf_counter()
        if not self.limit.timed:
            return self._played(requests, begun, None)
        assert len(requests) == 1, "time is measured in one game a side"
        return self._played(requests, begun, _deadline(self.limit, requests[0], begun))

    def _played(self, requests: Sequence[MoveRequest], begun: float, stop: Stop | None) -> list[PlayResult]:
        """Search until every root has its simulations, or `stop` returns True."""
        slots_N = np.array([request.slot for request in requests], dtype=np.int64)
        self.search.run(slots_N, simulations=None if stop is None else ENDLESS, stop=stop)
        labels_N, promotions_N = self.search.choose(slots_N)
        chosen = list(zip(requests, labels_N.tolist(), promotions_N.tolist(), strict=True))
        moves = [move_of(label, promotion, request.board.turn) for request, label, promotion in chosen]
        seconds = time.perf_counter() - begun
        scores = [self._score(request.slot, label, promotion) for request, label, promotion in chosen]
        return [PlayResult(move, score, seconds) for move, score in zip(moves, scores, strict=True)]

    def _score(self, slot: int, label: int, promotion: int) -> Score:
        """Say what the search thinks of the chosen move."""
        root = self.search.root(slot)
        index = int(np.flatnonzero((root.labels == label) & (root.promotions == promotion))[0])
        plies = int(root.mates[index])
        if plies:
            return Score(None, (abs(plies) + 1) // 2 * (1 if plies > 0 else -1))
        value = float(root.values[index])
        return Score(centipawns(root.value if math.isnan(value) else value))


def _deadline(limit: Limit, request: MoveRequest, begun: float) -> Stop:
    """Return the `stop` of a search in this time, asked after every round."""
    left = request.left if limit.base is not None else None
    limits = Limits(movetime=limit.movetime, left=left, increment=limit.increment, moves_to_go=request.moves_to_go)
    bound = budget(limits, OVERHEAD).soft
    timer = RoundTimer(begun, 0.0)

    def stop() -> bool:
        now = time.perf_counter()
        timer.round(now)
        return timer.too_late(bound, now)

    return stop
