"""A python-chess game as what a search starts from."""

import chess
import numpy as np

from engine.board.movegen import MOVE_PLANES, TYPES, legal_key, legal_planes
from engine.board.position import Position, from_board


def key_of(position: Position) -> int:
    """Return engine.board.position.key of a position, with its en-passant square counted only where the capture is legal."""
    planes = np.empty(MOVE_PLANES + TYPES, dtype=np.uint64)
    legal_planes(position, planes)
    return int(legal_key(position, planes))


def of_board(board: chess.Board) -> tuple[Position, list[int]]:
    """Return the position (uint64[16]) and the keys of those before it since the last capture or pawn move, oldest first."""
    back = board.copy()
    keys: list[int] = []
    while back.move_stack and len(keys) < board.halfmove_clock:
        back.pop()
        keys.append(key_of(from_board(back)))
    return from_board(board), keys[::-1]
