"""Evaluate boards with the columns that the evaluator reads, and choose moves by its policy.

Only this module maps boards, games and players to columns.

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
from engine.encoding.planes import label_of, planes_of
from engine.encoding.views import LAST_MOVES, last_moves_of
from engine.errors import UserError
from engine.evaluation.evaluator import Evaluator

Answer = tuple[NDArray[np.float32], NDArray[np.float32]]
"""Logits float32[B, A] by the mover's labels, and win, draw, loss float32[B, W]."""
MAX_CLOCK, MAX_INCREMENT, MAX_HALFMOVE = 65_534, 254, 255
SPEEDS = {"bullet": (60, 0), "blitz": (180, 0), "rapid": (600, 0), "classical": (1800, 0)}
"""Time control assumed for each of Lichess's speeds: seconds at the start, and added per move."""


def parse_time_control(text: str) -> tuple[int, int]:
    """Return base and increment in seconds of `180+2` or a name in SPEEDS, else raise UserError."""
    text = str(text)
    if text in SPEEDS:
        return SPEEDS[text]
    found = re.fullmatch(r"([0-9]{1,5})\+([0-9]{1,3})", text)
    if found is None:
        names = ", ".join(SPEEDS)
        raise UserError(f"a time control is seconds, such as 180+2, or {names}, not {text[:40]!r}")
    return min(int(found[1]), MAX_CLOCK), min(int(found[2]), MAX_INCREMENT)


@dataclass(frozen=True, kw_only=True, slots=True)
class Conditions:
    """Inputs of a policy besides the game: ratings and clocks; None is unknown."""

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
        """Return the columns of the known conditions."""
        opponent = self.rating if self.opponent_rating is None else self.opponent_rating
        is_timed = self.base is not None and self.increment is not None
        numbers = {
            "elo": self.rating,
            "opponent_elo": opponent,
            "clock": _clip(self.clock, MAX_CLOCK),
            "base": _clip(self.base, MAX_CLOCK) if is_timed else None,
            "increment": _clip(self.increment, MAX_INCREMENT) if is_timed else None,
        }
        return {name: number for name, number in numbers.items() if number is not None}


def _clip(seconds: float | None, most: int) -> int | None:
    """Return whole seconds from 0 to `most`; None stays None."""
    return None if seconds is None else min(max(int(seconds), 0), most)


def read_columns(
    evaluator: Evaluator, boards: Sequence[chess.Board], conditions: Sequence[Conditions]
) -> dict[str, NDArray[np.integer]]:
    """Return the columns that the evaluator reads, [B] each, except those unknown for all rows."""
    unknown: dict[str, int] = getattr(evaluator, "columns", {})
    if not unknown:
        return {}
    rows = []
    for board, condition in zip(boards, conditions, strict=True):
        position = from_board(board)
        row: dict[str, Any] = {
            "castling": castling_bits(position),
            "ep_file": en_passant_file(position),
            "halfmove": min(board.halfmove_clock, MAX_HALFMOVE),
        }
        row |= zip(LAST_MOVES, last_moves_of(board, len(LAST_MOVES)), strict=True)
        rows.append(row | condition.columns())
    names = [name for name in unknown if any(name in row for row in rows)]
    return {
        name: np.array([row.get(name, unknown[name]) for row in rows], np.int64) for name in names
    }


def evaluate(
    evaluator: Evaluator, boards: Sequence[chess.Board], conditions: Sequence[Conditions]
) -> Answer:
    """Evaluate boards in one batch, with all columns that the evaluator reads; return copies."""
    columns = read_columns(evaluator, boards, conditions)
    network: Any = evaluator
    planes_BP = planes_of(boards)
    logits_BA, wdl_BW = network(planes_BP, columns) if columns else evaluator(planes_BP)
    return np.array(logits_BA, np.float32), np.array(wdl_BW, np.float32)


class Policy(NamedTuple):
    """Moves of a board and the logarithms of their probabilities, up to a constant."""

    moves: list[chess.Move]
    """One move per label. Labels omit the promotion piece, so it is the best allowed one."""
    labels: list[int]
    logits: NDArray[np.float64]  # [M]

    def shares(self, temperature: float = 1.0) -> NDArray[np.float64]:
        """Return the probabilities at a temperature above 0, float64[M]."""
        with np.errstate(over="ignore"):
            powers_M = np.exp((self.logits - self.logits.max()) / temperature)
        return powers_M / powers_M.sum()  # type: ignore[no-any-return]

    def ranked(self) -> list[int]:
        """Return the moves' indices, likeliest first; ties are broken by label."""
        order: list[int] = np.lexsort((np.array(self.labels), -self.logits)).tolist()
        return order

    def pick(self, temperature: float, random: np.random.Generator) -> int:
        """Sample the index of a move at a temperature; 0 returns the likeliest move."""
        if temperature == 0:
            return self.ranked()[0]
        return int(random.choice(len(self.moves), p=self.shares(temperature)))


def policy_of(
    board: chess.Board, logits_A: NDArray[np.floating], allowed: Sequence[chess.Move] = ()
) -> Policy:
    """Return the policy over the legal moves, or only over `allowed`, from logits."""
    found: dict[int, chess.Move] = {}
    for move in allowed or board.legal_moves:
        label = label_of(move, board.turn)
        if label not in found or (move.promotion or 0) > (found[label].promotion or 0):
            found[label] = move
    labels = list(found)
    return Policy(list(found.values()), labels, logits_A[labels].astype(np.float64))
