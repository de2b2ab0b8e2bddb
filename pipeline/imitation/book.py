"""Find the opening moves that a person nearly always plays, for a book in the checkpoint's card.

Axes: R rows.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.dataset.dataset import Dataset
from pipeline.dataset.files.shards import Batch
from pipeline.dataset.position_keys import hash_positions
from pipeline.evaluation.charts import decode_board, decode_move
from pipeline.evaluation.figures import paired_difference

if TYPE_CHECKING:
    import polars as pl

BOOK_PLIES = 30
"""Number of half-moves of a game that can enter the book."""
MIN_BOOK_GAMES, MIN_BOOK_SHARE = 3, 0.9
"""A position enters the book if it occurs in at least MIN_BOOK_GAMES games, and one move is played
in at least MIN_BOOK_SHARE of them."""
MAX_BOOK_POSITIONS = 5000
"""Maximum number of positions in a book; the most frequent ones are kept."""


class Book(NamedTuple):
    """The opening moves that a person nearly always plays."""

    labels: dict[int, int]
    """Label of the move for each position, by its key (`hash_positions`)."""
    positions: dict[str, dict[str, int]]
    """Number of games for each position (EPD) and move (UCI), most frequent positions first."""


def make_book(dataset: Dataset, splits: Sequence[str]) -> Book:
    """Return the book of the games in `splits` of a dataset; a position counts once per game."""
    import polars as pl

    parts = []
    for rows in _read_openings(dataset, splits, "label", "game"):
        key = hash_positions(rows["planes"], rows["castling"])
        columns = {name: rows[name] for name in ("label", "game", "ply")}
        parts.append(pl.DataFrame({"key": key, **columns}))
    if not parts:
        return Book({}, {})
    # sort, since rows are stored in a random order
    once = pl.concat(parts).sort("game", "ply").unique(["key", "game"], keep="first")
    moves = once.group_by("key", "label").len("games")
    moves = moves.with_columns(total=pl.col("games").sum().over("key"))
    is_main = (pl.col("games") >= MIN_BOOK_SHARE * pl.col("total")) & (
        pl.col("total") >= MIN_BOOK_GAMES
    )
    main = moves.filter(is_main).sort(["total", "key"], descending=[True, False])
    labels = dict(main.head(MAX_BOOK_POSITIONS).select("key", "label").iter_rows())
    counts: dict[int, dict[int, int]] = {key: {} for key in labels}
    for key, label, games in moves.sort("label").select("key", "label", "games").iter_rows():
        if key in counts:
            counts[key][label] = games
    return Book(labels, _name_positions(dataset, splits, counts))


def _read_openings(dataset: Dataset, splits: Sequence[str], *columns: str) -> Iterator[Batch]:
    """Yield the rows of the first BOOK_PLIES half-moves, one row group at a time."""
    names = ("planes", "castling", "ply", *columns)
    for rows in (rows for split in splits for rows in dataset.read_rows(split, names)):
        early_R = rows["ply"] < BOOK_PLIES
        yield {name: values[early_R] for name, values in rows.items()}


def _name_positions(
    dataset: Dataset, splits: Sequence[str], counts: dict[int, dict[int, int]]
) -> dict[str, dict[str, int]]:
    """Return the counts by EPD and UCI move; `counts` has them by key and label."""
    named: dict[int, tuple[str, dict[str, int]]] = {}
    for rows in _read_openings(dataset, splits, "ep_file"):
        for at, key in enumerate(hash_positions(rows["planes"], rows["castling"]).tolist()):
            if key in counts and key not in named:
                columns = ("planes", "castling", "ep_file", "ply")
                board = decode_board(*(rows[name][at] for name in columns))
                moves = counts[key].items()
                uci = {decode_move(board, label).uci(): games for label, games in moves}
                named[key] = board.epd(), uci
    return dict(named[key] for key in counts)


def measure_book(
    book: Book, table: "pl.DataFrame", labels_R: NDArray[np.integer]
) -> dict[str, Any]:
    """Compare a network's top-1 with and without the book.

    `table` is from `measure_policy`, and `labels_R` are the moves played. Returns `positions` (the
    number of rows in the book), the `paired_difference` of top-1 (with the book, less without), and
    `used`: whether the book has positions and does not lower top-1.
    """
    import polars as pl

    booked_R = np.array([book.labels.get(key, -1) for key in table["key"].to_list()], np.int64)
    rank_R = np.where(booked_R == labels_R, 1, np.where(booked_R < 0, table["rank"].to_numpy(), 2))
    found = paired_difference(table, table.with_columns(pl.Series("rank", rank_R)))
    top1 = {name: figure for name, figure in found.items() if name.startswith("top1")}
    positions = int((booked_R >= 0).sum())
    return {"positions": positions, "used": positions > 0 and found["top1_difference"] >= 0, **top1}
