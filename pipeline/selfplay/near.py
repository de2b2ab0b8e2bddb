"""Positions a few random moves away from human games: searches visit such positions, games rarely
contain them.

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
from engine.progress import Progress, Stop, Tick, never, silent
from pipeline.dataset.files.columns import BATCH_SENTINELS
from pipeline.dataset.files.stored_planes import row_positions
from pipeline.errors import Stopped

MOST_MOVES = 4
"""Maximum number of moves between a position of a game and the one that is searched."""
BLOCK = 4096
"""Rows whose boards are in memory together: a python-chess board takes two kilobytes."""


def step_off(
    rows: dict[str, NDArray[Any]], seed: int, progress: Progress = silent, stop: Stop = never
) -> None:
    """Play one to MOST_MOVES random legal moves in each row, in place, not ending the game.

    The rows then belong to no game: no label, no evaluation, no result (`plies` is 0). Raises
    Stopped.
    """
    chance, count = np.random.Generator(np.random.PCG64(seed)), len(rows["ply"])
    for first in range(0, count, BLOCK):
        if stop():
            raise Stopped(
                "stopped while random moves were played; run the same command to begin anew"
            )
        _step_block({name: column[first : first + BLOCK] for name, column in rows.items()}, chance)
        progress(Tick(min(first + BLOCK, count), count, "positions moved"))


def _step_block(rows: dict[str, NDArray[Any]], chance: np.random.Generator) -> None:
    """Play the moves of some rows, which are views."""
    boards = [to_board(position) for position in row_positions(rows)]
    rows["ply"] += np.array([_play(board, chance) for board in boards]).astype(rows["ply"].dtype)
    rows["planes"][:] = planes_of(boards)
    rows["halfmove"][:] = [board.halfmove_clock for board in boards]
    positions = [from_board(board) for board in boards]
    for name, read in (("castling", castling_bits), ("ep_file", en_passant_file)):
        rows[name][:] = [int(read(position)) for position in positions]
    rows["label"][:] = NO_LABEL
    rows["eval"][:] = BATCH_SENTINELS["eval"]
    for name in ("plies", "promotion", "repetition", "result"):
        rows[name][:] = 0


def _play(board: chess.Board, chance: np.random.Generator) -> int:
    """Play the random moves of one row and return their number."""
    for played in range(int(chance.integers(1, MOST_MOVES, endpoint=True))):
        moves = list(board.legal_moves)
        board.push(moves[chance.integers(len(moves))])
        if board.is_checkmate() or board.is_stalemate() or board.is_insufficient_material():
            board.pop()
            return played
    return played + 1
