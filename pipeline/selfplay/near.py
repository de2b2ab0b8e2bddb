"""Positions a few random moves away from human games: searches visit such positions, games rarely contain them.

A value that has learned from games alone has not seen them.

Axes: R rows.
"""

from typing import Any

import chess
import numpy as np
from numpy.typing import NDArray

from engine.board.position import castling_bits, en_passant_file, from_board, to_board
from engine.encoding.planes import planes_of
from engine.encoding.views import NO_LABEL
from pipeline.dataset.files.columns import BATCH_SENTINELS
from pipeline.dataset.files.stored_planes import row_positions

MOST_MOVES = 4
"""Maximum number of moves between a position of a game and the one that is searched."""


def step_off(rows: dict[str, NDArray[Any]], seed: int) -> None:
    """Play one to MOST_MOVES random legal moves in each row, in place; a game ends before the move that would end it.

    The rows then belong to no game: no label, no evaluation, no result (`plies` is 0).
    """
    boards = [to_board(position) for position in row_positions(rows)]
    chance = np.random.Generator(np.random.PCG64(seed))
    moved = [_play(board, chance) for board in boards]
    rows["planes"] = planes_of(boards)
    rows["ply"] = (rows["ply"] + np.array(moved)).astype(rows["ply"].dtype)
    rows["halfmove"] = np.array([board.halfmove_clock for board in boards]).astype(rows["halfmove"].dtype)
    positions = [from_board(board) for board in boards]
    for name, read in (("castling", castling_bits), ("ep_file", en_passant_file)):
        rows[name] = np.array([int(read(position)) for position in positions]).astype(rows[name].dtype)
    rows["label"] = np.full(len(boards), NO_LABEL, dtype=rows["label"].dtype)
    rows["eval"] = np.full(len(boards), BATCH_SENTINELS["eval"], dtype=rows["eval"].dtype)
    for name in ("plies", "promotion", "repetition", "result"):
        rows[name] = np.zeros_like(rows[name])


def _play(board: chess.Board, chance: np.random.Generator) -> int:
    """Play the random moves of one row and return their number."""
    for played in range(int(chance.integers(1, MOST_MOVES, endpoint=True))):
        moves = list(board.legal_moves)
        board.push(moves[chance.integers(len(moves))])
        if board.is_checkmate() or board.is_stalemate() or board.is_insufficient_material():
            board.pop()
            return played
    return played + 1
