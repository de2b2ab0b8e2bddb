"""Copies of positions, what tests share with train, and labels that collide: lazy queries, part by part.

The rows are `key`, `split` (an index into ALL_SPLITS) and, of positions, `label` and `promotion`.
"""

import itertools
from typing import Any

import polars as pl

from pipeline.dataset.scratch import Scratch
from pipeline.dataset.training_set import ALL_SPLITS

TIMES = (1, 2, 3, 5, 10, 100, 1000, 10_000)
"""First occurrence count of each row of the table `by_times`."""
_BETWEEN = (f"{low:,}" if high == low + 1 else f"{low:,}-{high - 1:,}" for low, high in itertools.pairwise(TIMES))
TIMES_NAMES = (*_BETWEEN, f"{TIMES[-1]:,} and more")
_BY_SPLIT = [(pl.col("split") == number).sum().alias(name) for number, name in enumerate(ALL_SPLITS)]


def _shared_with_train() -> list[pl.Expr]:
    """Return, for each split of a frame with a row for each key: its rows and keys, and those whose key train has."""
    found = []
    for name in ALL_SPLITS:
        rows, in_train = pl.col(name), pl.col("train") > 0
        found += [rows.sum().alias(f"{name}_rows"), (rows > 0).sum().alias(f"{name}_keys")]
        found += [rows.filter(in_train).sum().alias(f"{name}_rows_in_train")]
        found += [(in_train & (rows > 0)).sum().alias(f"{name}_keys_in_train")]
    return found


def count_games(games: Scratch) -> dict[str, int]:
    """Return how many games there are, how many are copies of others, and how many of each test train has too."""
    found = [
        part.group_by("key").agg(_BY_SPLIT).select(pl.len().alias("distinct"), *_shared_with_train())
        for part in games.parts()
    ]
    sums = pl.concat(found).sum().collect(engine="streaming").row(0, named=True)
    total = sum(sums[f"{name}_rows"] for name in ALL_SPLITS)
    copies = {"games": total, "distinct": sums["distinct"], "copies": total - sums["distinct"]}
    return copies | {f"{name}_games_in_train": sums[f"{name}_rows_in_train"] for name in ALL_SPLITS[1:]}


def count_positions(positions: Scratch) -> tuple[dict[str, Any], int]:
    """Return the tables `copies`, `by_times` and `in_train`, and the number of moves whose label collides.

    A label collides if it was played in one position with several promotions.
    """
    sums, times = [], []
    for part in positions.parts():
        played, promotions = pl.len().alias("rows"), pl.col("promotion").n_unique()
        moves = part.group_by("key", "label").agg(played, promotions, *_BY_SPLIT).collect(engine="streaming")
        by_key = moves.group_by("key").agg(pl.col("rows").max().alias("most_played"), pl.col("rows", *ALL_SPLITS).sum())
        repeated = pl.col("rows", "most_played").filter(pl.col("rows") > 1).sum()
        of_keys = by_key.select(pl.len().alias("distinct"), repeated, *_shared_with_train())
        colliding = pl.col("rows").filter(pl.col("promotion") > 1).sum().alias("colliding")
        shared = [pl.col(name).filter(pl.col("train") > 0).sum().alias(f"{name}_moves") for name in ALL_SPLITS]
        sums.append(pl.concat([of_keys, moves.select(colliding, *shared)], how="horizontal"))
        bins = by_key.with_columns(times=pl.Series(TIMES).search_sorted(by_key["rows"], side="right") - 1)
        times.append(bins.group_by("times").agg(pl.len().alias("distinct"), pl.col("rows").sum().alias("positions")))
    found = pl.concat(sums).sum().row(0, named=True)
    rows = sum(found[f"{name}_rows"] for name in ALL_SPLITS)
    copies = rows - found["distinct"]
    counted = {at: tuple(counts) for at, *counts in pl.concat(times).group_by("times").sum().iter_rows()}
    tables = {
        "copies": {
            "positions": rows,
            "distinct": found["distinct"],
            "copies": copies,
            "copies_share": _share(copies, rows),
            "on_repeated_positions": found["rows"],
            "most_played_move_share_there": _share(found["most_played"], found["rows"]),
        },
        "by_times": [
            {"times": name, "distinct": distinct, "positions": count, "share": _share(count, rows)}
            for at, name in enumerate(TIMES_NAMES)
            for distinct, count in [counted.get(at, (0, 0))]
        ],
        "in_train": [
            {
                "split": name,
                "positions": found[f"{name}_rows"],
                "in_train": found[f"{name}_rows_in_train"],
                "in_train_share": _share(found[f"{name}_rows_in_train"], found[f"{name}_rows"]),
                "with_the_same_move": found[f"{name}_moves"],
                "distinct": found[f"{name}_keys"],
                "distinct_in_train_share": _share(found[f"{name}_keys_in_train"], found[f"{name}_keys"]),
            }
            for name in ALL_SPLITS[1:]
            if found[f"{name}_rows"]
        ],
    }
    return tables, found["colliding"]


def _share(part: int, whole: int) -> float:
    """Return a share with six places; 0 of nothing."""
    return round(part / whole, 6) if whole else 0.0
