"""Evaluate boards with the columns that the evaluator reads, and choose moves by its policy.

All conversion of boards, games and players to columns is in this module.

Axes: B boards, A labels, M legal moves by label, W outcomes.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import chess
import numpy as np
from numpy.typing import NDArray

from engine.board.position import castling_bits, en_passant_file, from_board
from engine.encoding.planes import label_from_move, planes_of
from engine.encoding.views import LAST_MOVES, encode_last_moves
from engine.errors import UserError
from engine.evaluation.evaluator import Evaluator

Answer = tuple[NDArray[np.float32], NDArray[np.float32]]
"""Logits float32[B, A] by the mover's labels, and win, draw, loss float32[B, W]."""
MAX_CLOCK_SECONDS, MAX_INCREMENT_SECONDS, MAX_HALFMOVE = 65_534, 254, 255
"""Maximum values of columns; one more means unknown, except for the halfmove clock."""
SPEEDS = {"bullet": (60, 0), "blitz": (180, 0), "rapid": (600, 0), "classical": (1800, 0)}
"""Time control assumed for each of Lichess's speeds: seconds at the start and per move."""


def parse_time_control(text: str) -> tuple[int, int]:
    """Parse `180+2` or a name in SPEEDS into seconds of base and increment; raise UserError."""
    text = str(text)
    if text in SPEEDS:
        return SPEEDS[text]
    match = re.fullmatch(r"([0-9]{1,5})\+([0-9]{1,3})", text)
    if match is None:
        names = ", ".join(SPEEDS)
        raise UserError(
            f"{text[:40]!r} is not a time control: give seconds+increment (180+2), or {names}"
        )
    return min(int(match[1]), MAX_CLOCK_SECONDS), min(int(match[2]), MAX_INCREMENT_SECONDS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Conditions:
    """Inputs of a policy besides the game: ratings and clocks; None if unknown."""

    rating: int | None = None
    """The mover's rating."""
    opponent_rating: int | None = None
    """The opponent's rating; by default the mover's, since training data has both or neither."""
    clock: float | None = None
    """Seconds on the mover's clock."""
    base: float | None = None
    """Seconds on each clock at the start of the game."""
    increment: float | None = None
    """Seconds added per move; used only with `base`, since training data has both or neither."""

    def columns(self) -> dict[str, int]:
        """Return the known conditions by the names of their columns."""
        opponent = self.rating if self.opponent_rating is None else self.opponent_rating
        is_timed = self.base is not None and self.increment is not None
        numbers = {
            "elo": self.rating,
            "opponent_elo": opponent,
            "clock": _clip_seconds(self.clock, MAX_CLOCK_SECONDS),
            "base": _clip_seconds(self.base, MAX_CLOCK_SECONDS) if is_timed else None,
            "increment": _clip_seconds(self.increment, MAX_INCREMENT_SECONDS) if is_timed else None,
        }
        return {name: number for name, number in numbers.items() if number is not None}


def _clip_seconds(seconds: float | None, maximum: int) -> int | None:
    return None if seconds is None else min(max(int(seconds), 0), maximum)


def read_columns(
    evaluator: Evaluator, boards: Sequence[chess.Board], conditions: Sequence[Conditions]
) -> dict[str, NDArray[np.integer]]:
    """Return the columns that the evaluator reads, [B] each, except those unknown for all rows."""
    unknown_values: dict[str, int] = getattr(evaluator, "columns", {})
    if not unknown_values:
        return {}
    rows = []
    for board, condition in zip(boards, conditions, strict=True):
        position = from_board(board)
        row: dict[str, Any] = {
            "castling": castling_bits(position),
            "ep_file": en_passant_file(position),
            "halfmove": min(board.halfmove_clock, MAX_HALFMOVE),
        }
        row |= zip(LAST_MOVES, encode_last_moves(board, len(LAST_MOVES)), strict=True)
        rows.append(row | condition.columns())
    names = [name for name in unknown_values if any(name in row for row in rows)]
    return {
        name: np.array([row.get(name, unknown_values[name]) for row in rows], np.int64)
        for name in names
    }


def evaluate(
    evaluator: Evaluator, boards: Sequence[chess.Board], conditions: Sequence[Conditions]
) -> Answer:
    """Evaluate boards in one batch, with all columns that the evaluator reads.

    Returns copies of its logits and of its win, draw and loss probabilities.
    """
    columns = read_columns(evaluator, boards, conditions)
    network: Any = evaluator
    planes_BP = planes_of(boards)
    logits_BA, wdl_BW = network(planes_BP, columns) if columns else evaluator(planes_BP)
    return np.array(logits_BA, np.float32), np.array(wdl_BW, np.float32)


class Policy(NamedTuple):
    """Moves of a board and the logarithms of their probabilities, up to a constant."""

    moves: list[chess.Move]
    """One move for each label; a promotion is to the best allowed piece, which labels omit."""
    labels: list[int]
    logits: NDArray[np.float64]  # [M]

    def shares(self, temperature: float = 1.0) -> NDArray[np.float64]:
        """Return the probabilities at a temperature above 0, float64[M]."""
        with np.errstate(over="ignore"):
            powers_M = np.exp((self.logits - self.logits.max()) / temperature)
        return powers_M / powers_M.sum()  # type: ignore[no-any-return]

    def rank_moves(self) -> list[int]:
        """Return the indices of the moves, likeliest first; ties are broken by label."""
        order: list[int] = np.lexsort((np.array(self.labels), -self.logits)).tolist()
        return order

    def pick(self, temperature: float, random: np.random.Generator) -> int:
        """Return the index of a move sampled at a temperature; at 0, that of the likeliest move."""
        if temperature == 0:
            return self.rank_moves()[0]
        return int(random.choice(len(self.moves), p=self.shares(temperature)))


def make_policy(
    board: chess.Board, logits_A: NDArray[np.floating], allowed: Sequence[chess.Move] = ()
) -> Policy:
    """Return the policy over the legal moves, or only over the `allowed` ones."""
    by_label: dict[int, chess.Move] = {}
    for move in allowed or board.legal_moves:
        label = label_from_move(move, board.turn)
        if label not in by_label or (move.promotion or 0) > (by_label[label].promotion or 0):
            by_label[label] = move
    labels = list(by_label)
    return Policy(list(by_label.values()), labels, logits_A[labels].astype(np.float64))
