"""Training sets: datasets (months, for example) joined by a page that names them. No row is copied
or moved.

`training_set.json` names each dataset by its folder, relative to the set's, and by the hash of its
manifest. Every function that takes a dataset's folder takes a training set's too: `members` is the
one place that knows the difference.

Splits: `train`, `val` and `test` are those of the datasets, by game, without the games that are
held out: their rows, of whatever split, are the split `latest`. Stability: TRAINING_SET_VERSION
stands in the page; a changed meaning is a new version.
"""

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from engine.json_files import check, read_json, shown
from engine.progress import Progress, Stop, never, silent
from pipeline.dataset.files.columns import Form
from pipeline.dataset.files.layout import LARGEST_MANIFEST, MANIFEST, SPLITS
from pipeline.dataset.files.schemas import TrainingSet
from pipeline.dataset.files.shard_files import ShardReader, games_tables, open_shard
from pipeline.dataset.files.shards import Batch, file_hash, read_manifest
from pipeline.dataset.files.verify_files import verify_files
from pipeline.errors import DatasetError

TRAINING_SET_VERSION = 3
TRAINING_SET = "training_set.json"
LATEST = "latest"
"""The split of all rows that are held out."""
ALL_SPLITS = (*SPLITS, LATEST)
ALL, NONE = "all", "none"
"""Values of `held_out`, besides the first day that is held out, as PGN writes it."""
DAY = r"^[0-9]{4}\.[0-9]{2}\.[0-9]{2}$"
"""A complete date of PGN; games without one are held out with their whole dataset only."""


@dataclass(frozen=True, slots=True)
class Shard:
    """A file of rows, or those of its rows that are of one split of a training set."""

    path: Path
    file_rows: int
    games: int
    """Games of its dataset, which its rows name by number."""
    form: Form
    """How it stores planes."""
    groups: tuple[int, ...]
    """Rows of each row group, without those of other splits."""
    by_engine: bool = False
    """Whether its labels are an engine's moves."""
    wanted: NDArray[np.bool_] | None = field(default=None, compare=False, repr=False)
    """Mask of the games whose rows are in the split, [G]; None if all rows of the file are."""

    @property
    def rows(self) -> int:
        """Return the number of its rows."""
        return sum(self.groups)

    @contextmanager
    def open(self, metadata: pq.FileMetaData | None = None) -> Iterator[ShardReader]:
        """Open the file to read its rows, as `open_shard` does."""
        with open_shard(self.path, self.file_rows, metadata, self.wanted) as reader:
            yield reader


@dataclass(frozen=True, slots=True)
class Member:
    """A dataset, and what its training set holds out of it."""

    directory: Path
    manifest: dict[str, Any]
    held_out: str = NONE
    """The first day of the games that are held out, ALL or NONE."""
    held_rows: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """The rows held out of each row group, by file, where `held_out` is a day; other files have
    none."""

    def shards(self, split: str) -> list[Shard]:
        """Return the shards of a split, which may be none; reads the dates of games if some are
        held out.
        """
        wanted: NDArray[np.bool_] | None = None
        found = []
        for entry in self.manifest["files"]:
            if not sum(groups := self._groups(entry, split)):
                continue
            divided = sum(groups) < entry["rows"]
            if divided and wanted is None:
                wanted = self.held_games() if split == LATEST else ~self.held_games()
            path, games, form = (
                self.directory / entry["name"],
                self.manifest["games"]["read"],
                self.manifest["planes"],
            )
            by_engine = self.manifest.get("moves_by") == "engine" or "games" in self.manifest.get(
                "selfplay", {}
            )
            found.append(
                Shard(
                    path,
                    entry["rows"],
                    games,
                    form,
                    tuple(groups),
                    by_engine,
                    wanted if divided else None,
                )
            )
        return found

    def positions(self, split: str) -> int:
        """Return the number of rows of a split."""
        return sum(sum(self._groups(entry, split)) for entry in self.manifest["files"])

    def is_held(self, dates: pa.ChunkedArray) -> NDArray[np.bool_]:
        """Return whether games of these dates are held out, bool[G]."""
        if self.held_out in (ALL, NONE):
            return np.full(len(dates), self.held_out == ALL)
        later = pc.and_(
            pc.match_substring_regex(dates, DAY), pc.greater_equal(dates, self.held_out)
        )
        return np.asarray(pc.fill_null(later, False))

    def held_games(self) -> NDArray[np.bool_]:
        """Return whether each game is held out, bool[G]."""
        tables = games_tables(self.directory, self.manifest, ["date"])
        return np.concatenate([self.is_held(table["date"]) for _, table in tables])

    def _groups(self, entry: Mapping[str, Any], split: str) -> list[int]:
        """Return the rows of each row group of a file that are of a split."""
        if entry["split"] is None or split not in (entry["split"], LATEST):
            return []
        stored = _stored_groups(self.manifest, entry)
        held = (
            stored if self.held_out == ALL else self.held_rows.get(entry["name"], [0] * len(stored))
        )
        return (
            list(held)
            if split == LATEST
            else [rows - out for rows, out in zip(stored, held, strict=True)]
        )


def _stored_groups(manifest: Mapping[str, Any], entry: Mapping[str, Any]) -> list[int]:
    """Return the rows of each row group of a file."""
    whole, rest = divmod(entry["rows"], manifest["row_group"])
    return [manifest["row_group"]] * whole + ([rest] if rest else [])


def is_training_set(directory: Path) -> bool:
    """Return whether a folder is a training set's, by its page."""
    return (directory / TRAINING_SET).exists()


def read_training_set(directory: Path) -> dict[str, Any]:
    """Read and check a training set's page; raises DatasetError for one that is damaged or of
    another version.
    """
    path = directory / TRAINING_SET
    if not path.exists():
        raise DatasetError(
            f"{directory} is no training set: `fianchetto join DATASET... --out DIR` makes one"
        )
    page = read_json(path, DatasetError, largest=LARGEST_MANIFEST)
    if not isinstance(page, dict) or page.get("training_set_version") != TRAINING_SET_VERSION:
        found = page.get("training_set_version") if isinstance(page, dict) else None
        raise DatasetError(
            f"{path} has version {shown(found)}, this program {TRAINING_SET_VERSION}: join the "
            f"datasets again"
        )
    check(path, page, TrainingSet, DatasetError, hint=": join the datasets again")
    return page


def members(directory: Path, progress: Progress = silent, stop: Stop = never) -> list[Member]:
    """Return the datasets of a training set, or the one dataset of a folder, with their files
    verified.

    Raises DatasetError for a dataset that is missing, has changed since it was joined, or differs
    from its manifest, and Stopped. Hashing files for the first time reports progress in bytes.
    """
    if is_training_set(directory):
        page = read_training_set(directory)
        found = [_read_member(directory, entry) for entry in page["datasets"]]
        for split in ALL_SPLITS:
            if (rows := page["positions"].get(split)) != (
                total := sum(member.positions(split) for member in found)
            ):
                raise DatasetError(
                    f"{directory / TRAINING_SET}: positions.{split} is {rows}, and its datasets "
                    f"have {total}: join them again"
                )
    else:
        found = [Member(directory, read_manifest(directory))]
    for member in found:
        verify_files(member.directory, member.manifest, progress, stop)
    return found


def _read_member(directory: Path, entry: Mapping[str, Any]) -> Member:
    """Return a dataset of a training set; DatasetError if it has changed since it was joined."""
    folder = directory / entry["path"]
    manifest = read_manifest(folder)
    if file_hash(folder / MANIFEST) != entry["manifest_sha256"]:
        raise DatasetError(
            f"{folder} has changed since it was joined",
            remedy=f"`fianchetto join --out {directory} --remove {entry['name']}` removes it; then "
            f"join it again",
            code="member-changed",
        )
    for file in manifest["files"]:
        stored = _stored_groups(manifest, file)
        held = entry["held_rows"].get(file["name"], stored)
        if len(held) != len(stored) or any(map(operator.gt, held, stored)):
            raise DatasetError(
                f"{directory / TRAINING_SET}: held_rows of {file['name']} do not fit the file: "
                f"join the datasets again"
            )
    return Member(folder, manifest, entry["held_out"], entry["held_rows"])


def split_shards(directory: Path, split: str) -> list[Shard]:
    """Return the shards of a split of a dataset or a training set; raises DatasetError if the split
    is empty or unknown.
    """
    joined = is_training_set(directory)
    if not joined and split == LATEST:
        raise DatasetError(
            f"{directory} is a dataset, and `latest` is a split of training sets only: name "
            f"another split"
        )
    splits = ALL_SPLITS if joined else SPLITS
    used = members(directory)
    if split not in splits:
        raise DatasetError(f"no split {split!r}: there are {', '.join(splits)}")
    found = [shard for member in used for shard in member.shards(split)]
    if not found:
        hint = f": {TRAINING_SET} says why nothing is held out" if split == LATEST else ""
        raise DatasetError(f"{directory} has no positions in its {split} split{hint}")
    return found


def row_groups(shards: Iterable[Shard], columns: Sequence[str]) -> Iterator[Batch]:
    """Yield the rows of shards in their order, one row group at a time."""
    for shard in shards:
        with shard.open() as reader:
            for group in range(len(reader.groups)):
                rows = reader.read(group, columns, shard.games)
                if len(rows[columns[0]]):
                    yield rows
