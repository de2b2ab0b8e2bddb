"""Join datasets into a training set: which is held out, how train is thinned, and games that stand on both sides.

Joining again adds to what is there; no dataset is written to, and none leaves the set unless it is named.
"""

import logging
import re
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.progress import Progress, Stop, Tick, never, silent
from pipeline.dataset.files.shard_files import games_tables, open_shard
from pipeline.dataset.files.shards import MANIFEST, SPLITS, file_hash, publish_json, read_manifest
from pipeline.dataset.files.vouch import vouch
from pipeline.dataset.strata import CLASSES, RATING_EDGES, Thinning, band_names, rake, rating_band, time_class
from pipeline.dataset.tally import Tally, sums
from pipeline.dataset.training_set import (
    ALL_SPLITS,
    TRAINING_SET,
    TRAINING_SET_VERSION,
    Member,
    is_training_set,
    kept_rows,
    read_training_set,
    row_groups,
    salt_of,
)
from pipeline.errors import ConfigError, DatasetError, Stopped
from pipeline.storage.claims import TRAINING_SET as TRAINING_SET_FOLDER
from pipeline.storage.claims import require_apart, require_own
from pipeline.storage.stores import alone, temporaries

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class JoinConfig:
    """How datasets become a training set; all of it is in the set's page, and a set joined otherwise is not mixed."""

    hold_out: str = "latest"
    """What is held out whole: latest (the datasets of the last month, unless there is no other), none, or the name of a
    dataset."""
    rating_edges: tuple[int, ...] = RATING_EDGES
    """Ratings between the bands of the mover's rating."""
    rating_shares: tuple[float, ...] = ()
    """Shares of train that the rating bands are to have: below the first edge, between edges, above the last, rating
    unknown. Empty: as the datasets are."""
    time_shares: tuple[float, ...] = ()
    """Shares of train that the time controls are to have: ultraBullet, bullet, blitz, rapid, classical, unknown. Empty: as
    the datasets are."""
    seed: int = 0
    """Random seed of the thinning."""

    def __post_init__(self) -> None:
        """Check what the types do not say."""
        if not self.rating_edges or list(self.rating_edges) != sorted({*self.rating_edges}) or self.rating_edges[0] < 1:
            raise ConfigError("rating_edges are one or more ratings, ascending")
        if self.rating_edges[-1] > 65535 or len(self.rating_edges) > 1000:
            raise ConfigError("rating_edges are at most 1,000 ratings of at most 65,535")
        wanted = {"rating_shares": len(self.rating_edges) + 2, "time_shares": len(CLASSES)}
        for name, count in wanted.items():
            shares = getattr(self, name)
            if shares and (
                len(shares) != count or not all(0 <= share < 1e9 for share in shares) or not sum(shares) > 0
            ):
                raise ConfigError(f"{name} takes {count} numbers, none below 0 and not all 0, or stays empty")
        if not 0 <= self.seed < 1 << 32:
            raise ConfigError("seed is from 0 to 4294967295")


def join(
    datasets: Sequence[Path],
    out: Path,
    config: JoinConfig | None = None,
    *,
    remove: Sequence[str] = (),
    progress: Progress = silent,
    stop: Stop = never,
) -> dict[str, Any]:
    """Add datasets to the training set in `out`, which may be new, and give its page; `remove` names those that leave it.

    Raises DatasetError (no dataset, one that has changed since it was joined, other settings, nothing left to train on),
    ConfigError (two datasets of one name, shares that cannot be had) and Stopped.
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
        if new and not is_training_set(out):  # nothing came of it: leave nothing behind
            (out / ".lock").unlink(missing_ok=True)
            with suppress(OSError):
                out.rmdir()


def _join(
    datasets: Sequence[Path], out: Path, config: JoinConfig, remove: Sequence[str], progress: Progress, stop: Stop
) -> dict[str, Any]:
    """Join under the lock."""
    for left in temporaries(out):
        left.unlink(missing_ok=True)
    entries = _entries(datasets, out, config, remove)
    manifests = [read_manifest(out / entry["path"]) for entry in entries]
    used = [Member(out / entry["path"], it) for entry, it in zip(entries, manifests, strict=True)]
    for member in used:
        vouch(member.directory, member.manifest, progress, stop)
    for entry, member in zip(entries, used, strict=True):
        entry |= _dates(member)
    _hold_out(entries, config)
    held = ", ".join(entry["name"] for entry in entries if entry["held_out"])
    latest = "the latest month, by --hold-out latest" if held else "--hold-out latest needs a second month"
    why = {"latest": latest, "none": "by --hold-out none"}
    LOG.info("held out whole: %s (%s)", held or "no dataset", why.get(config.hold_out, "by --hold-out"))
    used = [replace(member, held_out=entry["held_out"]) for entry, member in zip(entries, used, strict=True)]
    if not any(member.shards("train") for member in used):
        raise DatasetError("no positions to train on are left: all datasets are held out, or have no train split")
    rates, before = None, None
    if config.rating_shares or config.time_shares:
        counts = _strata(used, config, progress, stop)
        raked = rake(counts, config.rating_shares, config.time_shares).round(9)
        rates = [[float(rate) for rate in row] for row in raked]
        before = _shares(counts, config)
        for entry, member in zip(entries, used, strict=True):
            thinning = Thinning(
                config.rating_edges, tuple(map(tuple, rates)), salt_of(entry["manifest_sha256"], config.seed)
            )
            entry["kept"] = {} if member.held_out else _kept(member, thinning, stop)
    page = {
        "training_set_version": TRAINING_SET_VERSION,
        "config": _plain(config),
        "positions": _positions(entries, used),
        "games_on_both_sides": _both_sides(used, stop),
        "shares_before": before,
        "rates": rates,
        "datasets": entries,
    }
    if stop():
        raise Stopped(f"stopped; {out} is as it was")
    if not is_training_set(out) or read_training_set(out) != page:
        publish_json(out, TRAINING_SET, page)
    return page


def _plain(config: JoinConfig) -> dict[str, Any]:
    """Give the settings as JSON has them."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(config).items()}


def _entries(datasets: Sequence[Path], out: Path, config: JoinConfig, remove: Sequence[str]) -> list[dict[str, Any]]:
    """List the datasets of the set, old ones first as they were; raises where one has changed or a name stands twice."""
    old: list[dict[str, Any]] = []
    if is_training_set(out):
        page = read_training_set(out)
        if page["config"] != _plain(config):
            differing = [name for name, value in _plain(config).items() if page["config"].get(name) != value]
            raise DatasetError(f"{out} was joined with other settings ({', '.join(differing)}): choose another --out")
        old = page["datasets"]
    if unknown := sorted(set(remove) - {entry["name"] for entry in old}):
        raise ConfigError(f"{out} holds no dataset {unknown[0]!r} to remove")
    entries = [{key: entry[key] for key in ("name", "path", "manifest_sha256")} for entry in old]
    entries = [entry for entry in entries if entry["name"] not in remove]
    known = {(out / entry["path"]).resolve(): entry for entry in entries}
    for directory in dict.fromkeys(path.resolve() for path in datasets):
        if directory not in known:
            known[directory] = {
                "name": directory.name,
                "path": _relative(directory, out.resolve()),
                "manifest_sha256": file_hash(directory / MANIFEST),
            }
    entries = list(known.values())
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
                f"{folder} has changed since it was joined: take it out with --remove {entry['name']} first"
            )
    return entries


def _relative(directory: Path, out: Path) -> str:
    """Give the way from a folder to another, so that both may be moved together."""
    import os

    return Path(os.path.relpath(directory, out)).as_posix()


_DAY = re.compile(r"[0-9]{4}\.[0-9]{2}[.0-9?]{0,8}")


def _dates(member: Member) -> dict[str, Any]:
    """Give the first and the last day of a dataset's games, as PGN writes them; None where no game has one."""
    first, last = "9", ""
    for _, games in games_tables(member.directory, member.manifest, ["date"]):
        for text in games["date"].unique().to_pylist():
            if text and _DAY.fullmatch(text):
                first, last = min(first, text), max(last, text)
    return {"first_date": first if last else None, "last_date": last or None, "held_out": False}


def _hold_out(entries: list[dict[str, Any]], config: JoinConfig) -> None:
    """Mark the datasets that are held out."""
    if config.hold_out == "none":
        return
    if config.hold_out == "latest":
        months = [(entry["last_date"] or "")[:7] for entry in entries]
        if max(months) == min(months):
            return  # there is no later one, or nothing but it
        for entry, month in zip(entries, months, strict=True):
            entry["held_out"] = month == max(months)
        return
    if config.hold_out not in {entry["name"] for entry in entries}:
        raise ConfigError(f"hold_out is latest, none or a dataset's name, and no dataset is called {config.hold_out!r}")
    for entry in entries:
        entry["held_out"] = entry["name"] == config.hold_out


def _strata(used: Iterable[Member], config: JoinConfig, progress: Progress, stop: Stop) -> NDArray[np.int64]:
    """Count the positions of train by band of the mover's rating and class of time control, [B, C]."""
    shape = (len(config.rating_edges) + 2, len(CLASSES))
    counts = np.zeros(shape, dtype=np.int64)
    shards = [shard for member in used for shard in member.shards("train")]
    for done, shard in enumerate(shards):
        for rows in row_groups([shard], ("elo", "base", "increment")):
            band, kind = rating_band(rows["elo"], config.rating_edges), time_class(rows["base"], rows["increment"])
            counts += np.bincount(band * shape[1] + kind, minlength=counts.size).reshape(shape)
        progress(Tick(done + 1, len(shards), "shards", {}))
        if stop():
            raise Stopped("stopped; nothing was written")
    return counts


def _shares(counts_BC: NDArray[np.int64], config: JoinConfig) -> dict[str, dict[str, float]]:
    """Give the shares of bands and classes by name."""
    total = max(int(counts_BC.sum()), 1)
    bands, classes = (counts_BC.sum(axis=axis) / total for axis in (1, 0))
    return {
        "rating": {name: round(float(x), 6) for name, x in zip(band_names(config.rating_edges), bands, strict=True)},
        "time_control": {name: round(float(x), 6) for name, x in zip(CLASSES, classes, strict=True)},
    }


def _kept(member: Member, thinning: Thinning, stop: Stop) -> dict[str, list[int]]:
    """Count the rows of train that stay, by shard and row group."""
    found = {}
    for shard in member.shards("train"):
        if stop():
            raise Stopped("stopped; nothing was written")
        with open_shard(shard.path, shard.rows) as reader:
            groups = range(len(reader.groups))
            found[shard.path.name] = [int(kept_rows(reader, group, thinning).sum()) for group in groups]
    return found


def _positions(entries: Sequence[dict[str, Any]], used: Sequence[Member]) -> dict[str, int]:
    """Count the positions of each split of the set."""
    counts = dict.fromkeys(ALL_SPLITS, 0)
    for entry, member in zip(entries, used, strict=True):
        for split in SPLITS:
            rows = member.manifest["positions"][split]
            if split == "train" and entry.get("kept"):
                rows = sum(chain.from_iterable(entry["kept"].values()))
            counts["latest" if member.held_out else split] += rows
    return counts


def _both_sides(used: Sequence[Member], stop: Stop) -> dict[str, Any]:
    """Count the games, by the hash of their moves, that train of one dataset holds, and a test of another or the same."""
    expected = sum(member.manifest["games"]["used"] for member in used)
    counts = dict.fromkeys(ALL_SPLITS[1:], 0)
    examples: list[str] = []
    with tempfile.TemporaryDirectory(prefix="fianchetto-join-") as folder:
        tally = Tally(Path(folder), expected)
        for member in used:
            if stop():
                raise Stopped("stopped; nothing was written")
            for keys, splits in game_splits(member):
                tally.add(keys, splits)
        for keys, what, number in tally.parts():
            at = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
            games = [sums(np.where(what == split, number, 0), at) for split in range(len(ALL_SPLITS))]
            for split, name in enumerate(ALL_SPLITS[1:], 1):
                counts[name] += int(games[split][games[0] > 0].sum())
            both = (games[0] > 0) & (games[1] + games[2] + games[3] > 0)
            examples += [f"{identity:016x}" for identity in keys[at][both][: 5 - len(examples)]]
    return {**counts, "examples": examples}


def game_splits(member: Member) -> Iterable[tuple[NDArray[np.uint64], NDArray[np.uint32]]]:
    """Give the identities of a dataset's games that are used, and their splits as indices into ALL_SPLITS."""
    for _, games in games_tables(member.directory, member.manifest, ["identity", "split"]):
        names = games["split"].to_pylist()
        number = {name: at for at, name in enumerate(SPLITS)}
        splits = np.array([number.get(name, 255) for name in names], dtype=np.uint32)
        used = splits < len(SPLITS)
        whole = np.full(int(used.sum()), ALL_SPLITS.index("latest"), dtype=np.uint32)
        yield games["identity"].to_numpy()[used], whole if member.held_out else splits[used]
