"""The players of a match: our evaluators, searching or not, and engines that speak UCI, behind one small interface.

A match holds `width` games at a time in slots. A *side* is one player in all of them: it is asked for the moves of every game
in which it has the turn at once, so that ours is one batched search, and it is told every move, so that trees are kept.
Scores are centipawns, or moves to mate, from the mover's view.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import chess
import numpy as np

from engine.board.movegen import legal_planes
from engine.board.position import from_board
from engine.encoding.planes import PLANES, label_of, legal_mask, move_of
from engine.evaluation.evaluator import Evaluator
from engine.evaluation.score import centipawns
from engine.match.config import Limit
from engine.progress import Stop
from engine.search import Search, SearchConfig
from engine.search.history import of_board
from engine.search.time_manager import Limits, Pace, budget

OVERHEAD = 0.003
"""Seconds of a timed move that ours leaves unused, for what comes after its search."""
TIMED_NODES = 100_000
"""Positions that ours may hold in a tree when time is all that bounds it."""
ENDLESS = 1 << 30
"""Simulations that no time allows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Player:
    """One row: who plays, and with what."""

    name: str
    """What the games and the summary call it."""
    limit: Limit = field(default_factory=Limit)
    """What a move may cost."""
    evaluator: Evaluator | None = None
    """Ours: what judges positions. None: an engine is started by its command."""
    search: SearchConfig | None = None
    """Ours: how to search. None: the evaluator's likeliest move is played, without search."""
    seed: int = 0
    """Ours: of what chance there is in the search."""
    command: tuple[str, ...] = ()
    """An engine: the words that start it."""
    options: Mapping[str, str] = field(default_factory=dict)
    """An engine: its UCI options."""


class Score(NamedTuple):
    """What a player thinks of its position: centipawns, or moves to mate, the mover's view."""

    centipawns: int | None
    mate: int | None = None
    """Above 0 the mover mates, below 0 it is mated."""


class Turn(NamedTuple):
    """A game in which a side is to move."""

    slot: int
    board: chess.Board
    """The game so far, with its moves; not to be changed."""
    clocks: tuple[float, float] | None
    """Seconds left of White and Black, None where nobody's clock runs."""
    moves_to_go: int | None = None
    """Moves until the mover's clock gains time, this one included; None where it only gains increments."""


class Answer(NamedTuple):
    """What a side did with its turn."""

    move: chess.Move | None
    score: Score | None
    seconds: float
    fault: str | None = None
    """Why there is no move: `crash`, `timeout` or `illegal move`..."""
    detail: str = ""
    """...and more of it for people."""


class Side(Protocol):
    """A player in `width` games."""

    def begin(self, slot: int, board: chess.Board, game: int) -> None:
        """Sit down at a new game, of this number, in a slot."""

    def answers(self, turns: Sequence[Turn]) -> list[Answer]:
        """Give the answers of these turns, in their order."""

    def follow(self, moves: Sequence[tuple[int, chess.Move, chess.Color]]) -> None:
        """Hear the moves (slot, move, who made it) that games go on with, one's own included."""

    def close(self) -> None:
        """Let go of everything."""


class Greedy:
    """Plays the evaluator's likeliest legal move; pawns become queens."""

    def __init__(self, evaluator: Evaluator) -> None:
        self.evaluator = evaluator

    def begin(self, slot: int, board: chess.Board, game: int) -> None:
        """There is nothing to keep."""

    def follow(self, moves: Sequence[tuple[int, chess.Move, chess.Color]]) -> None:
        """There is nothing to keep."""

    def close(self) -> None:
        """There is nothing to let go of."""

    def answers(self, turns: Sequence[Turn]) -> list[Answer]:
        """Judge all positions in one batch."""
        begun = time.perf_counter()
        planes_BP = np.zeros((len(turns), PLANES), dtype=np.uint64)
        for turn, planes_P in zip(turns, planes_BP, strict=True):
            legal_planes(from_board(turn.board), planes_P)
        logits_BA, wdl_BW = self.evaluator(planes_BP)
        labels_B = np.where(legal_mask(planes_BP), logits_BA, -np.inf).argmax(axis=1)
        moves = [_queened(turn.board, int(label)) for turn, label in zip(turns, labels_B, strict=True)]
        scores = [Score(centipawns(float(wdl_W[0] - wdl_W[2]))) for wdl_W in wdl_BW]
        seconds = time.perf_counter() - begun
        return [Answer(move, score, seconds) for move, score in zip(moves, scores, strict=True)]


def _queened(board: chess.Board, label: int) -> chess.Move:
    """Give the move of a label, a queen where a pawn arrives."""
    move = move_of(label, 0, board.turn)
    arrives = chess.square_rank(move.to_square) in (0, 7) and board.piece_type_at(move.from_square) == chess.PAWN
    return chess.Move(move.from_square, move.to_square, chess.QUEEN) if arrives else move


class Searching:
    """Plays what a batched search chooses; one tree a slot."""

    def __init__(self, player: Player, evaluator: Evaluator, config: SearchConfig, width: int) -> None:
        self.limit, self.config = player.limit, config
        self.search = Search(evaluator, config, games=width, seed=player.seed)
        if self.limit.timed:
            self._warm_up()

    def _warm_up(self) -> None:
        """Search a first time before any clock runs: kernels are compiled or loaded when they are first called."""
        board = chess.Board()
        self.begin(0, board, 0)
        move = self._answered([Turn(0, board, None)], 0.0, lambda: self.search.evaluations > 4)[0].move
        assert move is not None, "the first position has moves"
        self.follow([(0, move, board.turn)])

    def begin(self, slot: int, board: chess.Board, game: int) -> None:
        """Plant a tree."""
        position, keys = of_board(board)
        self.search.start(slot, position, keys, game=game)

    def follow(self, moves: Sequence[tuple[int, chess.Move, chess.Color]]) -> None:
        """Go down the trees."""
        labels_N = np.array([label_of(move, turn) for _, move, turn in moves], dtype=np.int64)
        promotions_N = np.array([move.promotion or 0 for _, move, _ in moves], dtype=np.int64)
        self.search.play_all(labels_N, promotions_N, np.array([slot for slot, _, _ in moves], dtype=np.int64))

    def close(self) -> None:
        """There is nothing to let go of."""

    def answers(self, turns: Sequence[Turn]) -> list[Answer]:
        """Search all positions side by side, in so many simulations or in the time there is."""
        begun = time.perf_counter()
        if not self.limit.timed:
            return self._answered(turns, begun, None)
        assert len(turns) == 1, "time is measured in one game a side"
        return self._answered(turns, begun, _deadline(self.limit, turns[0], begun))

    def _answered(self, turns: Sequence[Turn], begun: float, stop: Stop | None) -> list[Answer]:
        """Search until every root has its simulations, or until `stop` says so."""
        slots_N = np.array([turn.slot for turn in turns], dtype=np.int64)
        self.search.run(slots_N, simulations=None if stop is None else ENDLESS, stop=stop)
        labels_N, promotions_N = self.search.choose(slots_N)
        chosen = list(zip(turns, labels_N.tolist(), promotions_N.tolist(), strict=True))
        moves = [move_of(label, promotion, turn.board.turn) for turn, label, promotion in chosen]
        seconds = time.perf_counter() - begun
        scores = [self._score(turn.slot, label, promotion) for turn, label, promotion in chosen]
        return [Answer(move, score, seconds) for move, score in zip(moves, scores, strict=True)]

    def _score(self, slot: int, label: int, promotion: int) -> Score:
        """Say what the search thinks of the chosen move."""
        root = self.search.root(slot)
        index = int(np.flatnonzero((root.labels == label) & (root.promotions == promotion))[0])
        plies = int(root.mates[index])
        if plies:
            return Score(None, (abs(plies) + 1) // 2 * (1 if plies > 0 else -1))
        value = float(root.values[index])
        return Score(centipawns(root.value if math.isnan(value) else value))


def _deadline(limit: Limit, turn: Turn, begun: float) -> Callable[[], bool]:
    """Give what tells a search to stop, asked after every round."""
    left = turn.clocks[0 if turn.board.turn else 1] if limit.base is not None and turn.clocks else None
    limits = Limits(movetime=limit.movetime, left=left, increment=limit.increment, moves_to_go=turn.moves_to_go)
    bound = budget(limits, OVERHEAD).soft
    pace = Pace(begun, 0.0)

    def stop() -> bool:
        now = time.perf_counter()
        pace.round(now)
        return pace.too_late(bound, now)

    return stop
