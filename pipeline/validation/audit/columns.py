"""The columns that positions are counted by: for each its bins, and the bin of each row.

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
    "planes",
    "label",
    "promotion",
    "castling",
    "result",
    "eval",
    "ply",
    "plies",
    "elo",
    "opponent_elo",
    "base",
    "increment",
    "game",
)
"""The columns of a shard that an audit reads; `game` only to refuse rows of games that there are not."""

RATING = tuple(range(800, 2801, 200))
PLY = (10, 20, 30, 40, 60, 80, 120)
LENGTH = (20, 40, 60, 80, 100, 150, 200)
GAP = (-400, -200, -100, -50, 0, 50, 100, 200, 400)
PIECES = (6, 10, 16, 22, 28)


@dataclass(frozen=True, slots=True)
class Column:
    """One column: names of its bins, and what gives each row's."""

    name: str
    bins: tuple[str, ...]
    of: Callable[[Rows], NDArray[np.int64]]


def _names(edges: Sequence[int]) -> tuple[str, ...]:
    """Name the bins between edges."""
    return tuple(band_names(edges)[:-1])


def _signed(edges: Sequence[int]) -> tuple[str, ...]:
    """Name the bins between edges that may be negative, and the unknown."""
    between = (f"{low} to {high - 1}" for low, high in itertools.pairwise(edges))
    return (f"below {edges[0]}", *between, f"{edges[-1]} and on", "unknown")


def _within(name: str, edges: Sequence[int]) -> Callable[[Rows], NDArray[np.int64]]:
    return lambda rows: np.searchsorted(edges, rows[name].astype(np.int64), side="right")


def _gap(rows: Rows) -> NDArray[np.int64]:
    """Bin the mover's rating less the opponent's; unknown ones come last."""
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


@cache
def columns() -> tuple[Column, ...]:
    """List the columns."""
    return (
        Column("rating", tuple(band_names(RATING)), lambda rows: rating_band(rows["elo"], RATING)),
        Column("rating_gap", _signed(GAP), _gap),
        Column("time_control", CLASSES, lambda rows: time_class(rows["base"], rows["increment"])),
        Column("ply", _names(PLY), _within("ply", PLY)),
        Column("game_length", _names(LENGTH), _within("plies", LENGTH)),
        Column("result", ("loss", "draw", "win"), lambda rows: rows["result"].astype(np.int64) + 1),
        Column("pieces", _names(PIECES), _pieces),
        Column("mover", ("White", "Black"), lambda rows: (rows["planes"][:, TURN_PLANE] != 0).astype(np.int64)),
        Column("move", (*(f"{distance} squares" for distance in range(1, 8)), "knight"), _distance),
        Column(
            "promotion",
            ("none", "knight", "bishop", "rook", "queen"),
            lambda rows: np.maximum(rows["promotion"].astype(np.int64) - 1, 0),
        ),
        Column("evaluated", ("no", "yes"), lambda rows: (rows["eval"] != BATCH_SENTINELS["eval"]).astype(np.int64)),
    )
