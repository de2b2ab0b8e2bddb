"""Join datasets into a training set, choose held-out games, and count games in several splits.

Joining again adds datasets to the set; only those named in `remove` leave it. The datasets
themselves are never changed.
"""

import logging
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.progress import Progress, Stop, never, silent
from pipeline.dataset.dataset import (
    ALL_SPLITS,
    DAY_PATTERN,
    HOLD_OUT_ALL,
    HOLD_OUT_NONE,
    LATEST,
    TRAINING_SET_FILE,
    TRAINING_SET_VERSION,
    Dataset,
    is_training_set,
    open_unverified,
    read_row_groups,
    read_training_set,
    require_unchanged,
)
from pipeline.dataset.files.columns import MANIFEST, SPLITS
from pipeline.dataset.scratch import RowPartitions
from pipeline.errors import ConfigError, DatasetError, Stopped
from pipeline.storage.job_folder import TRAINING_SET_KIND, JobFolder
from pipeline.storage.stores import publish_json

if TYPE_CHECKING:
    import polars as pl

LOG = logging.getLogger(__name__)

NEWEST = "newest"
NEWEST_SHARE = 0.1
"""Maximum share of a dataset's dated games that NEWEST holds out, unless its last day has more."""
NO_GAMES_HELD_OUT = "only its val and test splits are held out"


@dataclass(frozen=True, kw_only=True, slots=True)
class JoinConfig:
    """Settings of a training set, which stay the same when more datasets are joined to it."""

    hold_out: str = NEWEST
    """Games to hold out besides the val and test splits: newest (each dataset's last day, and
    earlier days up to a tenth of its games), none, or the name of a dataset to hold out fully."""


def join(
    datasets: Sequence[Path],
    out: Path,
    config: JoinConfig | None = None,
    *,
    remove: Sequence[str] = (),
    progress: Progress = silent,
    stop: Stop = never,
) -> dict[str, Any]:
    """Add datasets to the training set in `out`, drop those named in `remove`, return its content.

    Raises DatasetError for a folder that is not a dataset, a dataset that has changed since it was
    joined, settings other than those of the set, or an empty train split. Raises ConfigError for
    two datasets with the same name or manifest and for an unknown name. Raises Stopped.
    """
    config = config or JoinConfig()
    if (out / MANIFEST).exists():
        raise DatasetError(f"{out} is a dataset: choose another --out for the training set")
    folder = JobFolder(out, TRAINING_SET_KIND, DatasetError, reads=datasets)
    folder.check()
    for directory in datasets:
        if is_training_set(directory):
            raise DatasetError(f"{directory} is a training set: name the datasets themselves")
        open_unverified(directory)
    with folder.lock():
        entries = _collect_entries(datasets, out, config, remove)
        joined = []
        for entry in entries:
            opened = Dataset.open(out / entry["path"], progress, stop)
            require_unchanged(opened, out, entry)
            joined.append(_hold_out(entry, opened, config, stop))
        if not any(part.has_rows("train") for part in joined):
            why = "all datasets are held out, or have no train split"
            raise DatasetError(f"no positions are left to train on: {why}")
        games = count_games(joined, stop)
        content = {
            "training_set_version": TRAINING_SET_VERSION,
            "config": asdict(config),
            "positions": {
                split: sum(part.count_rows(split) for part in joined) for split in ALL_SPLITS
            },
            "games_on_both_sides": {split: games[f"{split}_in_train"] for split in ALL_SPLITS[1:]},
            "datasets": entries,
        }
        if stop():
            raise Stopped(f"stopped; {out} is unchanged")
        if not is_training_set(out) or read_training_set(out) != content:
            publish_json(out, TRAINING_SET_FILE, content)
    return content


def _collect_entries(
    datasets: Sequence[Path], out: Path, config: JoinConfig, remove: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the entries of the old and the new datasets; raises ConfigError, DatasetError."""
    old: list[dict[str, Any]] = []
    if is_training_set(out):
        content = read_training_set(out)
        if content["config"] != asdict(config):
            before = content["config"].get("hold_out")
            raise DatasetError(
                f"{out} was joined with hold_out {before!r}, not {config.hold_out!r}",
                remedy="choose another --out",
                code="taken",
            )
        old = content["datasets"]
    if unknown := sorted(set(remove) - {entry["name"] for entry in old}):
        raise ConfigError(f"{out} has no dataset {unknown[0]!r} to remove")
    kept = [{key: entry[key] for key in ("name", "path", "manifest_sha256")} for entry in old]
    by_folder = {
        (out / entry["path"]).resolve(): entry for entry in kept if entry["name"] not in remove
    }
    for directory in dict.fromkeys(path.resolve() for path in datasets):
        # relative paths, so that the set and its datasets can be moved together
        relative = Path(os.path.relpath(directory, out.resolve())).as_posix()
        entry = {"name": directory.name, "path": relative}
        identity = open_unverified(directory).identity
        by_folder.setdefault(directory, entry | {"manifest_sha256": identity})
    entries = list(by_folder.values())
    names = [entry["name"] for entry in entries]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"two datasets are called {twice[0]!r}: rename one of their folders")
    if config.hold_out not in (NEWEST, HOLD_OUT_NONE, *names):
        why = f"newest, none or a dataset's name, but no dataset is called {config.hold_out!r}"
        raise ConfigError(f"hold_out must be {why}")
    by_hash: dict[str, Path] = {}
    for directory, entry in by_folder.items():
        if (other := by_hash.setdefault(entry["manifest_sha256"], directory)) != directory:
            why = "the same dump was ingested twice, so join only one of them"
            raise ConfigError(f"{other} and {directory} have the same manifest: {why}")
    if not entries:
        raise ConfigError("name at least one dataset to join")
    return entries


def _hold_out(entry: dict[str, Any], dataset: Dataset, config: JoinConfig, stop: Stop) -> Dataset:
    """Choose the held-out games of a dataset, record them in its entry, and return the dataset."""
    days = _count_games_by_day(dataset)
    first, why = _choose_held_out(days, entry["name"], config)
    dataset = replace(dataset, held_out=first)
    if first not in (HOLD_OUT_ALL, HOLD_OUT_NONE):
        dataset = replace(dataset, held_rows=_count_held_rows(dataset, stop))
    entry |= {
        "first_date": min(days, default=None),
        "last_date": max(days, default=None),
        "held_out": first,
        "why": why,
        "held_rows": dataset.held_rows,
    }
    games = first if first in (HOLD_OUT_ALL, HOLD_OUT_NONE) else f"games from {first} on"
    LOG.info("held out of %s: %s (%s)", entry["name"], games, why)
    return dataset


def _count_games_by_day(dataset: Dataset) -> Mapping[str, int]:
    days: Counter[str] = Counter()
    for _, games in dataset.read_games(["date", "split"]):
        dates = games.filter(games["split"].is_valid())["date"]
        days.update({row["values"]: row["counts"] for row in dates.value_counts().to_pylist()})
    return {day: games for day, games in days.items() if day and re.fullmatch(DAY_PATTERN, day)}


def _choose_held_out(days: Mapping[str, int], name: str, config: JoinConfig) -> tuple[str, str]:
    """Return the value of `Dataset.held_out` for a dataset, and the reason for it."""
    if config.hold_out != NEWEST:
        held_out = HOLD_OUT_ALL if name == config.hold_out else HOLD_OUT_NONE
        return held_out, f"by hold_out {config.hold_out}"
    total, held, first = sum(days.values()), 0, ""
    for day in sorted(days, reverse=True):
        if first and held + days[day] > NEWEST_SHARE * total:
            break
        first, held = day, held + days[day]
    if not days:
        return HOLD_OUT_NONE, f"its games have no dates: {NO_GAMES_HELD_OUT}"
    if 2 * held > total:
        return HOLD_OUT_NONE, f"most of its games are from one day, {first}: {NO_GAMES_HELD_OUT}"
    return first, f"{held:,} of its {total:,} games, the newest"


def _count_held_rows(dataset: Dataset, stop: Stop) -> dict[str, list[int]]:
    is_held_out, found = dataset.held_out_games, dict[str, list[int]]()
    for shard in (shard for split in SPLITS for shard in dataset.list_shards(split)):
        if stop():
            raise Stopped("stopped; nothing was written")
        counts = [
            int(is_held_out[rows["game"]].sum()) for rows in read_row_groups([shard], ["game"])
        ]
        if any(counts):
            found[shard.path.name] = counts
    return found


def count_games(datasets: Sequence[Dataset], stop: Stop = never) -> dict[str, int]:
    """Count games by the hash of their moves.

    Returns the number of `distinct` games and, for each split, the number of its games (such as
    `test`) and of its games that also occur in train (`test_in_train`).
    """
    import polars as pl

    with tempfile.TemporaryDirectory(prefix="fianchetto-games-") as folder:
        games = RowPartitions(
            Path(folder), sum(part.manifest["games"]["used"] for part in datasets)
        )
        for part in datasets:
            if stop():
                raise Stopped("stopped; nothing was written")
            for frame in _read_game_splits(part):
                games.add(frame)
        counts = [
            rows.group_by("key")
            .agg(make_split_counts())
            .select(pl.len().alias("distinct"), pl.col(ALL_SPLITS).sum(), *make_shared_counts())
            .collect(engine="streaming")
            for rows in games.read_parts()
        ]
    return pl.concat(counts).cast(pl.Int64).sum().row(0, named=True)


def make_split_counts() -> "list[pl.Expr]":
    """Return polars expressions that count rows by split; the column `split` indexes ALL_SPLITS."""
    import polars as pl

    splits = enumerate(ALL_SPLITS)
    return [(pl.col("split") == number).sum().alias(name) for number, name in splits]


def make_shared_counts(suffix: str = "in_train") -> "list[pl.Expr]":
    """Return polars expressions that count, for each split, the rows whose key occurs in train.

    They apply to a table with one row per key, and a column per split with the key's row count.
    """
    import polars as pl

    in_train = pl.col("train") > 0
    return [pl.col(name).filter(in_train).sum().alias(f"{name}_{suffix}") for name in ALL_SPLITS]


def _read_game_splits(dataset: Dataset) -> "Iterator[pl.DataFrame]":
    """Yield the used games: `key` is a hash of the moves, and `split` an index into ALL_SPLITS."""
    import polars as pl

    index = pl.col("split").replace_strict(SPLITS, range(len(SPLITS)), return_dtype=pl.UInt8)
    latest = pl.lit(ALL_SPLITS.index(LATEST), pl.UInt8)
    for _, table in dataset.read_games(["identity", "split", "date"]):
        held = pl.Series("held", dataset.is_held_out(table["date"]))
        games = pl.DataFrame(pl.from_arrow(table)).with_columns(held).drop_nulls("split")
        yield games.select(key="identity", split=pl.when("held").then(latest).otherwise(index))
