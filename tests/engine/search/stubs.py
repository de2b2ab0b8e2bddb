"""Evaluators with fixed results, and helpers that search boards and return moves in UCI."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import chess
import numpy as np
from numba import njit

from engine.board.bitboard import EMPTY, U, lowest_square
from engine.board.rng import splitmix64
from engine.encoding import planes
from engine.encoding.planes import LABELS, label_from_move, move_from_label
from engine.evaluation.evaluator import Evaluator
from engine.search import Root, Search, SearchConfig
from engine.search.chess_rules import position_and_history

Arrays = tuple[np.ndarray, np.ndarray]
MIDDLEGAME = "r1bq1rk1/pp2bppp/2n1pn2/3p4/2PP4/2N2N2/PP2BPPP/R1BQ1RK1 w - - 0 9"


def wdl(value: float) -> tuple[float, float, float]:
    """Return win, draw and loss, without draws, of a value (win - loss)."""
    return (1 + value) / 2, 0.0, (1 - value) / 2


def planes_of(board: chess.Board) -> np.ndarray:
    return planes.planes_of([board])[0]


class TableEvaluator:
    """Evaluator with a table: FEN -> (value for the mover, priors by UCI); other rows are even."""

    def __init__(self, table: Mapping[str, tuple[float, Mapping[str, float]]]) -> None:
        self.answers: dict[bytes, Arrays] = {}
        for fen, (value, priors) in table.items():
            board = chess.Board(fen)
            logits = np.full(LABELS, -30.0, dtype=np.float32)
            for uci, prior in priors.items():
                logits[label_from_move(board.parse_uci(uci), board.turn)] = math.log(prior)
            outcome = np.array(wdl(value), dtype=np.float32)
            self.answers[planes_of(board).tobytes()] = logits, outcome
        self.even = np.zeros(LABELS, dtype=np.float32), np.array(wdl(0.0), dtype=np.float32)

    def __call__(self, planes_BP: np.ndarray) -> Arrays:
        rows = [self.answers.get(row.tobytes(), self.even) for row in planes_BP]
        return np.stack([row[0] for row in rows]), np.stack([row[1] for row in rows])


@njit(cache=True)
def _unit_hash(word: Any) -> Any:
    """Hash a word to a number in 0..1."""
    return np.float64(splitmix64(word) >> U(40)) / 2.0**24


@njit(cache=True)
def _write_hashes(planes_BP: Any, spread: Any, salt: Any, logits_BA: Any, wdl_B3: Any) -> None:
    for row in range(len(planes_BP)):
        name = U(0)
        for plane in planes_BP[row]:
            name = splitmix64(name ^ plane)
        name += U(salt) * U(0x9E37_79B9_7F4A_7C15)
        for kind in range(64):
            sources = planes_BP[row, 13 + kind]
            while sources != EMPTY:
                label = np.int64(kind) * 64 + np.int64(lowest_square(sources))
                sources &= sources - U(1)
                logits_BA[row, label] = spread * _unit_hash(
                    name + U(label) * U(0xD1B5_4A32_D192_ED03)
                )
        total = 0.0
        for outcome in range(3):
            share = _unit_hash(name ^ (U(outcome + 1) << U(50))) ** 3
            wdl_B3[row, outcome] = share
            total += share
        for outcome in range(3):
            wdl_B3[row, outcome] /= total


class HashEvaluator:
    """Evaluator with pseudo-random results: hashes of rows. Priors differ by e**spread at most."""

    def __init__(self, spread: float = 3.0, salt: int = 0) -> None:
        self.spread, self.salt = spread, salt

    def __call__(self, planes_BP: np.ndarray) -> Arrays:
        logits_BA = np.full((len(planes_BP), LABELS), -np.inf, dtype=np.float32)
        wdl_B3 = np.empty((len(planes_BP), 3), dtype=np.float32)
        _write_hashes(planes_BP, self.spread, self.salt, logits_BA, wdl_B3)
        return logits_BA, wdl_B3


def board_of(fen: str, moves: str | Iterable[str] = ()) -> chess.Board:
    """Return the board of a FEN after moves in UCI, with its move stack."""
    board = chess.Board(fen)
    for uci in moves.split() if isinstance(moves, str) else moves:
        board.push_uci(uci)
    return board


def start_board(search: Search, slot: int, board: chess.Board, game: int | None = None) -> None:
    """Start a slot at the position and history of a board."""
    position, past = position_and_history(board)
    search.start(slot, position, past, game=game)


def search_board(
    board: chess.Board | str,
    evaluator: Evaluator,
    *,
    seed: int = 0,
    allowed: Sequence[str] | None = None,
    path: str = "",
    **options: Any,
) -> tuple[Search, Root]:
    """Search a board, then play the moves of `path` (UCI); return the search and its root."""
    board = chess.Board(board) if isinstance(board, str) else board.copy()
    search = Search(evaluator, SearchConfig(**{"policy_temperature": 1.0} | options), seed=seed)
    start_board(search, 0, board)
    pairs = None
    if allowed is not None:
        moves = [chess.Move.from_uci(uci) for uci in allowed]
        pairs = [(label_from_move(move, board.turn), move.promotion or 0) for move in moves]
    search.run(allowed=pairs)
    for uci in path.split():
        play(search, 0, board, uci)
        board.push_uci(uci)
    return search, search.root(0)


def play(search: Search, slot: int, board: chess.Board, uci: str) -> bool:
    """Play a UCI move of `board` in a slot; return whether its subtree is kept."""
    move = board.parse_uci(uci)
    return search.play(slot, label_from_move(move, board.turn), move.promotion or 0)


def list_ucis(root: Root, turn: chess.Color) -> list[str]:
    """Return the root's moves in UCI."""
    pairs = zip(root.labels.tolist(), root.promotions.tolist(), strict=True)
    return [move_from_label(label, promotion, turn).uci() for label, promotion in pairs]


def by_uci(root: Root, turn: chess.Color, field: str = "visits") -> dict[str, Any]:
    """Return a field of the root's moves by UCI."""
    return dict(zip(list_ucis(root, turn), getattr(root, field).tolist(), strict=True))


def choose_uci(search: Search, slot: int, turn: chess.Color, **how: Any) -> str:
    """Return the move that a slot's search chooses, in UCI; "" if the game is over."""
    labels, promotions = search.choose(np.array([slot], dtype=np.int64), **how)
    return "" if labels[0] < 0 else move_from_label(int(labels[0]), int(promotions[0]), turn).uci()
