"""Training sets: datasets (months, for example) joined by a page that names them. No row is copied or moved.

`training_set.json` names each dataset by its folder, relative to the set's, and by the hash of its manifest. Every function
that takes a dataset's folder takes a training set's too: `members` is the one place that knows the difference.

Splits: `train`, `val` and `test` are those of the datasets, by game; a dataset that is held out (the latest month) gives
nothing to them and is, as a whole, the split `latest`.
Stability: TRAINING_SET_VERSION stands in the page; a changed meaning is a new version.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.json_files import check, read_json, shown
from engine.progress import Progress, Stop, never, silent
from pipeline.dataset.files.columns import Form
from pipeline.dataset.files.layout import LARGEST_MANIFEST, MANIFEST, SPLITS
from pipeline.dataset.files.schemas import TrainingSet
from pipeline.dataset.files.shard_files import open_shard
from pipeline.dataset.files.shards import Batch, file_hash, read_manifest
from pipeline.dataset.files.verify_files import verify_files
from pipeline.errors import DatasetError

TRAINING_SET_VERSION = 2
TRAINING_SET = "training_set.json"
LATEST = "latest"
"""The split that holds the held-out datasets, whole."""
ALL_SPLITS = (*SPLITS, LATEST)


@dataclass(frozen=True, slots=True)
class Shard:
    """A file of rows and its entry in the manifest."""

    path: Path
    rows: int
    games: int
    """Games of its dataset, which its rows name by number."""
    form: Form
    """How it stores planes."""
    row_group: int
    """Rows of each row group but the last."""

    def groups(self) -> list[int]:
        """Return the rows of each row group."""
        whole, rest = divmod(self.rows, self.row_group)
        return [self.row_group] * whole + ([rest] if rest else [])


@dataclass(frozen=True, slots=True)
class Member:
    """A dataset, and whether its training set holds it out."""

    directory: Path
    manifest: dict[str, Any]
    held_out: bool = False

    def shards(self, split: str) -> list[Shard]:
        """Return the shards of a split, which may be none."""
        splits = (SPLITS if self.held_out else ()) if split == LATEST else (() if self.held_out else (split,))
        games, form, row_group = (
            self.manifest["games"]["read"],
            self.manifest["planes"],
            self.manifest["row_group"],
        )
        return [
            Shard(self.directory / entry["name"], entry["rows"], games, form, row_group)
            for entry in self.manifest["files"]
            if entry["split"] in splits
        ]

    def positions(self, split: str) -> int:
        """Return the number of rows of a split."""
        return sum(shard.rows for shard in self.shards(split))

    @property
    def splits(self) -> tuple[str, ...]:
        """Return the splits that it can have rows in."""
        return (LATEST,) if self.held_out else SPLITS


def is_training_set(directory: Path) -> bool:
    """Return whether a folder is a training set's, by its page."""
    return (directory / TRAINING_SET).exists()


def read_training_set(directory: Path) -> dict[str, Any]:
    """Read and check a training set's page; raises DatasetError for one that is damaged or of another version."""
    path = directory / TRAINING_SET
    if not path.exists():
        raise DatasetError(f"{directory} is no training set: `fianchetto join DATASET... --out DIR` makes one")
    page = read_json(path, DatasetError, largest=LARGEST_MANIFEST)
    if not isinstance(page, dict) or page.get("training_set_version") != TRAINING_SET_VERSION:
        found = page.get("training_set_version") if isinstance(page, dict) else None
        raise DatasetError(
            f"{path} has version {shown(found)}, this program {TRAINING_SET_VERSION}: join the datasets again"
        )
    check(path, page, TrainingSet, DatasetError, hint=": join the datasets again")
    return page


def members(directory: Path, progress: Progress = silent, stop: Stop = never) -> list[Member]:
    """Return the datasets of a training set, or the one dataset of a folder, with their files verified.

    Raises DatasetError for a dataset that is missing, has changed since it was joined, or differs from its manifest, and
    Stopped. Hashing files for the first time reports progress in bytes.
    """
    if is_training_set(directory):
        page = read_training_set(directory)
        found = [_read_member(directory, entry) for entry in page["datasets"]]
        for split in ALL_SPLITS:
            if (rows := page["positions"].get(split)) != (total := sum(member.positions(split) for member in found)):
                raise DatasetError(
                    f"{directory / TRAINING_SET}: positions.{split} is {rows}, and its datasets have {total}: join them again"
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
            remedy=f"`fianchetto join --out {directory} --remove {entry['name']}` removes it; then join it again",
            code="member-changed",
        )
    return Member(folder, manifest, entry["held_out"])


def split_shards(directory: Path, split: str) -> list[Shard]:
    """Return the shards of a split of a dataset or a training set; raises DatasetError if the split is empty or unknown."""
    joined = is_training_set(directory)
    if not joined and split == LATEST:
        raise DatasetError(
            f"{directory} is a dataset, and `latest` is a split of training sets only: name another split"
        )
    splits = ALL_SPLITS if joined else SPLITS
    used = members(directory)
    if split not in splits:
        raise DatasetError(f"no split {split!r}: there are {', '.join(splits)}")
    found = [shard for member in used for shard in member.shards(split)]
    if not found:
        hint = ": none of its datasets is held out" if split == LATEST else ""
        raise DatasetError(f"{directory} has no positions in its {split} split{hint}")
    return found


def row_groups(shards: Iterable[Shard], columns: Sequence[str]) -> Iterator[Batch]:
    """Yield the rows of shards in their order, one row group at a time."""
    for shard in shards:
        with open_shard(shard.path, shard.rows) as reader:
            for group in range(len(reader.groups)):
                yield reader.read(group, columns, shard.games)
