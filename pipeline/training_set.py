"""A training set: datasets (months, say) joined by a page that names them. No row is copied or moved.

`training_set.json` names each dataset by its folder, relative to the set's, and by the hash of its manifest. Whoever takes
a dataset's directory takes a training set's: `split_shards` is the one place that knows the difference.

Splits: `train`, `val` and `test` are those of the datasets, by game; a dataset that is held out (the latest month) gives
nothing to them and is, as a whole, the split `latest`. Train may be thinned to shares by rating and time control.
Stability: TRAINING_SET_VERSION stands in the page; a changed meaning is a new version.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import DatasetError
from pipeline.plane_pages import read_group
from pipeline.shards import LARGEST_MANIFEST, MANIFEST, SPLITS, batch_columns, file_hash, read_manifest, shard_paths
from pipeline.strata import CLASSES, THINNED_BY, Thinning

TRAINING_SET_VERSION = 1
TRAINING_SET = "training_set.json"
LATEST = "latest"
"""The split that is the held-out datasets, whole."""
ALL_SPLITS = (*SPLITS, LATEST)


@dataclass(frozen=True, slots=True)
class Shard:
    """A file of rows, and which of them count."""

    path: Path
    thinning: Thinning | None = None
    """Which rows stay, None for all."""
    kept: tuple[int, ...] = ()
    """Rows of each row group that stay, where it is thinned."""


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
        """Give the shards of a split, which may be none; raises DatasetError where one is missing."""
        splits = (SPLITS if self.held_out else ()) if split == LATEST else (() if self.held_out else (split,))
        found = []
        for entry in self.manifest["files"]:
            if entry["split"] not in splits:
                continue
            path = self.directory / entry["name"]
            if not path.is_file():
                raise DatasetError(f"{path} is in the manifest and not on disk: ingest the dump again")
            if split == "train" and self.thinning is not None and self.kept is not None:
                found.append(Shard(path, self.thinning, tuple(self.kept.get(entry["name"], ()))))
            else:
                found.append(Shard(path))
        return found


def is_training_set(directory: Path) -> bool:
    """Tell whether a directory is a training set's, by its page."""
    return (directory / TRAINING_SET).is_file()


def read_training_set(directory: Path) -> dict[str, Any]:
    """Read and check a training set's page; raises DatasetError for one that is damaged or of another version."""
    path = directory / TRAINING_SET
    if not path.is_file():
        raise DatasetError(f"{directory} is no training set: `fianchetto join DATASET... --out DIR` makes one")
    if path.stat().st_size > LARGEST_MANIFEST:
        raise DatasetError(f"{path} is over {LARGEST_MANIFEST >> 20} MiB: no training set of this project")
    try:
        page = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{path} is not JSON: {str(error)[:200]}") from error
    if not isinstance(page, dict) or page.get("training_set_version") != TRAINING_SET_VERSION:
        found = page.get("training_set_version") if isinstance(page, dict) else None
        raise DatasetError(
            f"{path} has version {found!r}, this program {TRAINING_SET_VERSION}: join the datasets again"
        )
    entries = page.get("datasets")
    if not isinstance(entries, list) or not entries or not isinstance(page.get("config"), dict):
        raise DatasetError(f"{path} names no datasets or no settings: it is damaged")
    for entry in entries:
        named = isinstance(entry, dict) and all(
            isinstance(entry.get(key), str) and entry[key] for key in ("name", "path", "manifest_sha256")
        )
        if not named or not isinstance(entry.get("held_out"), bool) or not isinstance(entry.get("kept", {}), dict):
            raise DatasetError(f"{path} says too little of a dataset: it is damaged")
    return page


def members(directory: Path) -> list[Member]:
    """Give the datasets of a training set, or the one that a dataset's directory is.

    Raises DatasetError for one that is gone, or has changed since it was joined.
    """
    if not is_training_set(directory):
        return [Member(directory, read_manifest(directory))]
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
        try:
            thinning = _thinning(page, entry) if page.get("rates") is not None else None
        except (KeyError, TypeError, ValueError) as error:
            raise DatasetError(
                f"{directory / TRAINING_SET} is thinned in no way we know ({error}): join again"
            ) from error
        found.append(Member(folder, manifest, entry["held_out"], thinning, entry.get("kept")))
    return found


def _thinning(page: dict[str, Any], entry: dict[str, Any]) -> Thinning:
    """Make a dataset's thinning of what the page says."""
    edges = tuple(int(edge) for edge in page["config"]["rating_edges"])
    rates = tuple(tuple(float(rate) for rate in row) for row in page["rates"])
    if len(rates) != len(edges) + 2 or any(len(row) != len(CLASSES) for row in rates):
        raise ValueError("rates of another shape")
    return Thinning(edges, rates, salt_of(entry["manifest_sha256"], int(page["config"]["seed"])))


def salt_of(manifest_sha256: str, seed: int) -> int:
    """Give the salt of a dataset's thinning, uint64."""
    return int(manifest_sha256[:16], 16) ^ (seed * 0x9E37_79B9_7F4A_7C15) % (1 << 64)


def split_shards(directory: Path, split: str) -> list[Shard]:
    """Give the shards of a split of a dataset or a training set; raises DatasetError where there is nothing in it."""
    if not is_training_set(directory):
        if split == LATEST:
            raise DatasetError(f"{directory} is one dataset: only a training set holds out its latest month")
        return [Shard(path) for path in shard_paths(directory, split)]
    if split not in ALL_SPLITS:
        raise DatasetError(f"no split {split!r}: there are {', '.join(ALL_SPLITS)}")
    found = [shard for member in members(directory) for shard in member.shards(split)]
    if not found:
        hint = ": none of its datasets is held out" if split == LATEST else ""
        raise DatasetError(f"{directory} has no positions in its {split} split{hint}")
    return found


def kept_rows(file: pq.ParquetFile, group: int, thinning: Thinning) -> Any:
    """Tell which rows of a row group a thinning keeps, bool[R]."""
    table = file.read_row_group(group, columns=list(THINNED_BY), use_threads=False)
    return thinning.kept(batch_columns(table))


def row_groups(shards: Iterable[Shard], columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Read shards in their order, a row group at a time, as batches of the columns; raises DatasetError for no shard."""
    for shard in shards:
        try:
            with pq.ParquetFile(shard.path) as file:
                for group in range(file.num_row_groups):
                    rows = read_group(file, shard.path, group, columns)
                    if shard.thinning is not None:
                        kept = kept_rows(file, group, shard.thinning)
                        rows = {name: values[kept] for name, values in rows.items()}
                    yield rows
        except (OSError, ValueError, pa.ArrowException) as error:
            raise DatasetError(f"{shard.path} cannot be read as a shard ({error}): ingest the dump again") from error
