"""A training set: datasets (months, say) joined by a page that names them. No row is copied or moved.

`training_set.json` names each dataset by its folder, relative to the set's, and by the hash of its manifest. Whoever takes
a dataset's directory takes a training set's: `split_shards` is the one place that knows the difference.

Splits: `train`, `val` and `test` are those of the datasets, by game; a dataset that is held out (the latest month) gives
nothing to them and is, as a whole, the split `latest`. Train may be thinned to shares by rating and time control.
Stability: TRAINING_SET_VERSION stands in the page; a changed meaning is a new version.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.json_files import check, read_json, shown
from engine.progress import Progress, Stop, never, silent
from pipeline.dataset.files.columns import Form
from pipeline.dataset.files.layout import LARGEST_MANIFEST
from pipeline.dataset.files.schemas import TrainingSet
from pipeline.dataset.files.shard_files import ShardReader, open_shard
from pipeline.dataset.files.shards import MANIFEST, SPLITS, Batch, file_hash, read_manifest
from pipeline.dataset.files.vouch import vouch
from pipeline.dataset.strata import CLASSES, THINNED_BY, Thinning
from pipeline.errors import DatasetError

TRAINING_SET_VERSION = 1
TRAINING_SET = "training_set.json"
LATEST = "latest"
"""The split that is the held-out datasets, whole."""
ALL_SPLITS = (*SPLITS, LATEST)


@dataclass(frozen=True, slots=True)
class Shard:
    """A file of rows, and which of them count."""

    path: Path
    rows: int | None = None
    """Rows that its manifest says it has."""
    games: int | None = None
    """Games of its dataset, which its rows name by number."""
    thinning: Thinning | None = None
    """Which rows stay, None for all."""
    kept: tuple[int, ...] = ()
    """Rows of each row group that stay, where it is thinned."""
    form: Form | None = None
    """How it stores planes, where its manifest says so."""
    row_group: int | None = None
    """Rows of each row group but the last, where its manifest says so."""

    def groups(self) -> list[int]:
        """Return the rows of each row group, by the manifest or else by the footer; DatasetError for a file that is none."""
        if self.rows is None or self.row_group is None:
            with open_shard(self.path, self.rows) as reader:
                return reader.groups
        whole, rest = divmod(self.rows, self.row_group)
        return [self.row_group] * whole + ([rest] if rest else [])


@dataclass(frozen=True, slots=True)
class Member:
    """A dataset as it is used."""

    directory: Path
    manifest: dict[str, Any]
    held_out: bool = False
    thinning: Thinning | None = None
    kept: dict[str, Any] | None = None
    """Rows that stay by row group, by name of shard; where train is thinned."""

    def shards(self, split: str) -> list[Shard]:
        """Give the shards of a split, which may be none."""
        splits = (SPLITS if self.held_out else ()) if split == LATEST else (() if self.held_out else (split,))
        games, found = self.manifest["games"]["read"], []
        form, row_group = self.manifest.get("planes"), self.manifest.get("row_group")
        for entry in self.manifest["files"]:
            if entry["split"] not in splits:
                continue
            shard = Shard(self.directory / entry["name"], entry["rows"], games, form=form, row_group=row_group)
            if split == "train" and self.thinning is not None and self.kept is not None:
                shard = replace(shard, thinning=self.thinning, kept=tuple(self.kept.get(entry["name"], ())))
            found.append(shard)
        return found

    def positions(self, split: str) -> int:
        """Count the rows of a split by the manifest, or by what stays of it."""
        return sum(sum(one.kept) if one.thinning is not None else one.rows or 0 for one in self.shards(split))


def is_training_set(directory: Path) -> bool:
    """Tell whether a directory is a training set's, by its page."""
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
    rates = page["rates"]
    if rates is not None and len(rates[0]) != len(CLASSES):
        raise DatasetError(f"{path}: rates must be of {len(CLASSES)} classes of time control: join the datasets again")
    return page


def members(directory: Path, progress: Progress = silent, stop: Stop = never) -> list[Member]:
    """Give the datasets of a training set, or the one that a dataset's directory is; their files are as manifests say.

    Raises DatasetError for one that is gone, or has changed since it was joined, or whose files are others than its
    manifest names (`pipeline.dataset.files.vouch`: hashing them for the first time ticks bytes), and Stopped.
    """
    if not is_training_set(directory):
        manifest = read_manifest(directory)
        vouch(directory, manifest, progress, stop)
        return [Member(directory, manifest)]
    page = read_training_set(directory)
    found = []
    for entry in page["datasets"]:
        folder = directory / entry["path"]
        manifest = read_manifest(folder)
        if file_hash(folder / MANIFEST) != entry["manifest_sha256"]:
            raise DatasetError(
                f"{folder} has changed since it was joined: `fianchetto join --out {directory} --remove {entry['name']}` "
                "takes it out, and join puts it in again"
            )
        thinning = _thinning(page, entry) if page["rates"] is not None else None
        found.append(Member(folder, manifest, entry["held_out"], thinning, entry.get("kept")))
    _check_counts(directory / TRAINING_SET, page["positions"], found)
    for member in found:
        vouch(member.directory, member.manifest, progress, stop)
    return found


def _check_counts(path: Path, positions: Mapping[str, int], found: Sequence[Member]) -> None:
    """Raise DatasetError where the page counts other positions than its datasets have."""
    for split in ALL_SPLITS:
        counted = sum(member.positions(split) for member in found)
        if positions[split] != counted:
            raise DatasetError(
                f"{path}: positions.{split} is {positions[split]}, and its datasets have {counted}: join them again"
            )


def _thinning(page: dict[str, Any], entry: dict[str, Any]) -> Thinning:
    """Make a dataset's thinning of what the page says."""
    rates = tuple(tuple(float(rate) for rate in row) for row in page["rates"])
    return Thinning(
        tuple(page["config"]["rating_edges"]), rates, salt_of(entry["manifest_sha256"], page["config"]["seed"])
    )


def salt_of(manifest_sha256: str, seed: int) -> int:
    """Give the salt of a dataset's thinning, uint64."""
    return int(manifest_sha256[:16], 16) ^ (seed * 0x9E37_79B9_7F4A_7C15) % (1 << 64)


def split_shards(directory: Path, split: str) -> list[Shard]:
    """Give the shards of a split of a dataset or a training set; raises DatasetError where there is nothing in it."""
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


def kept_rows(reader: ShardReader, group: int, thinning: Thinning) -> Any:
    """Tell which rows of a row group a thinning keeps, bool[R]."""
    return thinning.kept(reader.read(group, THINNED_BY))


def read_group(
    reader: ShardReader,
    group: int,
    columns: Sequence[str],
    shard: Shard,
    planes_RP: NDArray[np.uint64] | None = None,
    *,
    packed: bool = False,
) -> Batch:
    """Return those rows of a row group that count, as `ShardReader.read` does; `planes_RP` is used where all of them do.

    With `packed`, `planes` are the packed positions of a compact shard.
    """
    if packed:
        rows, packed_RW = reader.read_packed(group, columns, shard.games)
        rows["planes"] = packed_RW
    else:
        rows = reader.read(group, columns, shard.games, planes_RP if shard.thinning is None else None)
    if shard.thinning is None:
        return rows
    kept = kept_rows(reader, group, shard.thinning)
    return {name: values[kept] for name, values in rows.items()}


def row_groups(shards: Iterable[Shard], columns: Sequence[str]) -> Iterator[Batch]:
    """Yield the rows of shards in their order, a row group at a time; raises DatasetError for no shard."""
    for shard in shards:
        with open_shard(shard.path, shard.rows) as reader:
            for group in range(len(reader.groups)):
                yield read_group(reader, group, columns, shard)
