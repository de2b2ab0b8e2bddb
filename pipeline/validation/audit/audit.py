"""Audit datasets: count rows by column and positions by key in one pass, then compare splits and datasets.

Memory does not grow with the rows: it holds a row group, a part of the temporary files (pipeline/dataset/scratch.py), and
counts by bin. The temporary folder grows by at most 16 bytes per row.

Axes: S splits (ALL_SPLITS), K bins.
"""

import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from engine.encoding.planes import LABELS
from engine.progress import Progress, Stop, Tick, never, silent
from pipeline.dataset.join import game_splits
from pipeline.dataset.position_keys import position_keys
from pipeline.dataset.scratch import Scratch
from pipeline.dataset.training_set import ALL_SPLITS, Member, members, row_groups
from pipeline.errors import ConfigError, Stopped
from pipeline.validation.audit import drift
from pipeline.validation.audit.columns import READ, Rows, columns
from pipeline.validation.audit.overlap import count_games, count_positions

Bins = dict[str, NDArray[np.int64]]
"""Rows [S, K] by column."""


def audit(directories: Sequence[Path], *, progress: Progress = silent, stop: Stop = never) -> dict[str, Any]:
    """Count what is in datasets or training sets taken together, and what their tests share with train.

    Returns tables (lists of rows) by name. Raises DatasetError, ConfigError and Stopped.
    """
    found = (member for path in directories for member in members(path, progress, stop))
    datasets = list({member.directory.resolve(): member for member in found}.values())
    if not datasets:
        raise ConfigError("name at least one dataset to audit")
    with tempfile.TemporaryDirectory(prefix="fianchetto-audit-") as folder:
        positions = Scratch(Path(folder), sum(member.manifest["positions"]["total"] for member in datasets))
        bins = _count(datasets, positions, progress, stop)
        tables, colliding = count_positions(positions)
    names = [member.directory.resolve().name for member in datasets]
    totals = {name: np.sum([mine[name] for mine in bins], axis=0) for name in bins[0]}
    labels = totals.pop("label")
    by_dataset = [{name: mine[name].sum(axis=0) for name in totals} for mine in bins]
    return {
        "datasets": [
            {"dataset": name, "games": member.manifest["games"]["used"]}
            | {split: member.positions(split) for split in ALL_SPLITS}
            | {"held_out": member.held_out}
            for name, member in zip(names, datasets, strict=True)
        ],
        **tables,
        "games": _count_games(datasets, stop),
        "labels": _describe_labels(labels, totals["promotion"].sum(axis=0), colliding),
        "distributions": {column.name: _distribution(column.bins, totals[column.name]) for column in columns()},
        "drift": {
            "between_splits": [
                {"from": "train", "to": split} | row
                for at, split in enumerate(ALL_SPLITS[1:], 1)
                if (row := drift.compare(*({name: it[of] for name, it in totals.items()} for of in (0, at))))
            ],
            "between_datasets": [
                {"from": before, "to": after} | drift.compare(one, two)
                for (before, after), (one, two) in zip(pairwise(names), pairwise(by_dataset), strict=True)
            ],
        },
    }


def _count(datasets: Sequence[Member], positions: Scratch, progress: Progress, stop: Stop) -> list[Bins]:
    """Read every row once: return each dataset's counts by bin, and write the keys of all positions, with their moves."""
    counts, done = [], 0
    total = sum(member.manifest["positions"]["total"] for member in datasets)
    for member in datasets:
        mine = {column.name: np.zeros((len(ALL_SPLITS), len(column.bins)), dtype=np.int64) for column in columns()}
        mine["label"] = np.zeros((len(ALL_SPLITS), LABELS), dtype=np.int64)
        for name in member.splits:
            split = ALL_SPLITS.index(name)
            for rows in row_groups(member.shards(name), READ):
                _count_bins(mine, split, rows)
                key = position_keys(rows["planes"], rows["castling"])
                frame = pl.DataFrame({"key": key, "label": rows["label"], "promotion": rows["promotion"]})
                positions.add(frame.with_columns(split=pl.lit(split, pl.UInt8)))
                done += len(frame)
                progress(Tick(done, total, "positions", {}))
                if stop():
                    raise Stopped("stopped; nothing was written")
        counts.append(mine)
    return counts


def _count_bins(counts: Bins, split: int, rows: Rows) -> None:
    """Add rows of a split to the counts."""
    for column in columns():
        counts[column.name][split] += np.bincount(column.bin_rows(rows), minlength=len(column.bins))
    counts["label"][split] += np.bincount(rows["label"], minlength=LABELS)


def _count_games(datasets: Sequence[Member], stop: Stop) -> dict[str, int]:
    """Count games by the hash of their moves: copies, and games of a test that train has, in any of the datasets."""
    with tempfile.TemporaryDirectory(prefix="fianchetto-audit-") as folder:
        games = Scratch(Path(folder), sum(member.manifest["games"]["used"] for member in datasets))
        for member in datasets:
            for frame in game_splits(member):
                games.add(frame)
                if stop():
                    raise Stopped("stopped; nothing was written")
        return count_games(games)


def _distribution(bins: Sequence[str], counts_SK: NDArray[np.int64]) -> list[dict[str, Any]]:
    """Return a row for each bin: its positions in all, and its share of each split."""
    splits = [(name, counts_SK[at]) for at, name in enumerate(ALL_SPLITS) if counts_SK[at].sum()]
    return [
        {"bin": name, "positions": int(counts_SK[:, at].sum())}
        | {split: round(float(mine[at] / mine.sum()), 6) for split, mine in splits}
        for at, name in enumerate(bins)
    ]


def _describe_labels(labels: NDArray[np.int64], promotions: NDArray[np.int64], colliding: int) -> dict[str, Any]:
    """Return how even the 4,096 labels are, and how many of the tests' labels train lacks.

    `effective` is the exponential of the entropy: so many equally frequent labels would be as hard to guess. `colliding_moves`
    were played in a position where the same label was also played with another promotion.
    """
    total = labels.sum(axis=0)
    shares = total[total > 0] / max(total.sum(), 1)
    under = {f"to_{name}": int(promotions[at]) for at, name in enumerate(("knight", "bishop", "rook"), 1)}
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
