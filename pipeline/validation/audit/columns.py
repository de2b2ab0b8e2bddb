"""The columns that an audit counts positions by: the bins of each, and the bin of each row."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.encoding.planes import PIECE_PLANES
from pipeline.dataset.strata import CLASSES, band_names, rating_band, time_class

Rows = Mapping[str, NDArray[Any]]

READ = ("planes", "label", "castling", "result", "ply", "plies", "elo", "base", "increment", "game")
"""The columns of a shard that an audit reads; `game` only to refuse numbers of games that do not exist."""

RATING = tuple(range(800, 2801, 200))
PLY = (10, 20, 30, 40, 60, 80, 120)
LENGTH = (20, 40, 60, 80, 100, 150, 200)
PIECES = (6, 10, 16, 22, 28)


class Column(NamedTuple):
    """The names of a column's bins, and the function that returns each row's bin."""

    bins: Sequence[str]
    bin_rows: Callable[[Rows], NDArray[Any]]


def _count_pieces(rows: Rows) -> NDArray[Any]:
    """Return the number of pieces on each row's board."""
    count_R: NDArray[Any] = np.bitwise_count(rows["planes"][:, :PIECE_PLANES]).sum(axis=1, dtype=np.int64)
    return count_R


COLUMNS = {
    "rating": Column(band_names(RATING), lambda rows: rating_band(rows["elo"], RATING)),
    "time_control": Column(CLASSES, lambda rows: time_class(rows["base"], rows["increment"])),
    "ply": Column(band_names(PLY)[:-1], lambda rows: np.searchsorted(PLY, rows["ply"], side="right")),
    "plies": Column(band_names(LENGTH)[:-1], lambda rows: np.searchsorted(LENGTH, rows["plies"], side="right")),
    "result": Column(("loss", "draw", "win"), lambda rows: rows["result"].astype(np.int64) + 1),
    "pieces": Column(band_names(PIECES)[:-1], lambda rows: np.searchsorted(PIECES, _count_pieces(rows), side="right")),
}
