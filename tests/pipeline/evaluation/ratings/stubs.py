"""Networks whose policy is known: each plays the first of the legal labels as often as it is told
to."""

from collections.abc import Callable, Mapping
from typing import Any

import chess
import numpy as np
from numpy.typing import NDArray

from engine.encoding.planes import LABELS, label_of
from pipeline.dataset.files.shards import Batch
from pipeline.evaluation.charts import board_of

Strength = Callable[[NDArray[Any]], NDArray[np.float64]]
"""The chance of the first legal label by the mover's told rating."""


def boards_of(batch: Batch) -> list[chess.Board]:
    """Return the boards of rows."""
    columns = (batch[name].tolist() for name in ("castling", "ep_file", "ply"))
    return [
        board_of(planes_P, *state)
        for planes_P, *state in zip(batch["planes"], *columns, strict=True)
    ]


def legal_labels(board: chess.Board) -> list[int]:
    """Return the labels of a position's moves, ascending, by python-chess."""
    return sorted({label_of(move, board.turn) for move in board.legal_moves})


class Stub:
    """Plays the lowest legal label with a chance that depends on the told rating, the others
    alike."""

    def __init__(self, strength: Strength) -> None:
        self.strength = strength

    def __call__(
        self, planes_BP: NDArray[np.uint64], batch: Mapping[str, NDArray[Any]]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        chance_B = self.strength(batch["elo"].astype(float))
        # illegal labels are no matter
        logits_BA = np.full((len(planes_BP), LABELS), 3.0, dtype=np.float32)
        for row, board in enumerate(boards_of({**batch, "planes": planes_BP})):
            first, *others = legal_labels(board)
            logits_BA[row, others] = np.log((1 - chance_B[row]) / max(len(others), 1))
            logits_BA[row, first] = np.log(chance_B[row])
        return logits_BA, np.full((len(planes_BP), 3), 1 / 3, dtype=np.float32)
