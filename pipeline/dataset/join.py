"""Join datasets into a training set: choose which is held out, and count games that are on both sides.

Joining again adds datasets to the set. No dataset is written to, and none leaves the set unless it is named.
"""

import logging
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.progress import Progress, Stop, never, silent
from pipeline.dataset.files.layout import MANIFEST, SPLITS
from pipeline.dataset.files.shard_files import games_tables
from pipeline.dataset.files.shards import file_hash, publish_json, read_manifest
from pipeline.dataset.files.verify_files import verify_files
from pipeline.dataset.scratch import Scratch
from pipeline.dataset.training_set import (
    ALL_SPLITS,
    LATEST,
    TRAINING_SET,
    TRAINING_SET_VERSION,
    Member,
    is_training_set,
    read_training_set,
)
from pipeline.errors import ConfigError, DatasetError, Stopped
from pipeline.storage.claims import TRAINING_SET as TRAINING_SET_FOLDER
from pipeline.storage.claims import require_apart, require_own
from pipeline.storage.stores import alone

if TYPE_CHECKING:
    import polars as pl

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class JoinConfig:
    """Settings of a training set; its page records them, and a join with other settings is refused."""

    hold_out: str = "latest"
    """Datasets held out whole: latest (those of the last month, if there are several months), none, or a dataset's name."""


def join(
    datasets: Sequence[Path],
    out: Path,
    config: JoinConfig | None = None,
    *,
    remove: Sequence[str] = (),
    progress: Progress = silent,
    stop: Stop = never,
) -> dict[str, Any]:
    """Add datasets to the training set in `out`, which may be new, and return its page; `remove` names those that leave it.

    Raises DatasetError (no dataset, one that has changed since it was joined, other settings, nothing left to train on),
    ConfigError (two datasets of one name, an unknown name) and Stopped.
    """
    config = config or JoinConfig()
    if (out / MANIFEST).exists():
        raise DatasetError(f"{out} is a dataset: choose another --out for the training set")
    require_own(out, TRAINING_SET_FOLDER, DatasetError)
    require_apart(out, datasets, DatasetError)
    for directory in datasets:
        if is_training_set(directory):
            raise DatasetError(f"{directory} is a training set: name the datasets themselves")
        read_manifest(directory)
    new = not out.exists()
    try:
        with alone(out, DatasetError(f"another join is writing {out}: wait for it, or choose another --out")):
            return _join(datasets, out, config, remove, progress, stop)
    finally:
        if new and not is_training_set(out):  # it failed: leave nothing behind
            (out / ".lock").unlink(missing_ok=True)
            with suppress(OSError):
                out.rmdir()


def _join(
    datasets: Sequence[Path], out: Path, config: JoinConfig, remove: Sequence[str], progress: Progress, stop: Stop
) -> dict[str, Any]:
    """Join under the lock."""
    entries = _entries(datasets, out, config, remove)
    used = [Member(out / entry["path"], read_manifest(out / entry["path"])) for entry in entries]
    for entry, member in zip(entries, used, strict=True):
        verify_files(member.directory, member.manifest, progress, stop)
        entry |= _dates(member)
    _hold_out(entries, config)
    used = [replace(member, held_out=entry["held_out"]) for entry, member in zip(entries, used, strict=True)]
    if not any(member.shards("train") for member in used):
        raise DatasetError("no positions to train on are left: all datasets are held out, or have no train split")
    page = {
        "training_set_version": TRAINING_SET_VERSION,
        "config": asdict(config),
        "positions": {split: sum(member.positions(split) for member in used) for split in ALL_SPLITS},
        "games_on_both_sides": _both_sides(used, stop),
        "datasets": entries,
    }
    if stop():
        raise Stopped(f"stopped; {out} is as it was")
    if not is_training_set(out) or read_training_set(out) != page:
        publish_json(out, TRAINING_SET, page)
    return page


def _entries(datasets: Sequence[Path], out: Path, config: JoinConfig, remove: Sequence[str]) -> list[dict[str, Any]]:
    """Return the set's datasets, old ones first; raises if one has changed, or two have the same name."""
    old: list[dict[str, Any]] = []
    if is_training_set(out):
        page = read_training_set(out)
        if page["config"] != asdict(config):
            before = page["config"].get("hold_out")
            raise DatasetError(
                f"{out} was joined with hold_out {before!r}, not {config.hold_out!r}",
                remedy="choose another --out",
                code="taken",
            )
        old = page["datasets"]
    if unknown := sorted(set(remove) - {entry["name"] for entry in old}):
        raise ConfigError(f"{out} holds no dataset {unknown[0]!r} to remove")
    kept = [{key: entry[key] for key in ("name", "path", "manifest_sha256")} for entry in old]
    found = {(out / entry["path"]).resolve(): entry for entry in kept if entry["name"] not in remove}
    for directory in dict.fromkeys(path.resolve() for path in datasets):
        if directory not in found:
            found[directory] = {
                "name": directory.name,
                "path": Path(os.path.relpath(directory, out.resolve())).as_posix(),  # both can be moved together
                "manifest_sha256": file_hash(directory / MANIFEST),
            }
    entries = list(found.values())
    names = [entry["name"] for entry in entries]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"two datasets are called {twice[0]!r}: rename the folder of one")
    if not entries:
        raise ConfigError("name at least one dataset to join")
    for entry in entries:
        folder = out / entry["path"]
        read_manifest(folder)
        if file_hash(folder / MANIFEST) != entry["manifest_sha256"]:
            raise DatasetError(
                f"{folder} has changed since it was joined",
                remedy=f"take it out with --remove {entry['name']} first",
                code="member-changed",
            )
    return entries


_DAY = re.compile(r"[0-9]{4}\.[0-9]{2}[.0-9?]{0,8}")


def _dates(member: Member) -> dict[str, Any]:
    """Return the first and the last day of a dataset's games, as PGN writes them; None if no game has one."""
    days: set[str] = set()
    for _, games in games_tables(member.directory, member.manifest, ["date"]):
        found = {text for text in games["date"].unique().to_pylist() if text and _DAY.fullmatch(text)}
        days = {min(days | found), max(days | found)} if days | found else set()
    return {"first_date": min(days, default=None), "last_date": max(days, default=None), "held_out": False}


def _hold_out(entries: list[dict[str, Any]], config: JoinConfig) -> None:
    """Mark the datasets that are held out, and log which and why."""
    months = [(entry["last_date"] or "")[:7] for entry in entries]
    if config.hold_out == "latest":
        if max(months) > min(months):  # else holding out the last month would leave nothing
            for entry, month in zip(entries, months, strict=True):
                entry["held_out"] = month == max(months)
    elif config.hold_out != "none":
        if config.hold_out not in {entry["name"] for entry in entries}:
            raise ConfigError(
                f"hold_out is latest, none or a dataset's name, and no dataset is called {config.hold_out!r}"
            )
        for entry in entries:
            entry["held_out"] = entry["name"] == config.hold_out
    held = ", ".join(entry["name"] for entry in entries if entry["held_out"])
    latest = "the latest month, by --hold-out latest" if held else "--hold-out latest needs a second month"
    LOG.info(
        "held out whole: %s (%s)", held or "no dataset", latest if config.hold_out == "latest" else "by --hold-out"
    )


def _both_sides(used: Sequence[Member], stop: Stop) -> dict[str, int]:
    """Count the games of each test split, by the hash of their moves, that train has too."""
    import polars as pl

    counts = dict.fromkeys(ALL_SPLITS[1:], 0)
    with tempfile.TemporaryDirectory(prefix="fianchetto-join-") as folder:
        games = Scratch(Path(folder), sum(member.manifest["games"]["used"] for member in used))
        for member in used:
            if stop():
                raise Stopped("stopped; nothing was written")
            for frame in game_splits(member):
                games.add(frame)
        for part in games.parts():
            train = part.filter(pl.col("split") == 0).select("key")
            shared = part.filter(pl.col("split") > 0).join(train, on="key", how="semi").collect()
            for split, count in shared.group_by("split").len().iter_rows():
                counts[ALL_SPLITS[split]] += count
    return counts


def game_splits(member: Member) -> "Iterator[pl.DataFrame]":
    """Yield the used games of a dataset: `key`, the hash of their moves, and `split`, an index into ALL_SPLITS."""
    import polars as pl

    for _, table in games_tables(member.directory, member.manifest, ["identity", "split"]):
        games = pl.DataFrame(pl.from_arrow(table)).drop_nulls("split").rename({"identity": "key"})
        index = pl.col("split").replace_strict(SPLITS, range(len(SPLITS)), return_dtype=pl.UInt8)
        yield games.with_columns(split=pl.lit(ALL_SPLITS.index(LATEST), pl.UInt8) if member.held_out else index)
