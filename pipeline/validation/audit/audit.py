"""Audit datasets: count rows by column and positions by key in one pass, then compare splits.

Memory does not grow with the rows: it holds a row group, a part of the temporary files (pipeline/dataset/scratch.py), and
counts by bin. The temporary folder grows by at most 16 bytes per row.

Axes: S splits (ALL_SPLITS), K bins.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from engine.progress import Progress, Tick, silent
from pipeline.dataset.join import game_splits
from pipeline.dataset.position_keys import position_keys
from pipeline.dataset.scratch import Scratch
from pipeline.dataset.training_set import ALL_SPLITS, Member, members, row_groups
from pipeline.errors import ConfigError
from pipeline.validation.audit.columns import COLUMNS, READ
from pipeline.validation.audit.overlap import count_games, count_positions


def audit(directories: Sequence[Path], *, progress: Progress = silent) -> dict[str, Any]:
    """Count what is in datasets or training sets taken together, and what their tests share with train.

    Returns tables (lists of rows) by name. Raises DatasetError and ConfigError.
    """
    found = (member for path in directories for member in members(path, progress))
    datasets = list({member.directory.resolve(): member for member in found}.values())
    if not datasets:
        raise ConfigError("name at least one dataset to audit")
    with tempfile.TemporaryDirectory(prefix="fianchetto-audit-") as folder:
        positions = Scratch(Path(folder), sum(member.manifest["positions"]["total"] for member in datasets))
        bins = _count(datasets, positions, progress)
        tables = count_positions(positions)
    return {
        "datasets": [
            {"dataset": member.directory.resolve().name, "games": member.manifest["games"]["used"]}
            | {split: member.positions(split) for split in ALL_SPLITS}
            | {"held_out": member.held_out}
            for member in datasets
        ],
        **tables,
        "games": _count_games(datasets),
        "distributions": {name: _distribution(COLUMNS[name].bins, counts_SK) for name, counts_SK in bins.items()},
    }


def _count(datasets: Sequence[Member], positions: Scratch, progress: Progress) -> dict[str, NDArray[np.int64]]:
    """Read every row once: return the rows of each column by split and bin [S, K], and write the keys of all positions."""
    counts = {name: np.zeros((len(ALL_SPLITS), len(column.bins)), dtype=np.int64) for name, column in COLUMNS.items()}
    done, total = 0, sum(member.manifest["positions"]["total"] for member in datasets)
    for member in datasets:
        for name in member.splits:
            split = ALL_SPLITS.index(name)
            for rows in row_groups(member.shards(name), READ):
                for column, (bins, bin_rows) in COLUMNS.items():
                    counts[column][split] += np.bincount(bin_rows(rows), minlength=len(bins))
                key = position_keys(rows["planes"], rows["castling"])
                frame = pl.DataFrame({"key": key, "label": rows["label"]})
                positions.add(frame.with_columns(split=pl.lit(split, pl.UInt8)))
                done += len(frame)
                progress(Tick(done, total, "positions", {}))
    return counts


def _count_games(datasets: Sequence[Member]) -> dict[str, int]:
    """Count games by the hash of their moves: copies, and games of a test that train has, in any of the datasets."""
    with tempfile.TemporaryDirectory(prefix="fianchetto-audit-") as folder:
        games = Scratch(Path(folder), sum(member.manifest["games"]["used"] for member in datasets))
        for member in datasets:
            for frame in game_splits(member):
                games.add(frame)
        return count_games(games)


def _distribution(bins: Sequence[str], counts_SK: NDArray[np.int64]) -> list[dict[str, Any]]:
    """Return a row for each bin: its positions in all, and its share of each split."""
    splits = [(name, counts_SK[at]) for at, name in enumerate(ALL_SPLITS) if counts_SK[at].sum()]
    return [
        {"bin": name, "positions": int(counts_SK[:, at].sum())}
        | {split: round(float(mine[at] / mine.sum()), 6) for split, mine in splits}
        for at, name in enumerate(bins)
    ]
