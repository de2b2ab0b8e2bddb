"""Copies of keys (positions or games), what tests share with train, and labels that collide.

Axes: R rows, S splits, D datasets.
"""

import itertools
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipeline.dataset.tally import Tally
from pipeline.dataset.training_set import ALL_SPLITS
from pipeline.validation.audit.columns import Rows

LABEL_SHIFT, PROMOTION_SHIFT, SPLIT_SHIFT = 20, 17, 15
"""Where a tally's `what` holds the label (12 bits), the promotion (3) and the split (2); the dataset's number lies below."""
MOST_DATASETS = 1 << SPLIT_SHIFT
TIMES = (1, 2, 3, 5, 10, 100, 1000, 10_000)
"""First occurrence count of each row of the table `by_times`."""
LARGEST_MATRIX = 24
"""Most datasets for which the overlap of every two is counted."""
_COUNT = pl.col("count")
_BY_SPLIT = [_COUNT.filter(pl.col("split") == number).sum().alias(name) for number, name in enumerate(ALL_SPLITS)]


def encode(rows: Rows, split: int, dataset: int) -> NDArray[np.uint32]:
    """Return what a tally counts of each row beside its key, uint32[R]."""
    what = rows["label"].astype(np.uint32) << np.uint32(LABEL_SHIFT)
    what |= rows["promotion"].astype(np.uint32) << np.uint32(PROMOTION_SHIFT)
    return what | np.uint32(split << SPLIT_SHIFT | dataset)


class SharedWithTrain:
    """Rows and distinct keys of each split, and those of keys that train has too, int64[S] each."""

    def __init__(self) -> None:
        self.distinct = 0
        self.rows, self.keys, self.shared_rows, self.shared_keys = (
            np.zeros(len(ALL_SPLITS), dtype=np.int64) for _ in range(4)
        )

    def add(self, by_key: pl.DataFrame) -> None:
        """Add a frame with a row for each key and its count in each split; no key is added twice."""
        counts = by_key.select(ALL_SPLITS)
        shared = counts.filter(pl.col("train") > 0)
        self.distinct += len(counts)
        self.rows += counts.sum().to_numpy()[0]
        self.keys += counts.select(pl.all() > 0).sum().to_numpy()[0]
        self.shared_rows += shared.sum().to_numpy()[0]
        self.shared_keys += shared.select(pl.all() > 0).sum().to_numpy()[0]

    def tests(self) -> list[tuple[str, int, int, int, int]]:
        """Return (split, rows, shared rows, keys, shared keys) of each split but train that has rows."""
        columns = (self.rows, self.shared_rows, self.keys, self.shared_keys)
        table = zip(ALL_SPLITS, *(column.tolist() for column in columns), strict=True)
        return [row for row in list(table)[1:] if row[1]]


def shared_with_train(tally: Tally) -> SharedWithTrain:
    """Return what a tally of (key, split) shares with train."""
    found = SharedWithTrain()
    for pairs in tally.parts():
        found.add(pairs.rename({"what": "split"}).group_by("key").agg(_BY_SPLIT))
    return found


class Overlap:
    """Counts of a tally of positions, added up file by file."""

    def __init__(self, datasets: int) -> None:
        self.positions, self.moves = SharedWithTrain(), SharedWithTrain()
        """By position, and by position and label."""
        self.most_played = self.repeated = self.colliding = 0
        self.times: NDArray[np.int64] = np.zeros((2, len(TIMES)), dtype=np.int64)  # positions, rows
        self.matrix = np.zeros((datasets, datasets), dtype=np.int64) if 1 < datasets <= LARGEST_MATRIX else None
        """[D, D] rows of a dataset whose position occurs in another."""

    def add(self, pairs: pl.DataFrame) -> None:
        """Add the pairs of one file, which holds all pairs of its positions."""
        what = pl.col("what").cast(pl.Int64)
        rows = pairs.select(
            "key",
            "count",
            label=what // (1 << LABEL_SHIFT),
            promotion=what // (1 << PROMOTION_SHIFT) % 8,
            split=what // (1 << SPLIT_SHIFT) % len(ALL_SPLITS),
            dataset=what % MOST_DATASETS,
        )
        played = _COUNT.sum().alias("played")
        moves = rows.group_by("key", "label").agg(*_BY_SPLIT, played, pl.col("promotion").n_unique())
        totals = [pl.col(name).sum() for name in ALL_SPLITS]
        positions = moves.group_by("key").agg(*totals, pl.col("played").sum().alias("total"), pl.col("played").max())
        self.positions.add(positions)
        self.moves.add(moves)
        total = positions["total"].to_numpy()
        place = np.searchsorted(TIMES, total, side="right") - 1
        self.times[0] += np.bincount(place, minlength=len(TIMES))
        self.times[1] += np.bincount(place, weights=total, minlength=len(TIMES)).astype(np.int64)
        repeated = positions.filter(pl.col("total") > 1)
        self.repeated += int(repeated["total"].sum())
        self.most_played += int(repeated["played"].sum())
        self.colliding += int(moves.filter(pl.col("promotion") > 1)["played"].sum())
        if self.matrix is not None:
            mine = rows.group_by("key", "dataset").agg(_COUNT.sum())
            both = mine.join(mine.select("key", other="dataset"), on="key").group_by("dataset", "other")
            for dataset, other, count in both.agg(_COUNT.sum()).iter_rows():
                self.matrix[dataset, other] += count

    def result(self, names: list[str]) -> dict[str, Any]:
        """Return the tables by name; `names` are those of the datasets."""
        rows = int(self.positions.rows.sum())
        copies = rows - self.positions.distinct
        same_move = dict(zip(ALL_SPLITS, self.moves.shared_rows.tolist(), strict=True))
        matrix = [] if self.matrix is None else self.matrix.tolist()
        return {
            "copies": {
                "positions": rows,
                "distinct": self.positions.distinct,
                "copies": copies,
                "copies_share": share(copies, rows),
                "on_repeated_positions": self.repeated,
                "most_played_move_share_there": share(self.most_played, self.repeated),
            },
            "by_times": [
                {"times": name, "distinct": positions, "positions": count, "share": share(count, rows)}
                for name, positions, count in zip(_times(), *self.times.tolist(), strict=True)
            ],
            "in_train": [
                {
                    "split": split,
                    "positions": count,
                    "in_train": shared,
                    "in_train_share": share(shared, count),
                    "with_the_same_move": same_move[split],
                    "distinct": distinct,
                    "distinct_in_train_share": share(both, distinct),
                }
                for split, count, shared, distinct, both in self.positions.tests()
            ],
            "label_collisions": self.colliding,
            "between_datasets": [
                {"dataset": name}
                | {f"in {other}": share(count, row[at]) for other, count in zip(names, row, strict=True)}
                for at, (name, row) in enumerate(zip(names, matrix, strict=False))
            ],
        }


def _times() -> list[str]:
    """Name the rows of the table `by_times`."""
    between = [f"{low:,}" if high == low + 1 else f"{low:,}-{high - 1:,}" for low, high in itertools.pairwise(TIMES)]
    return [*between, f"{TIMES[-1]:,} and more"]


def share(part: int, whole: int) -> float:
    """Return a share with six places; 0 of nothing."""
    return round(part / whole, 6) if whole else 0.0
