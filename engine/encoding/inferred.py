"""Estimate the columns of castling rights, en passant and the halfmove clock from planes alone.

column       estimate
castling     a right for each king and rook at home, even if one of them has moved and returned
ep_file      the file of a legal en-passant capture; 255 if no pawn can capture
halfmove     0

Columns are those of `pipeline.dataset.files.columns`. Axes: B rows, P planes.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.board.movegen import MOVE_PLANES
from engine.board.position import KING, PAWN, ROOK
from engine.encoding.planes import PIECE_PLANES

_CASTLING_HOMES = ((0, 60, 63, 1), (0, 60, 56, 2), (1, 4, 7, 4), (1, 4, 0, 8))
"""For each castling right: side (0 is the mover), square of the king, square of the rook, and the
right's bit in the column `castling`."""
_SIXTH_RANK = np.uint64(0x0000_0000_00FF_0000)
_NORTH_EAST_PLANE, _NORTH_WEST_PLANE = MOVE_PLANES + 1, MOVE_PLANES + 7
NO_EP_FILE = 255
"""Value of the column `ep_file` without an en-passant square."""
INFERRED_COLUMNS = ("castling", "ep_file", "halfmove")


def _infer_castling(planes_BP: NDArray[np.uint64]) -> NDArray[np.uint8]:
    rights_B = np.zeros(len(planes_BP), dtype=np.uint8)
    for side, king, rook, right in _CASTLING_HOMES:
        home_B = (planes_BP[:, KING + side] >> np.uint64(king)) & (
            planes_BP[:, ROOK + side] >> np.uint64(rook)
        )
        rights_B |= ((home_B & np.uint64(1)) * np.uint64(right)).astype(np.uint8)
    return rights_B


def _infer_ep_file(planes_BP: NDArray[np.uint64]) -> NDArray[np.uint8]:
    pawns_B = planes_BP[:, PAWN]
    opponent_B = np.bitwise_or.reduce(planes_BP[:, 1:PIECE_PLANES:2], axis=1)
    reached_B = (planes_BP[:, _NORTH_EAST_PLANE] & pawns_B) >> np.uint64(7) | (
        planes_BP[:, _NORTH_WEST_PLANE] & pawns_B
    ) >> np.uint64(9)
    taken_B = reached_B & ~opponent_B & _SIXTH_RANK  # a diagonal pawn move to an empty square
    row_B = (taken_B >> np.uint64(16)).astype(np.uint8)
    files_B = np.log2(np.maximum(row_B, 1)).astype(np.uint8)
    return np.where(row_B != 0, files_B, np.uint8(NO_EP_FILE))


def infer_columns(planes_BP: NDArray[np.uint64]) -> dict[str, NDArray[Any]]:
    """Return the estimated columns, uint8[B] each, by name, from stored planes uint64[B, 77]."""
    halfmove_B = np.zeros(len(planes_BP), dtype=np.uint8)
    columns_B = _infer_castling(planes_BP), _infer_ep_file(planes_BP), halfmove_B
    return dict(zip(INFERRED_COLUMNS, columns_B, strict=True))
