"""Copies of keys (positions, games, players), what tests share with train, and labels that collide.

Axes: N pairs of a part of the tally, G distinct keys of it, S splits, D datasets.
"""

import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.dataset.tally import Pairs, Tally, sums
from pipeline.dataset.training_set import ALL_SPLITS
from pipeline.validation.audit.counts import LABEL_SHIFT, MOST_DATASETS, PROMOTION_SHIFT, SPLIT_SHIFT

TIMES = (1, 2, 3, 5, 10, 100, 1000, 10_000)
"""First occurrence count of each row of the table `by_times`."""
LARGEST_MATRIX = 24
"""Most datasets for which the overlap of every two is counted."""


class SharedWithTrain:
    """Rows and distinct keys of each split, and those of keys that train has too, int64[S] each."""

    def __init__(self) -> None:
        self.distinct = 0
        self.rows, self.keys, self.shared_rows, self.shared_keys = (
            np.zeros(len(ALL_SPLITS), dtype=np.int64) for _ in range(4)
        )

    def add(self, counts_GS: NDArray[np.int64]) -> None:
        """Add the rows of each key by split; a key is added once."""
        shared_GS = counts_GS[counts_GS[:, 0] > 0]
        self.distinct += len(counts_GS)
        self.rows += counts_GS.sum(axis=0)
        self.keys += (counts_GS > 0).sum(axis=0)
        self.shared_rows += shared_GS.sum(axis=0)
        self.shared_keys += (shared_GS > 0).sum(axis=0)

    def tests(self) -> list[tuple[str, int, int, int, int]]:
        """Return (split, rows, shared rows, keys, shared keys) of each split but train that has rows."""
        columns = (self.rows, self.shared_rows, self.keys, self.shared_keys)
        table = zip(ALL_SPLITS, *(column.tolist() for column in columns), strict=True)
        return [row for row in list(table)[1:] if row[1]]


def shared_with_train(tally: Tally) -> SharedWithTrain:
    """Return what a tally of (key, split) shares with train."""
    found = SharedWithTrain()
    for keys, splits, counts in tally.parts():
        first_N = _changes(keys)
        found.add(_spread(np.cumsum(first_N) - 1, splits.astype(np.int64), counts, int(first_N.sum()), len(ALL_SPLITS)))
    return found


class Overlap:
    """Counts of a tally of positions, added up part by part."""

    def __init__(self, datasets: int) -> None:
        self.positions, self.moves = SharedWithTrain(), SharedWithTrain()
        """By position, and by position and label."""
        self.most_played = self.repeated = self.colliding = 0
        self.times = np.zeros((2, len(TIMES)), dtype=np.int64)  # positions, rows
        self.matrix = np.zeros((datasets, datasets), dtype=np.int64) if 1 < datasets <= LARGEST_MATRIX else None
        """[D, D] rows of a dataset whose position occurs in another."""

    def add(self, part: Pairs) -> None:
        """Add a part, which holds all pairs of its positions, sorted by position and label."""
        keys, what, counts = part
        if not len(keys):
            return
        first_N, label, promotion = _changes(keys), what >> np.uint32(LABEL_SHIFT), what >> np.uint32(PROMOTION_SHIFT)
        move_first_N = first_N | _changes(label)
        split = (what >> np.uint32(SPLIT_SHIFT)).astype(np.int64) & 3
        position_N, move_N = (np.cumsum(first) - 1 for first in (first_N, move_first_N))
        positions, moves = int(position_N[-1]) + 1, int(move_N[-1]) + 1
        by_split = _spread(position_N, split, counts, positions, len(ALL_SPLITS))
        self.positions.add(by_split)
        self.moves.add(_spread(move_N, split, counts, moves, len(ALL_SPLITS)))
        total = by_split.sum(axis=1)
        place = np.searchsorted(TIMES, total, side="right") - 1
        self.times[0] += np.bincount(place, minlength=len(TIMES))
        self.times[1] += np.bincount(place, weights=total, minlength=len(TIMES)).astype(np.int64)
        played = sums(counts, np.flatnonzero(move_first_N))
        most = np.maximum.reduceat(played, np.flatnonzero(first_N[move_first_N]))
        self.repeated += int(total[total > 1].sum())
        self.most_played += int(most[total > 1].sum())
        promoted_otherwise = np.flatnonzero(~move_first_N & _changes(promotion))
        self.colliding += int(played[np.unique(move_N[promoted_otherwise])].sum())
        if self.matrix is not None:
            dataset = (what & np.uint32(MOST_DATASETS - 1)).astype(np.int64)
            by_dataset = _spread(position_N, dataset, counts, positions, len(self.matrix))
            for other in range(len(self.matrix)):
                self.matrix[:, other] += by_dataset[by_dataset[:, other] > 0].sum(axis=0)

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


def _changes(values_N: NDArray[Any]) -> NDArray[np.bool_]:
    """Return where a value differs from the one before it; the first one does."""
    changed: NDArray[np.bool_] = np.append(True, values_N[1:] != values_N[:-1])[: len(values_N)]
    return changed


def _spread(
    group: NDArray[np.int64], column: NDArray[np.int64], counts: NDArray[np.int64], rows: int, width: int
) -> NDArray[np.int64]:
    """Return counts added up in a table [rows, width]; float64 holds them exactly."""
    flat = np.bincount(group * width + column, weights=counts, minlength=rows * width)
    return flat.astype(np.int64).reshape(rows, width)


def share(part: int, whole: int) -> float:
    """Return a share with six places; 0 of nothing."""
    return round(part / whole, 6) if whole else 0.0
