"""The audit of datasets: one pass over rows and games, then what the counts tell.

Memory does not grow with the rows: a row group, a buffer and a part of the tally (pipeline/dataset/tally.py), and
counts by bin. What grows is a temporary folder, by at most 16 bytes a row.
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.progress import Progress, Stop, never, silent
from pipeline.dataset.tally import Tally
from pipeline.dataset.training_set import ALL_SPLITS, Member, members
from pipeline.errors import ConfigError
from pipeline.validation.audit import drift, games
from pipeline.validation.audit.columns import columns
from pipeline.validation.audit.counts import MOST_DATASETS, Counts, count
from pipeline.validation.audit.overlap import Overlap
from pipeline.validation.audit.players import players

UNDER = ("knight", "bishop", "rook")


def audit(
    directories: Sequence[Path],
    *,
    sources: Mapping[str, Sequence[str]] | None = None,
    scratch: Path | None = None,
    progress: Progress = silent,
    stop: Stop = never,
) -> dict[str, Any]:
    """Count what is in datasets or training sets taken together, and what their tests share with train.

    `sources`: the dumps of each dataset, by the name of its folder, for the count of players; `scratch`: where temporary
    files go. Gives tables (lists of rows) by name. Raises DatasetError, ConfigError and Stopped.
    """
    members_of_all = (member for path in directories for member in members(path, progress, stop))
    datasets = list({member.directory.resolve(): member for member in members_of_all}.values())
    if not datasets:
        raise ConfigError("name at least one dataset to audit")
    if len(datasets) > MOST_DATASETS:
        raise ConfigError(f"{len(datasets)} datasets are more than {MOST_DATASETS}")
    expected = sum(member.manifest["positions"]["total"] for member in datasets)
    names = [member.directory.resolve().name for member in datasets]
    overlap = Overlap(len(datasets))
    with tempfile.TemporaryDirectory(prefix="fianchetto-audit-", dir=scratch) as folder:
        tally = Tally(Path(folder), expected)
        found = count(datasets, tally, progress, stop, expected)
        for part in tally.parts():
            overlap.add(part)
    by_month, between_months = games.months(datasets, stop)
    overlaps = overlap.result(names)
    colliding = overlaps.pop("label_collisions")
    return {
        "datasets": [_described(name, member, mine) for name, member, mine in zip(names, datasets, found, strict=True)],
        **overlaps,
        "games": games.copies(datasets, stop),
        "players": _players(datasets, sources, stop),
        "labels": _labels(found, colliding),
        "distributions": _distributions(found),
        "drift": {
            "between_splits": _between_splits(found),
            "between_datasets": drift.chain(names, [_all_splits(mine) for mine in found]),
            "between_months": between_months,
        },
        "months": by_month,
    }


def _described(name: str, member: Member, mine: Counts) -> dict[str, Any]:
    """Return a dataset's row in the table of datasets."""
    rows = dict(zip(ALL_SPLITS, mine.rows.tolist(), strict=True))
    return {"dataset": name, "games": member.manifest["games"]["used"], **rows, "held_out": member.held_out}


def _players(datasets: Sequence[Member], sources: Mapping[str, Sequence[str]] | None, stop: Stop) -> dict[str, Any]:
    """Count players, where the dumps are there to be asked."""
    missing = [
        member.directory.resolve().name for member in datasets if member.directory.resolve().name not in (sources or {})
    ]
    if missing or sources is None:
        said = f"not counted: datasets hold no names of players, and the dump of {missing[0]} was not given"
        return {"known": False, "said": said}
    return {"known": True, **players(datasets, sources, stop)}


def _total(found: Sequence[Counts], name: str) -> NDArray[np.int64]:
    """Add a column's counts up over the datasets, [S, K]."""
    total: NDArray[np.int64] = np.sum([mine.bins[name] for mine in found], axis=0)
    return total


def _all_splits(mine: Counts) -> dict[str, NDArray[np.int64]]:
    """Return a dataset's histograms over all its splits."""
    return {name: bins.sum(axis=0) for name, bins in mine.bins.items()}


def _distributions(found: Sequence[Counts]) -> dict[str, list[dict[str, Any]]]:
    """Return, for each column, a row for each bin with its positions in all, and its share of each split."""
    tables = {}
    for column in columns():
        counts = _total(found, column.name)
        splits = [(name, counts[at]) for at, name in enumerate(ALL_SPLITS) if counts[at].sum()]
        tables[column.name] = [
            {"bin": name, "positions": int(counts[:, at].sum())}
            | {split: round(float(mine[at] / mine.sum()), 6) for split, mine in splits}
            for at, name in enumerate(column.bins)
        ]
    return tables


def _between_splits(found: Sequence[Counts]) -> list[dict[str, Any]]:
    """Compare each split with train."""
    totals = {column.name: _total(found, column.name) for column in columns()}
    rows = []
    for at, name in enumerate(ALL_SPLITS[1:], 1):
        before = {column: counts[0] for column, counts in totals.items()}
        after = {column: counts[at] for column, counts in totals.items()}
        rows += [{"from": "train", "to": name, **row} for row in drift.compared(before, after)]
    return rows


def _labels(found: Sequence[Counts], colliding: int) -> dict[str, Any]:
    """Return how even the 4096 labels are, and what of them the tests ask that train does not have.

    `effective` is the exponential of the entropy: as many equally frequent labels would be as hard to guess.
    `colliding_moves` are moves that were played on a position together with another promotion of the same label.
    """
    labels = np.sum([mine.labels for mine in found], axis=0)
    total = labels.sum(axis=0)
    shares = total[total > 0] / max(total.sum(), 1)
    promotions = _total(found, "promotion").sum(axis=0)
    under = {name: int(promotions[at]) for at, name in enumerate(UNDER, 1)}
    return {
        "used": int((total > 0).sum()),
        "effective": round(float(np.exp(-(shares * np.log(shares)).sum())), 2),
        "most_frequent_share": round(float(shares.max()), 6) if len(shares) else 0.0,
        "in_fewer_than_100_positions": int(((total > 0) & (total < 100)).sum()),
        "not_in_train": int(((total > 0) & (labels[0] == 0)).sum()),
        "positions_with_a_label_not_in_train": int(labels[1:, labels[0] == 0].sum()),
        "under_promotions": sum(under.values()),
        **{f"to_{name}": number for name, number in under.items()},
        "colliding_moves": colliding,
    }
