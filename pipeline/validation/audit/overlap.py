"""What the tally of positions tells: copies, what a test shares with train, moves that differ, labels that collide.

Axes: N pairs of a part of the tally, G positions of it, S splits, D datasets.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.dataset.tally import Pairs, sums
from pipeline.dataset.training_set import ALL_SPLITS
from pipeline.validation.audit.counts import LABEL_SHIFT, MOST_DATASETS, PROMOTION_SHIFT, SPLIT_SHIFT

TIMES = (1, 2, 3, 5, 10, 100, 1000, 10_000)
"""How often a position stands: where the rows of that table begin."""
LARGEST_MATRIX = 24
"""Datasets whose overlaps with each other are counted, each with each."""


class Overlap:
    """What has been counted so far."""

    def __init__(self, datasets: int) -> None:
        splits = len(ALL_SPLITS)
        self.rows = self.positions = self.alike = self.repeated = self.colliding = 0
        self.times = np.zeros((2, len(TIMES)), dtype=np.int64)  # positions, rows
        self.split_rows, self.split_positions, self.shared_rows, self.shared_positions, self.same_move = (
            np.zeros(splits, dtype=np.int64) for _ in range(5)
        )
        self.matrix = np.zeros((datasets, datasets), dtype=np.int64) if 1 < datasets <= LARGEST_MATRIX else None
        """[D, D] rows of a dataset whose position stands in another."""

    def add(self, part: Pairs) -> None:
        """Count a part; all pairs of a position stand in it."""
        keys, what, counts = part
        if not len(keys):
            return
        new = np.append(True, keys[1:] != keys[:-1])
        at, group = np.flatnonzero(new), np.cumsum(new) - 1
        split = (what >> np.uint32(SPLIT_SHIFT)).astype(np.int64) & 3
        by_split = _spread(group, split, counts, len(at), len(ALL_SPLITS))
        total = by_split.sum(axis=1)
        self.rows += int(total.sum())
        self.positions += len(at)
        place = np.searchsorted(TIMES, total, side="right") - 1
        self.times[0] += np.bincount(place, minlength=len(TIMES))
        self.times[1] += np.bincount(place, weights=total, minlength=len(TIMES)).astype(np.int64)
        in_train = by_split[:, 0] > 0
        self.split_rows += by_split.sum(axis=0)
        self.split_positions += (by_split > 0).sum(axis=0)
        self.shared_rows += by_split[in_train].sum(axis=0)
        self.shared_positions += (by_split[in_train] > 0).sum(axis=0)
        self._moves(what, counts, new, group, split, total)
        if self.matrix is not None:
            dataset = (what & np.uint32(MOST_DATASETS - 1)).astype(np.int64)
            by_dataset = _spread(group, dataset, counts, len(at), len(self.matrix))
            for other in range(len(self.matrix)):
                self.matrix[:, other] += by_dataset[by_dataset[:, other] > 0].sum(axis=0)

    def _moves(
        self,
        what: NDArray[np.uint32],
        counts: NDArray[np.int64],
        new: NDArray[np.bool_],
        group: NDArray[np.int64],
        split: NDArray[np.int64],
        total: NDArray[np.int64],
    ) -> None:
        """Count by position and label: the pairs are sorted so that these stand together."""
        label = what >> np.uint32(LABEL_SHIFT)
        changed = new | np.append(True, label[1:] != label[:-1])
        at, move = np.flatnonzero(changed), np.cumsum(changed) - 1
        played = sums(counts, at)
        most = np.maximum.reduceat(played, np.flatnonzero(new[at]))
        self.repeated += int(total[total > 1].sum())
        self.alike += int(most[total > 1].sum())
        by_split = _spread(move, split, counts, len(at), len(ALL_SPLITS))
        self.same_move += by_split[by_split[:, 0] > 0].sum(axis=0)
        promotion = what >> np.uint32(PROMOTION_SHIFT)  # label and promotion
        differing = np.flatnonzero(~changed[1:] & (promotion[1:] != promotion[:-1]))
        self.colliding += int(played[np.unique(move[differing])].sum())

    def result(self, names: list[str]) -> dict[str, Any]:
        """Give the counts by name."""
        copies = self.rows - self.positions
        return {
            "copies": {
                "positions": self.rows,
                "distinct": self.positions,
                "copies": copies,
                "copies_share": _share(copies, self.rows),
                "on_repeated_positions": self.repeated,
                "most_played_move_share_there": _share(self.alike, self.repeated),
            },
            "by_times": list(self._times()),
            "in_train": list(self._in_train()),
            "label_collisions": self.colliding,
            "between_datasets": []
            if self.matrix is None
            else [
                {
                    "dataset": name,
                    **{f"in {other}": _share(int(n), int(row[at])) for other, n in zip(names, row, strict=True)},
                }
                for at, (name, row) in enumerate(zip(names, self.matrix, strict=True))
            ],
        }

    def _times(self) -> Iterator[dict[str, Any]]:
        for first, after, positions, rows in zip(TIMES, (*TIMES[1:], 0), *self.times.tolist(), strict=True):
            name = (
                f"{first:,} and more"
                if not after
                else f"{first:,}"
                if after == first + 1
                else f"{first:,}-{after - 1:,}"
            )
            yield {"times": name, "distinct": positions, "positions": rows, "share": _share(rows, self.rows)}

    def _in_train(self) -> Iterator[dict[str, Any]]:
        for split, name in enumerate(ALL_SPLITS):
            if split and self.split_rows[split]:
                rows, shared = int(self.split_rows[split]), int(self.shared_rows[split])
                distinct, both = int(self.split_positions[split]), int(self.shared_positions[split])
                yield {
                    "split": name,
                    "positions": rows,
                    "in_train": shared,
                    "in_train_share": _share(shared, rows),
                    "with_the_same_move": int(self.same_move[split]),
                    "distinct": distinct,
                    "distinct_in_train_share": _share(both, distinct),
                }


def _spread(
    group: NDArray[np.int64], column: NDArray[np.int64], counts: NDArray[np.int64], rows: int, width: int
) -> NDArray[np.int64]:
    """Add counts up into a table [rows, width]; doubles hold them exactly."""
    flat = np.bincount(group * width + column, weights=counts, minlength=rows * width)
    return flat.astype(np.int64).reshape(rows, width)


def _share(part: int, whole: int) -> float:
    """Give a share with six places; 0 of nothing."""
    return round(part / whole, 6) if whole else 0.0
