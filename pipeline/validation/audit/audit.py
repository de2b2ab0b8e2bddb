"""Audit datasets: count rows by column and positions by key in one pass, then compare splits and datasets.

Memory does not grow with the rows: it holds a row group, a buffer and a file of the tally (pipeline/dataset/tally.py), and
counts by bin. A temporary folder grows by at most 16 bytes per row.

Axes: S splits (ALL_SPLITS), K bins.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.encoding.planes import LABELS
from engine.progress import Progress, Stop, Tick, never, silent
from pipeline.dataset.join import game_splits
from pipeline.dataset.position_keys import position_keys
from pipeline.dataset.tally import Tally
from pipeline.dataset.training_set import ALL_SPLITS, Member, members, row_groups
from pipeline.errors import ConfigError, Stopped
from pipeline.validation.audit import drift
from pipeline.validation.audit.columns import READ, Rows, columns
from pipeline.validation.audit.overlap import MOST_DATASETS, Overlap, encode, shared_with_train

UNDERPROMOTIONS = ("knight", "bishop", "rook")


class Counts:
    """Rows of one dataset by split: by bin of each column, by label, and in all."""

    def __init__(self) -> None:
        self.bins = {column.name: np.zeros((len(ALL_SPLITS), len(column.bins)), dtype=np.int64) for column in columns()}
        """[S, K] by column."""
        self.labels = np.zeros((len(ALL_SPLITS), LABELS), dtype=np.int64)
        self.rows = np.zeros(len(ALL_SPLITS), dtype=np.int64)

    def add(self, split: int, rows: Rows) -> None:
        """Count rows of a split."""
        for column in columns():
            self.bins[column.name][split] += np.bincount(column.bin_rows(rows), minlength=len(column.bins))
        self.labels[split] += np.bincount(rows["label"], minlength=LABELS)
        self.rows[split] += len(rows["label"])


def audit(
    directories: Sequence[Path], *, scratch: Path | None = None, progress: Progress = silent, stop: Stop = never
) -> dict[str, Any]:
    """Count what is in datasets or training sets taken together, and what their tests share with train.

    Temporary files go to `scratch`. Returns tables (lists of rows) by name. Raises DatasetError, ConfigError and Stopped.
    """
    found = (member for path in directories for member in members(path, progress, stop))
    datasets = list({member.directory.resolve(): member for member in found}.values())
    if not datasets:
        raise ConfigError("name at least one dataset to audit")
    if len(datasets) > MOST_DATASETS:
        raise ConfigError(f"{len(datasets)} datasets are more than {MOST_DATASETS}")
    overlap = Overlap(len(datasets))
    with tempfile.TemporaryDirectory(prefix="fianchetto-audit-", dir=scratch) as folder:
        tally = Tally(Path(folder), sum(member.manifest["positions"]["total"] for member in datasets))
        counts = _count(datasets, tally, progress, stop)
        for pairs in tally.parts():
            overlap.add(pairs)
    names = [member.directory.resolve().name for member in datasets]
    overlaps = overlap.result(names)
    colliding = overlaps.pop("label_collisions")
    totals = {column.name: np.sum([mine.bins[column.name] for mine in counts], axis=0) for column in columns()}
    by_dataset = [{name: bins.sum(axis=0) for name, bins in mine.bins.items()} for mine in counts]
    return {
        "datasets": [
            {"dataset": name, "games": member.manifest["games"]["used"]}
            | dict(zip(ALL_SPLITS, mine.rows.tolist(), strict=True))
            | {"held_out": member.held_out}
            for name, member, mine in zip(names, datasets, counts, strict=True)
        ],
        **overlaps,
        "games": _games(datasets, stop),
        "labels": _labels(counts, totals["promotion"].sum(axis=0), colliding),
        "distributions": _distributions(totals),
        "drift": {
            "between_splits": _between_splits(totals),
            "between_datasets": drift.compare_in_order(names, by_dataset),
        },
    }


def _count(datasets: Sequence[Member], tally: Tally, progress: Progress, stop: Stop) -> list[Counts]:
    """Read every row once: return each dataset's counts, and tally all positions with the moves played there."""
    found, done = [], 0
    total = sum(member.manifest["positions"]["total"] for member in datasets)
    for number, member in enumerate(datasets):
        mine = Counts()
        for name in member.splits:
            split = ALL_SPLITS.index(name)
            for rows in row_groups(member.shards(name), READ):
                mine.add(split, rows)
                tally.add(position_keys(rows["planes"], rows["castling"]), encode(rows, split, number))
                done += len(rows["label"])
                progress(Tick(done, total, "positions", {}))
                if stop():
                    raise Stopped("stopped; nothing was written")
        found.append(mine)
    return found


def _games(datasets: Sequence[Member], stop: Stop) -> dict[str, Any]:
    """Count games by the hash of their moves: copies, and games of a test that train has, in any of the datasets."""
    with tempfile.TemporaryDirectory(prefix="fianchetto-audit-") as folder:
        tally = Tally(Path(folder), sum(member.manifest["games"]["used"] for member in datasets))
        for member in datasets:
            for keys, splits in game_splits(member):
                tally.add(keys, splits)
                if stop():
                    raise Stopped("stopped; nothing was written")
        found = shared_with_train(tally)
    total = int(found.rows.sum())
    shared = zip(ALL_SPLITS[1:], found.shared_rows.tolist()[1:], strict=True)
    return {"games": total, "distinct": found.distinct, "copies": total - found.distinct} | {
        f"{split}_games_in_train": games for split, games in shared
    }


def _distributions(totals: dict[str, NDArray[np.int64]]) -> dict[str, list[dict[str, Any]]]:
    """Return, for each column, a row for each bin: its positions in all, and its share of each split."""
    tables = {}
    for column in columns():
        counts = totals[column.name]
        splits = [(name, counts[at]) for at, name in enumerate(ALL_SPLITS) if counts[at].sum()]
        tables[column.name] = [
            {"bin": name, "positions": int(counts[:, at].sum())}
            | {split: round(float(mine[at] / mine.sum()), 6) for split, mine in splits}
            for at, name in enumerate(column.bins)
        ]
    return tables


def _between_splits(totals: dict[str, NDArray[np.int64]]) -> list[dict[str, Any]]:
    """Compare each split with train."""
    train = {column: counts[0] for column, counts in totals.items()}
    return [
        {"from": "train", "to": name, **row}
        for at, name in enumerate(ALL_SPLITS[1:], 1)
        for row in drift.compare(train, {column: counts[at] for column, counts in totals.items()})
    ]


def _labels(counts: Sequence[Counts], promotions: NDArray[np.int64], colliding: int) -> dict[str, Any]:
    """Return how even the 4,096 labels are, and how many of the tests' labels train lacks.

    `effective` is the exponential of the entropy: so many equally frequent labels would be as hard to guess. `colliding_moves`
    were played in a position where the same label was also played with another promotion.
    """
    labels = np.sum([mine.labels for mine in counts], axis=0)
    total = labels.sum(axis=0)
    shares = total[total > 0] / max(total.sum(), 1)
    under = {f"to_{name}": int(promotions[at]) for at, name in enumerate(UNDERPROMOTIONS, 1)}
    return {
        "used": int((total > 0).sum()),
        "effective": round(float(np.exp(-(shares * np.log(shares)).sum())), 2),
        "most_frequent_share": round(float(shares.max()), 6) if len(shares) else 0.0,
        "in_fewer_than_100_positions": int(((total > 0) & (total < 100)).sum()),
        "not_in_train": int(((total > 0) & (labels[0] == 0)).sum()),
        "positions_with_a_label_not_in_train": int(labels[1:, labels[0] == 0].sum()),
        "under_promotions": sum(under.values()),
        **under,
        "colliding_moves": colliding,
    }
