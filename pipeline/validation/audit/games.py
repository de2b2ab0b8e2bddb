"""Figures of the tables of games: games that occur twice, or in train and in a test; how months differ.

Axes: G games, K bins.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from engine.progress import Stop
from pipeline.dataset.files.columns import BATCH_SENTINELS
from pipeline.dataset.files.shard_files import games_tables
from pipeline.dataset.join import game_splits
from pipeline.dataset.strata import CLASSES, rating_band, time_class
from pipeline.dataset.tally import Tally
from pipeline.dataset.training_set import ALL_SPLITS, Member
from pipeline.errors import Stopped
from pipeline.validation.audit.columns import LENGTH, RATING
from pipeline.validation.audit.drift import chain
from pipeline.validation.audit.overlap import shared_with_train

if TYPE_CHECKING:
    import polars as pl

LEAST_GAMES = 500
"""Games that a month must have to be compared with others: of fewer, chance tells more than the month does."""


def copies(datasets: Sequence[Member], stop: Stop) -> dict[str, Any]:
    """Count games by the hash of their moves: copies, and games of a test that train has, in any of the datasets."""
    expected = sum(member.manifest["games"]["used"] for member in datasets)
    with tempfile.TemporaryDirectory(prefix="fianchetto-audit-") as folder:
        tally = Tally(Path(folder), expected)
        for member in datasets:
            for keys, splits in game_splits(member):
                tally.add(keys, splits)
                if stop():
                    raise Stopped("stopped; nothing was written")
        found = shared_with_train(tally)
    total = int(found.rows.sum())
    shared = dict(zip(ALL_SPLITS, found.shared_rows.tolist(), strict=True))
    return {"games": total, "distinct": found.distinct, "copies": total - found.distinct} | {
        f"{split}_games_in_train": shared[split] for split in ALL_SPLITS[1:]
    }


def months(datasets: Sequence[Member], stop: Stop) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Count used games by month, and compare each large month with the one before: rows of two tables."""
    found: dict[str, dict[str, NDArray[np.int64]]] = {}
    for member in datasets:
        for _, table in games_tables(member.directory, member.manifest, _READ):
            if stop():
                raise Stopped("stopped; nothing was written")
            _add(found, table)
    names = sorted(found)
    rows: list[dict[str, Any]] = [
        {
            "month": name,
            "games": int(found[name]["result"].sum()),
            "mean_plies": round(float(found[name]["plies"][0] / found[name]["result"].sum()), 1),
            "draws": round(float(found[name]["result"][1] / found[name]["result"].sum()), 4),
        }
        for name in names
    ]
    large = [name for name in names if int(found[name]["result"].sum()) >= LEAST_GAMES]
    compared = [{name: bins for name, bins in found[month].items() if name != "plies"} for month in large]
    return rows, chain(large, compared)


_READ = ("date", "dropped", "white_elo", "black_elo", "time_control", "result", "plies")


def _add(found: dict[str, dict[str, NDArray[np.int64]]], table: Any) -> None:
    """Count a piece of the games' table by month."""
    import polars as pl

    frame = pl.DataFrame(pl.from_arrow(table)).filter(pl.col("dropped").is_null())
    base, increment = _seconds(frame)
    elo = [frame[name].fill_null(0).to_numpy() for name in ("white_elo", "black_elo")]
    binned = {
        "white_rating": (rating_band(elo[0], RATING), len(RATING) + 2),
        "black_rating": (rating_band(elo[1], RATING), len(RATING) + 2),
        "time_control": (time_class(base, increment), len(CLASSES)),
        "result": (frame["result"].fill_null(0).to_numpy().astype(np.int64) + 1, 3),
        "game_length": (np.searchsorted(LENGTH, frame["plies"].to_numpy(), side="right"), len(LENGTH) + 1),
    }
    begun = frame["date"].fill_null("").str.slice(0, 7)
    month = begun.set(~begun.str.contains(r"^\d{4}\.\d{2}$"), "unknown").to_numpy()
    for name in np.unique(month).tolist():
        mine = found.setdefault(name, {column: np.zeros(size, np.int64) for column, (_, size) in binned.items()})
        here = month == name
        for column, (place, size) in binned.items():
            mine[column] += np.bincount(place[here], minlength=size)
        mine["plies"] = mine.get("plies", np.zeros(1, np.int64)) + int(frame["plies"].to_numpy()[here].sum())


def _seconds(frame: "pl.DataFrame") -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Read `600+5` and `600` as base and increment, in batches' sentinels where it is neither."""
    import polars as pl

    control = frame["time_control"].fill_null("")
    parts = control.str.extract_groups(r"^(?<base>\d{1,5})(?:\+(?<increment>\d{1,3}))?$").struct.unnest()
    base = parts["base"].cast(pl.Int64).fill_null(BATCH_SENTINELS["base"])
    increment = parts["increment"].cast(pl.Int64).fill_null(0)
    return base.to_numpy(), increment.to_numpy()
