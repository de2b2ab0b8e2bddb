"""Datasets, opened once and passed along; a training set is a dataset of datasets.

`training_set.json` joins datasets (such as months) without copying rows: it lists the relative path
of each dataset and the hash of its manifest.

The splits `train`, `val` and `test` of a training set are those of its datasets, without the
held-out games. All rows of held-out games form its split `latest`. Stability: the file records
TRAINING_SET_VERSION, which is incremented when a field changes its meaning.
"""

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from engine.json_files import read_json, safe_text, validate_content
from engine.progress import Progress, Stop, never, silent
from pipeline.dataset.files.columns import MANIFEST, SPLITS, PlaneFormat
from pipeline.dataset.files.games import read_game_tables
from pipeline.dataset.files.manifest import MAX_MANIFEST_BYTES, TrainingSet, read_manifest
from pipeline.dataset.files.shards import Batch, ShardReader, open_shard
from pipeline.dataset.files.verify_files import verify_files
from pipeline.errors import DatasetError
from pipeline.storage.stores import hash_file

TRAINING_SET_VERSION = 3
TRAINING_SET_FILE = "training_set.json"
LATEST = "latest"
"""Name of the split with all held-out rows."""
ALL_SPLITS = (*SPLITS, LATEST)
HOLD_OUT_ALL, HOLD_OUT_NONE = "all", "none"
"""Values of `held_out`; any other value is the first held-out day, as in a PGN's Date tag."""
DAY_PATTERN = r"^[0-9]{4}\.[0-9]{2}\.[0-9]{2}$"
"""Pattern of a complete PGN date. Games without one are held out only with their whole dataset."""


@dataclass(frozen=True, slots=True)
class Shard:
    """A file of rows, or those of its rows that are in one split of a training set."""

    path: Path
    stored_groups: tuple[int, ...]
    """Number of rows in each row group of the file."""
    games: int
    """Number of games in its dataset; the values of the column `game` are below it."""
    plane_format: PlaneFormat
    """How planes are stored."""
    groups: tuple[int, ...]
    """Number of rows of the split in each row group."""
    by_engine: bool = False
    """Whether its labels are engine moves."""
    wanted_games: NDArray[np.bool_] | None = field(default=None, compare=False, repr=False)
    """Mask of the games in the split, [G]; None if all rows of the file are in it."""

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return sum(self.groups)

    def open(self, metadata: pq.FileMetaData | None = None) -> AbstractContextManager[ShardReader]:
        """Open the file to read its rows, as `open_shard` does."""
        return open_shard(self.path, self.stored_groups, metadata, self.wanted_games)


@dataclass(frozen=True, eq=False)
class Dataset:
    """An opened dataset or training set."""

    path: Path
    manifest: dict[str, Any] = field(repr=False)
    """Content of `manifest.json`, or of `training_set.json` for a training set."""
    identity: str
    """SHA-256 of `manifest.json`, or of `training_set.json`."""
    joined: "tuple[Dataset, ...]" = ()
    """Datasets of a training set; empty for a dataset."""
    held_out: str = HOLD_OUT_NONE
    """First day of the games that a training set holds out, or HOLD_OUT_ALL or HOLD_OUT_NONE."""
    held_rows: Mapping[str, Sequence[int]] = field(default_factory=dict, repr=False)
    """Number of held-out rows in each row group, by file name, if `held_out` is a day."""

    @classmethod
    def open(
        cls, path: "Path | Dataset", progress: Progress = silent, stop: Stop = never
    ) -> "Dataset":
        """Open a folder and verify its files; an opened dataset is returned unchanged.

        Local files that were not verified before are hashed, with progress reported in bytes.
        Raises Stopped, and DatasetError for a dataset that is missing, has changed since it was
        joined, or differs from its manifest.
        """
        if isinstance(path, Dataset):
            return path
        opened = _open_training_set(path) if is_training_set(path) else open_unverified(path)
        for part in opened.parts:
            verify_files(part.path, part.manifest, progress, stop)
        return opened

    @property
    def name(self) -> str:
        """Return the folder's name."""
        return self.path.resolve().name

    @property
    def parts(self) -> "tuple[Dataset, ...]":
        """Return the datasets of a training set, or the dataset itself."""
        return self.joined or (self,)

    @property
    def has_engine_moves(self) -> bool:
        """Return whether the labels of any part are moves of engine analyses."""
        return any(part.manifest.get("moves_by") == "engine" for part in self.parts)

    def count_rows(self, split: str) -> int:
        """Return the number of rows of a split."""
        return sum(
            sum(part._count_group_rows(entry, split))
            for part in self.parts
            for entry in part.manifest["files"]
        )

    def has_rows(self, split: str) -> bool:
        """Return whether a split has rows."""
        return self.count_rows(split) > 0

    def list_shards(self, split: str) -> list[Shard]:
        """Return the shards of a split; reads the games' dates if some games are held out."""
        return [shard for part in self.parts for shard in part._iterate_shards(split)]

    def require_shards(self, split: str) -> list[Shard]:
        """Return the shards of a split; raises DatasetError if it is empty or unknown."""
        if split == LATEST and not self.joined:
            why = "`latest` is a split of training sets only: name another split"
            raise DatasetError(f"{self.path} is a dataset, and {why}")
        if split not in ALL_SPLITS:
            splits = ", ".join(ALL_SPLITS if self.joined else SPLITS)
            raise DatasetError(f"unknown split {split!r}: choose from {splits}")
        found = self.list_shards(split)
        if not found:
            hint = f": {TRAINING_SET_FILE} says why nothing is held out" if split == LATEST else ""
            raise DatasetError(f"{self.path} has no positions in its {split} split{hint}")
        return found

    def read_rows(self, split: str, columns: Sequence[str]) -> Iterator[Batch]:
        """Yield the rows of a split in file order, one row group at a time."""
        return read_row_groups(self.list_shards(split), columns)

    def read_games(self, columns: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
        """Yield tables of games, each with the number of its first game within its dataset."""
        for part in self.parts:
            yield from read_game_tables(part.path, part.manifest, columns)

    def is_held_out(self, dates: pa.ChunkedArray) -> NDArray[np.bool_]:
        """Return which games are held out, bool[G], from their dates."""
        if self.held_out in (HOLD_OUT_ALL, HOLD_OUT_NONE):
            return np.full(len(dates), self.held_out == HOLD_OUT_ALL)
        is_day = pc.match_substring_regex(dates, DAY_PATTERN)
        is_late = pc.greater_equal(dates, self.held_out)
        return np.asarray(pc.fill_null(pc.and_(is_day, is_late), False))

    @cached_property
    def held_out_games(self) -> NDArray[np.bool_]:
        """Mask of the held-out games of a dataset, bool[G]; computing it reads all dates."""
        return np.concatenate(
            [self.is_held_out(table["date"]) for _, table in self.read_games(["date"])]
        )

    def _iterate_shards(self, split: str) -> Iterator[Shard]:
        by_engine = self.has_engine_moves or "games" in self.manifest.get("selfplay", {})
        for entry in self.manifest["files"]:
            groups = self._count_group_rows(entry, split)
            if not sum(groups):
                continue
            wanted_games = None
            if sum(groups) < entry["rows"]:
                wanted_games = self.held_out_games if split == LATEST else ~self.held_out_games
            yield Shard(
                path=self.path / entry["name"],
                stored_groups=tuple(_list_stored_groups(self.manifest, entry)),
                games=self.manifest["games"]["read"],
                plane_format=self.manifest["planes"],
                groups=tuple(groups),
                by_engine=by_engine,
                wanted_games=wanted_games,
            )

    def _count_group_rows(self, entry: Mapping[str, Any], split: str) -> list[int]:
        if entry["split"] is None or split not in (entry["split"], LATEST):
            return []
        stored = _list_stored_groups(self.manifest, entry)
        held = self.held_rows.get(entry["name"], [0] * len(stored))
        if self.held_out == HOLD_OUT_ALL:
            held = stored
        if split == LATEST:
            return list(held)
        return [rows - out for rows, out in zip(stored, held, strict=True)]


def open_unverified(path: Path) -> Dataset:
    """Open a dataset from its manifest alone, without verifying its files."""
    manifest = read_manifest(path)
    return Dataset(path, manifest, hash_file(path / MANIFEST))


def _list_stored_groups(manifest: Mapping[str, Any], entry: Mapping[str, Any]) -> list[int]:
    full_groups, remainder = divmod(entry["rows"], manifest["row_group"])
    return [manifest["row_group"]] * full_groups + ([remainder] if remainder else [])


def read_row_groups(shards: Iterable[Shard], columns: Sequence[str]) -> Iterator[Batch]:
    """Yield the rows of shards in order, one row group at a time."""
    for shard in shards:
        with shard.open() as reader:
            for group in range(len(reader.groups)):
                rows = reader.read(group, columns, shard.games)
                if len(rows[columns[0]]):
                    yield rows


# ---------------------------------------------------------------- training sets


def is_training_set(path: Path) -> bool:
    """Return whether a folder contains a training set."""
    return (path / TRAINING_SET_FILE).exists()


def read_training_set(path: Path) -> dict[str, Any]:
    """Read and check `training_set.json`; raises DatasetError if it is damaged or outdated."""
    file = path / TRAINING_SET_FILE
    if not file.exists():
        how = "create one with `fianchetto join DATASET... --out DIR`"
        raise DatasetError(f"{path} is not a training set: {how}")
    content = read_json(file, DatasetError, max_bytes=MAX_MANIFEST_BYTES)
    version = content.get("training_set_version") if isinstance(content, dict) else None
    if version != TRAINING_SET_VERSION:
        why = f"has version {safe_text(version)}, but this program reads {TRAINING_SET_VERSION}"
        raise DatasetError(f"{file} {why}: join the datasets again")
    validate_content(file, content, TrainingSet, DatasetError, hint=": join the datasets again")
    return dict(content)


def _open_training_set(path: Path) -> Dataset:
    """Open a training set; raises DatasetError unless its counts match its datasets."""
    content, file = read_training_set(path), path / TRAINING_SET_FILE
    joined = tuple(_open_joined(path, entry) for entry in content["datasets"])
    opened = Dataset(path, content, hash_file(file), joined)
    for split in ALL_SPLITS:
        rows, total = content["positions"].get(split), opened.count_rows(split)
        if rows != total:
            why = f"positions.{split} is {rows}, but its datasets have {total}"
            raise DatasetError(f"{file}: {why}: join the datasets again")
    return opened


def _open_joined(path: Path, entry: Mapping[str, Any]) -> Dataset:
    """Open a dataset of a training set; raises DatasetError if it has changed or does not fit."""
    opened = open_unverified(path / entry["path"])
    require_unchanged(opened, path, entry)
    for file in opened.manifest["files"]:
        stored = _list_stored_groups(opened.manifest, file)
        held = entry["held_rows"].get(file["name"], stored)
        if len(held) != len(stored) or any(map(operator.gt, held, stored)):
            why = f"held_rows of {file['name']} do not match its row groups"
            raise DatasetError(f"{path / TRAINING_SET_FILE}: {why}: join the datasets again")
    return replace(opened, held_out=entry["held_out"], held_rows=entry["held_rows"])


def require_unchanged(dataset: Dataset, joined: Path, entry: Mapping[str, Any]) -> None:
    """Raise DatasetError if a dataset has changed since it was joined to a training set."""
    if dataset.identity != entry["manifest_sha256"]:
        remove = f"`fianchetto join --out {joined} --remove {entry['name']}`"
        raise DatasetError(
            f"{dataset.path} has changed since it was joined",
            remedy=f"remove it with {remove}, then join it again",
            code="member-changed",
        )
