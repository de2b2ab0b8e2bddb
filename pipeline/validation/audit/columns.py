"""The columns that an audit counts positions by: the bins of each, and the bin of each row.

Axes: R rows.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.board.movegen import KNIGHT_TYPES
from engine.encoding.planes import PIECE_PLANES, TURN_PLANE
from pipeline.dataset.files.columns import BATCH_SENTINELS
from pipeline.dataset.strata import CLASSES, band_names, rating_band, time_class

Rows = Mapping[str, NDArray[Any]]

READ = (
    "planes", "label", "promotion", "castling", "result", "eval", "ply", "plies", "elo", "opponent_elo", "base", "increment",
    "game",
)  # fmt: skip
"""The columns of a shard that an audit reads; `game` only to refuse numbers of games that do not exist."""

RATING = tuple(range(800, 2801, 200))
PLY = (10, 20, 30, 40, 60, 80, 120)
LENGTH = (20, 40, 60, 80, 100, 150, 200)
GAP = (-400, -200, -100, -50, 0, 50, 100, 200, 400)
PIECES = (6, 10, 16, 22, 28)


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its name, the names of its bins, and the function that returns each row's bin."""

    name: str
    bins: tuple[str, ...]
    bin_rows: Callable[[Rows], NDArray[np.int64]]


def _bin_by_edges(name: str, edges: Sequence[int]) -> Column:
    """Make a column of an audit: a shard column, binned between edges."""
    bins = tuple(band_names(edges)[:-1])
    return Column(name, bins, lambda rows: np.searchsorted(edges, rows[name].astype(np.int64), side="right"))


def _gap(rows: Rows) -> NDArray[np.int64]:
    """Bin the mover's rating minus the opponent's; unknown ones come last."""
    mine, theirs = rows["elo"].astype(np.int64), rows["opponent_elo"].astype(np.int64)
    known = (mine != BATCH_SENTINELS["elo"]) & (theirs != BATCH_SENTINELS["opponent_elo"])
    return np.where(known, np.searchsorted(GAP, mine - theirs, side="right"), len(GAP) + 1)


def _distance(rows: Rows) -> NDArray[np.int64]:
    """Bin a move by how far it goes, knights' moves last."""
    kind = rows["label"].astype(np.int64) // 64
    return np.where(kind >= KNIGHT_TYPES, 7, kind // 8)


def _pieces(rows: Rows) -> NDArray[np.int64]:
    """Bin the number of pieces on the board."""
    count_R = np.bitwise_count(rows["planes"][:, :PIECE_PLANES]).sum(axis=1, dtype=np.int64)
    place_R: NDArray[np.int64] = np.searchsorted(PIECES, count_R, side="right")
    return place_R


def _promotion(rows: Rows) -> NDArray[np.int64]:
    return np.maximum(rows["promotion"].astype(np.int64) - 1, 0)


@cache
def columns() -> tuple[Column, ...]:
    """Return the columns."""
    between = (f"{low} to {high - 1}" for low, high in itertools.pairwise(GAP))
    gaps = (f"below {GAP[0]}", *between, f"{GAP[-1]} and on", "unknown")
    return (
        Column("rating", tuple(band_names(RATING)), lambda rows: rating_band(rows["elo"], RATING)),
        Column("rating_gap", gaps, _gap),
        Column("time_control", CLASSES, lambda rows: time_class(rows["base"], rows["increment"])),
        _bin_by_edges("ply", PLY),
        _bin_by_edges("plies", LENGTH),
        Column("result", ("loss", "draw", "win"), lambda rows: rows["result"].astype(np.int64) + 1),
        Column("pieces", tuple(band_names(PIECES)[:-1]), _pieces),
        Column("mover", ("White", "Black"), lambda rows: (rows["planes"][:, TURN_PLANE] != 0).astype(np.int64)),
        Column("move", (*(f"{distance} squares" for distance in range(1, 8)), "knight"), _distance),
        Column("promotion", ("none", "knight", "bishop", "rook", "queen"), _promotion),
        Column("evaluated", ("no", "yes"), lambda rows: (rows["eval"] != BATCH_SENTINELS["eval"]).astype(np.int64)),
    )
