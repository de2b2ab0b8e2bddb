"""The kind of the move played and the phase of the game, by which reports are sliced.

Axes: B rows, P planes, K piece types (pawn to king).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.encoding.planes import LABELS, target_table
from engine.encoding.views import NO_LAST_MOVE
from engine.evaluation.move_features import CHECK, legal_move_features
from pipeline.dataset.files.shards import Batch

PIECES = ("pawn", "knight", "bishop", "rook", "queen", "king")
PAWN, KING = 0, 5
KINDS = ("capture", "recapture", "check", "castling", "promotion", "quiet")
"""A move can have several kinds; `recapture` takes the piece that moved last, `quiet` is none of
the others."""
PHASES = ("opening", "middlegame", "endgame")
PHASE_PIECES = (10, 6)
"""Maximum number of knights, bishops, rooks and queens in a middlegame and in an endgame, as in
Lichess's divider."""


def move_columns(batch: Batch) -> dict[str, NDArray[Any]]:
    """Return `piece`, `phase` and a boolean column for each of KINDS, [B] each.

    They describe the move that was played (`label`) on the board before it. Needs the columns
    planes, label and last_move.
    """
    planes_BP, label_B = batch["planes"], batch["label"].astype(np.int64)
    start_B, target_B = label_B % 64, target_table()[label_B].astype(np.int64)
    rows_B = np.arange(len(label_B))
    own_BK = (planes_BP[:, 0:12:2] >> start_B[:, None].astype(np.uint64)) & np.uint64(1)
    piece_B = own_BK.argmax(axis=1)
    theirs_BK = (planes_BP[:, 1:12:2] >> target_B[:, None].astype(np.uint64)) & np.uint64(1)
    aside_B = np.abs(start_B % 8 - target_B % 8)
    capture_B = theirs_BK.any(axis=1) | ((piece_B == PAWN) & (aside_B > 0))
    last_B = batch["last_move"].astype(np.int64)
    features = legal_move_features(planes_BP)
    place_B = np.searchsorted(features["moves"], rows_B * LABELS + label_B)
    kinds = {
        "capture": capture_B,
        "recapture": capture_B & (last_B != NO_LAST_MOVE) & (last_B % 64 == target_B),
        "check": features["move_features"][place_B, CHECK] > 0,
        "castling": (piece_B == KING) & (aside_B == 2),
        "promotion": (piece_B == PAWN) & ((target_B < 8) | (target_B >= 56)),
    }
    officers_B = np.bitwise_count(planes_BP[:, 2:10]).sum(axis=1, dtype=np.int64)
    phase_B = (officers_B <= PHASE_PIECES[0]).astype(np.int8) + (officers_B <= PHASE_PIECES[1])
    quiet_B = ~np.logical_or.reduce(list(kinds.values()))
    return {
        "piece": piece_B.astype(np.int8),
        "phase": phase_B.astype(np.int8),
        **kinds,
        "quiet": quiet_B,
    }
