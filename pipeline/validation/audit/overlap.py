"""Copies of positions and games, and what tests share with train: lazy queries, part by part.

The rows are `key`, `split` (an index into ALL_SPLITS) and, of positions, `label`.
"""

from typing import Any

import polars as pl

from pipeline.dataset.scratch import Scratch
from pipeline.dataset.training_set import ALL_SPLITS

_BY_SPLIT = [(pl.col("split") == number).sum().alias(name) for number, name in enumerate(ALL_SPLITS)]


def _in_train(suffix: str) -> list[pl.Expr]:
    """Return the rows of each split that train has too, of a frame with a row for each key and columns of counts by split."""
    return [pl.col(name).filter(pl.col("train") > 0).sum().alias(f"{name}_{suffix}") for name in ALL_SPLITS]


def count_games(games: Scratch) -> dict[str, int]:
    """Return how many games there are, how many are copies of others, and how many of each test train has too."""
    found = [
        part.group_by("key")
        .agg(_BY_SPLIT)
        .select(pl.len().alias("distinct"), pl.col(ALL_SPLITS).sum(), *_in_train("in_train"))
        for part in games.parts()
    ]
    sums = pl.concat(found).sum().collect(engine="streaming").row(0, named=True)
    total = sum(sums[name] for name in ALL_SPLITS)
    copies = {"games": total, "distinct": sums["distinct"], "copies": total - sums["distinct"]}
    return copies | {f"{name}_games_in_train": sums[f"{name}_in_train"] for name in ALL_SPLITS[1:]}


def count_positions(positions: Scratch) -> dict[str, Any]:
    """Return the tables `copies` and `in_train`."""
    sums = []
    for part in positions.parts():
        moves = part.group_by("key", "label").agg(pl.len().alias("rows"), *_BY_SPLIT).collect(engine="streaming")
        by_key = moves.group_by("key").agg(pl.col("rows").max().alias("most_played"), pl.col("rows", *ALL_SPLITS).sum())
        repeated = pl.col("rows", "most_played").filter(pl.col("rows") > 1).sum()
        of_keys = by_key.select(pl.len().alias("distinct"), repeated, pl.col(ALL_SPLITS).sum(), *_in_train("in_train"))
        sums.append(pl.concat([of_keys, moves.select(_in_train("moves_in_train"))], how="horizontal"))
    found = pl.concat(sums).sum().row(0, named=True)
    rows = sum(found[name] for name in ALL_SPLITS)
    copies = rows - found["distinct"]
    return {
        "copies": {
            "positions": rows,
            "distinct": found["distinct"],
            "copies": copies,
            "copies_share": _share(copies, rows),
            "most_played_move_share_there": _share(found["most_played"], found["rows"]),
        },
        "in_train": [
            {
                "split": name,
                "positions": found[name],
                "in_train": found[f"{name}_in_train"],
                "in_train_share": _share(found[f"{name}_in_train"], found[name]),
                "with_the_same_move": found[f"{name}_moves_in_train"],
            }
            for name in ALL_SPLITS[1:]
            if found[name]
        ],
    }


def _share(part: int, whole: int) -> float:
    """Return a share with six places; 0 of nothing."""
    return round(part / whole, 6) if whole else 0.0
