"""A checkpoint that chooses moves on python-chess boards.

    from model import load

    player = load("datasets/checkpoints/xs")
    player.choose(chess.Board(), rating=1800, simulations=64).move   # as people rated 1800 play
    player.policies(chess.Board(), [1000, 2000])                     # what people of both ratings would play
    player.analyse(chess.Board(), 400).moves[0]                      # the best move by a search

Axes: A legal moves, R ratings, L labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import chess
import numpy as np
from numpy.typing import NDArray

from engine.board.movegen import legal_planes
from engine.board.position import castling_bits, en_passant_file, from_board
from engine.encoding.planes import PLANES, label_of
from engine.encoding.views import LAST_MOVES, last_moves_of
from engine.errors import UserError
from engine.search import Search, SearchConfig
from engine.search.chess_rules import position_and_history
from engine.search.human import Aim, HumanRoot, correct_policies, search_roots
from model.inference.analysis import Analysis, read_analysis
from model.inference.columns import Answer, check_conditions
from model.inference.evaluator import NetworkEvaluator, evaluator
from model.inference.onnx_evaluator import OnnxEvaluator, find_export


class GameOverError(UserError):
    """The position has no legal move."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A chosen move, and the network's policy and value."""

    move: chess.Move
    """The chosen move; a promotion is to a queen, since labels do not name the piece."""
    probabilities: dict[chess.Move, float]
    """The policy over legal moves, likeliest first, at temperature 1; under-promotions are part of the queen's."""
    value: float
    """Win minus loss for the side to move by the network alone, -1 to 1."""
    wdl: tuple[float, float, float]
    """Probabilities of win, draw, loss for the side to move, by the network alone."""
    simulations: int = 0
    """Simulations of the search that corrected the policy. 0 for the network's own policy: no search was asked for, or the
    checkpoint's card holds no correction (`fianchetto calibrate` fits one)."""


class Player:
    """A network that plays on boards."""

    def __init__(self, network: NetworkEvaluator, exported: OnnxEvaluator | None = None) -> None:
        """Take policies from `network`; searches use its export where there is one, since it is faster."""
        self.evaluator = network
        self._searched = exported or network

    def choose(
        self,
        board: chess.Board | str,
        temperature: float = 1.0,
        *,
        rating: int | None = None,
        opponent_rating: int | None = None,
        clock: int | None = None,
        simulations: int = 0,
        aim: Aim = "likelihood",
        random: np.random.Generator | None = None,
    ) -> Choice:
        """Choose a move by the policy at a temperature: 1 samples by its probabilities, 0 takes the likeliest.

        `board` is a python-chess board, a FEN, or "startpos". Ratings, and the mover's clock in seconds, are for networks that
        read them (ConditionError for others); None is unknown. The board's move stack is used where the network reads the last
        moves. With `simulations` the policy is corrected by a search (engine/search/human.py): `aim` is "likelihood" for the
        moves that people of the rating play, "strength" for moves that are as good as theirs. Raises GameOverError.
        """
        board = _read_board(board)
        moves = _list_moves(board)
        if not 0 <= temperature < float("inf"):
            raise UserError(f"temperature is {temperature}, and must be 0 or more")
        if simulations < 0:
            raise UserError(f"simulations is {simulations}, and must be 0 or more")
        conditions = {"elo": rating, "opponent_elo": opponent_rating, "clock": clock}
        known = {name: np.array([value]) for name, value in conditions.items() if value is not None}
        logits_1L, wdl_13 = answer = self._evaluate(board, known, 1)
        scores_1L, searched = logits_1L.astype(np.float64), 0
        if simulations and (correction := self._searched.corrections.get(aim)):
            scores_1L = correct_policies(self._searched, [board], answer, [rating or 0], correction, simulations)
            searched = simulations
        scores_A = scores_1L[0, _labels(board, moves)]
        if temperature == 0:
            chosen = int(scores_A.argmax())
        else:
            drawn_A = _softmax(scores_A / temperature)
            chosen = int((random or np.random.default_rng()).choice(len(moves), p=drawn_A))
        share_A = _softmax(scores_A)
        likely = {moves[index]: float(share_A[index]) for index in np.argsort(-share_A, kind="stable").tolist()}
        win, draw, loss = (float(part) for part in wdl_13[0])
        return Choice(moves[chosen], likely, win - loss, (win, draw, loss), searched)

    def policies(
        self, board: chess.Board | str, ratings: Sequence[int]
    ) -> tuple[list[chess.Move], NDArray[np.float64]]:
        """Return the legal moves, and their probabilities float64[R, A] when both players have each of these ratings.

        All ratings are one batch. A promotion is to a queen, as in `choose`. Raises GameOverError, and ConditionError for a
        network that reads no ratings.
        """
        board = _read_board(board)
        moves, rated = _list_moves(board), np.array(ratings, dtype=np.int64)
        if not len(rated):
            return moves, np.empty((0, len(moves)))
        logits_RL, _ = self._evaluate(board, {"elo": rated, "opponent_elo": rated}, len(rated))
        return moves, np.stack([_softmax(row) for row in logits_RL[:, _labels(board, moves)].astype(np.float64)])

    def analyse(self, board: chess.Board | str, simulations: int, *, lines: int = 3) -> Analysis:
        """Search a position for its best moves, and return them with the variations of the first `lines`.

        The search is not conditioned on ratings. The board's move stack is used for repetitions and for the last moves that
        the network reads. Raises GameOverError.
        """
        board = _read_board(board)
        _list_moves(board)
        logits_1L, wdl_13 = self._evaluate(board, {}, 1)
        search = Search(self._searched, SearchConfig(simulations=simulations))
        search_roots(search, [HumanRoot(*position_and_history(board), logits_1L[0], wdl_13[0])], simulations)
        return read_analysis(search, board, lines)

    def _evaluate(self, board: chess.Board, conditions: dict[str, NDArray[np.int64]], count: int) -> Answer:
        """Evaluate a board in `count` rows, which differ in their conditions."""
        numbers = {name: values.tolist() for name, values in conditions.items()}
        for row in zip(*numbers.values(), strict=True):
            given = dict(zip(numbers, row, strict=True))
            check_conditions(f"the network {self.evaluator.preset.name}", self.evaluator.columns, given)
        columns = {name: np.repeat(column, count, axis=0) for name, column in self._columns(board).items()}
        return self.evaluator(columns["planes"], columns | conditions)

    def _columns(self, board: chess.Board) -> dict[str, NDArray[Any]]:
        """Return a board as one row of a shard, with all columns that the network reads and a board determines."""
        position = from_board(board)
        planes_BP = np.zeros((1, PLANES), dtype=np.uint64)
        legal_planes(position, planes_BP[0])
        columns: dict[str, NDArray[Any]] = {
            "planes": planes_BP,
            "castling": np.array([castling_bits(position)], np.int64),
            "ep_file": np.array([en_passant_file(position)], np.int64),
            "halfmove": np.array([min(board.halfmove_clock, 255)], np.int64),
        }
        last = dict(zip(LAST_MOVES, last_moves_of(board, len(LAST_MOVES)), strict=True))
        read = {name: np.array([move], np.int64) for name, move in last.items() if name in self.evaluator.columns}
        return columns | read


def _read_board(board: chess.Board | str) -> chess.Board:
    """Return a board as it is, or make one of a FEN or "startpos"."""
    if isinstance(board, chess.Board):
        return board
    if board == "startpos":
        return chess.Board()
    try:
        return chess.Board(board)
    except ValueError as error:
        raise UserError(f"{board!r} is neither a FEN nor 'startpos': {error}") from error


def _list_moves(board: chess.Board) -> list[chess.Move]:
    """Return the legal moves, of promotions the queen's alone, as labels have them. Raises GameOverError if there is none."""
    moves = [move for move in board.legal_moves if move.promotion in (None, chess.QUEEN)]
    if not moves:
        raise GameOverError(f"there is no legal move in {board.fen()}")
    return moves


def _labels(board: chess.Board, moves: Sequence[chess.Move]) -> list[int]:
    return [label_of(move, board.turn) for move in moves]


def _softmax(scores_A: NDArray[np.float64]) -> NDArray[np.float64]:
    powers_A = np.exp(scores_A - scores_A.max())
    return powers_A / powers_A.sum()  # type: ignore[no-any-return]


def load(directory: str | Path, *, device: str = "auto", amp: str = "auto") -> Player:
    """Load a checkpoint as a player; raises the CheckpointErrors of `model.checkpoint.load`, and OnnxError."""
    network = evaluator(Path(directory), device=device, amp=amp)
    return Player(network, find_export(Path(directory)) if network.device.type == "cpu" else None)
