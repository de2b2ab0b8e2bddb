"""A checkpoint that chooses moves on python-chess boards.

    from model import load

    choice = load("datasets/checkpoints/xs").choose(chess.Board(), temperature=1.0)
    choice.move, choice.probabilities, choice.value

Axes: A legal moves.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import chess
import numpy as np
from numpy.typing import NDArray

from engine.board.movegen import legal_planes
from engine.board.position import castling_bits, en_passant_file, from_board
from engine.encoding.planes import PLANES, label_of
from engine.encoding.views import LAST_MOVES, last_moves_of, view
from engine.errors import UserError
from model.inference.columns import check_conditions
from model.inference.evaluator import NetworkEvaluator, evaluator


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
    """Win minus loss for the side to move, -1 to 1."""
    wdl: tuple[float, float, float]
    """Probabilities of win, draw, loss for the side to move."""


class Player:
    """A network that plays on boards."""

    def __init__(self, network: NetworkEvaluator) -> None:
        self.evaluator = network

    def choose(
        self,
        board: chess.Board | str,
        temperature: float = 1.0,
        *,
        elo: int | None = None,
        opponent_elo: int | None = None,
        clock: int | None = None,
        random: np.random.Generator | None = None,
    ) -> Choice:
        """Choose a move by the policy at a temperature: 1 samples by its probabilities, 0 takes the likeliest.

        `board` is a python-chess board, a FEN, or "startpos".
        Ratings, and the mover's clock in seconds, are for networks that read them (ConditionError for others); None is
        unknown. The board's move stack is used where the network reads the last moves. Raises GameOverError.
        """
        board = _read_board(board)
        moves = [move for move in board.legal_moves if move.promotion in (None, chess.QUEEN)]
        if not moves:
            raise GameOverError(f"there is no legal move in {board.fen()}")
        if not 0 <= temperature < float("inf"):
            raise UserError(f"temperature is {temperature}, and must be 0 or more")
        conditions = {"elo": elo, "opponent_elo": opponent_elo, "clock": clock}
        columns = self._columns(board, {name: value for name, value in conditions.items() if value is not None})
        logits_BL, wdl_B3 = self.evaluator(columns.pop("planes"), columns)
        scores_A = logits_BL[0, [label_of(move, board.turn) for move in moves]].astype(np.float64)
        share_A = _softmax(scores_A)
        if temperature == 0:
            chosen = int(scores_A.argmax())
        else:
            drawn_A = _softmax(scores_A / temperature)
            chosen = int((random or np.random.default_rng()).choice(len(moves), p=drawn_A))
        order = np.argsort(-share_A, kind="stable").tolist()
        win, draw, loss = (float(part) for part in wdl_B3[0])
        likely = {moves[index]: float(share_A[index]) for index in order}
        return Choice(moves[chosen], likely, win - loss, (win, draw, loss))

    def _columns(self, board: chess.Board, conditions: dict[str, int]) -> dict[str, NDArray[Any]]:
        """Return a board as one row of a shard, with all columns that the network reads and a board determines."""
        check_conditions(f"the network {self.evaluator.preset.name}", self.evaluator.columns, conditions)
        position = from_board(board)
        planes_BP = np.zeros((1, PLANES), dtype=np.uint64)
        legal_planes(position, planes_BP[0])
        columns: dict[str, NDArray[Any]] = {
            "planes": planes_BP,
            "castling": np.array([castling_bits(position)], np.int64),
            "ep_file": np.array([en_passant_file(position)], np.int64),
            "halfmove": np.array([min(board.halfmove_clock, 255)], np.int64),
        }
        last = view(self.evaluator.preset.view).last
        for name, move in zip(LAST_MOVES, last_moves_of(board, last), strict=False):
            columns[name] = np.array([move], np.int64)
        return columns | {name: np.array([value], np.int64) for name, value in conditions.items()}


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


def _softmax(scores_A: NDArray[np.float64]) -> NDArray[np.float64]:
    powers_A = np.exp(scores_A - scores_A.max())
    return powers_A / powers_A.sum()  # type: ignore[no-any-return]


def load(directory: str | Path, *, device: str = "auto", amp: str = "auto") -> Player:
    """Load a checkpoint as a player; raises the CheckpointErrors of `model.checkpoint.load`."""
    return Player(evaluator(Path(directory), device=device, amp=amp))
