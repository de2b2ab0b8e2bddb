"""One pass over the rows: how many are in each bin of each column, and the tally of positions.

Axes: R rows, S splits (pipeline.dataset.training_set.ALL_SPLITS).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from engine.encoding.planes import LABELS
from engine.progress import Progress, Stop, Tick
from pipeline.dataset.position_keys import position_keys
from pipeline.dataset.tally import Tally
from pipeline.dataset.training_set import ALL_SPLITS, LATEST, Member, row_groups
from pipeline.errors import Stopped
from pipeline.validation.audit.columns import READ, columns

LABEL_SHIFT, PROMOTION_SHIFT, SPLIT_SHIFT = 20, 17, 15
"""Where a tally's `what` holds the label (12 bits), the promotion (3) and the split (2); the dataset's number lies below."""
MOST_DATASETS = 1 << SPLIT_SHIFT


class Counts:
    """The counts of one dataset by split."""

    def __init__(self) -> None:
        self.bins = {column.name: np.zeros((len(ALL_SPLITS), len(column.bins)), dtype=np.int64) for column in columns()}
        self.labels = np.zeros((len(ALL_SPLITS), LABELS), dtype=np.int64)
        """[S, labels] rows of each move label."""
        self.rows = np.zeros(len(ALL_SPLITS), dtype=np.int64)

    def add(self, split: int, rows: dict[str, NDArray[np.int64]]) -> None:
        """Count rows of a split."""
        for column in columns():
            self.bins[column.name][split] += np.bincount(column.of(rows), minlength=len(column.bins))
        self.labels[split] += np.bincount(rows["label"], minlength=LABELS)
        self.rows[split] += len(rows["label"])


def count(datasets: Sequence[Member], tally: Tally, progress: Progress, stop: Stop, expected: int) -> list[Counts]:
    """Read every row once: give each dataset's counts, and tally all positions with what was played there."""
    found, done = [], 0
    for number, member in enumerate(datasets):
        mine = Counts()
        for split, name in enumerate(ALL_SPLITS):
            if member.held_out != (name == LATEST):
                continue
            for rows in row_groups(member.shards(name), READ):
                mine.add(split, rows)
                what = rows["label"].astype(np.uint32) << np.uint32(LABEL_SHIFT)
                what |= rows["promotion"].astype(np.uint32) << np.uint32(PROMOTION_SHIFT)
                what |= np.uint32(split << SPLIT_SHIFT | number)
                tally.add(position_keys(rows["planes"], rows["castling"]), what)
                done += len(what)
                progress(Tick(done, expected, "positions", {}))
                if stop():
                    raise Stopped("stopped; nothing was written")
        found.append(mine)
    return found
