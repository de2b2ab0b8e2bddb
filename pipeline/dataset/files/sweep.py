"""What killed writers left behind, and how it goes: nothing of it was ever part of a dataset.

Temporary files of ours whose writer is provably gone (engine/temporaries.py); shards that an ingest recorded before it was
killed, and that no note names (pipeline/dataset/files/written.py); the parts of an ingest that is finished; in an S3
store, uploads that were never completed, which are seen under no name and are paid for. Whatever else lies there is
left, by whatever name.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pipeline.dataset.files.shards import MANIFEST, PARTS, SHARD_NOTE, read_manifest
from pipeline.dataset.files.written import are_ours, delete_unnoted, remove_parts, unnoted
from pipeline.errors import ConfigError, DatasetError, IngestError
from pipeline.storage.claims import DATASET, is_of
from pipeline.storage.stores import is_local, lock_of, locked, place, reached, temporaries

PAGE = 1000
"""Uploads that a store is asked for at a time: the most that S3 gives."""

MARKERS = {"KeyMarker": "NextKeyMarker", "UploadIdMarker": "NextUploadIdMarker"}
"""Where the next page begins, as it is asked for, and as the page before tells."""


def sweep(name: str | Path, *, dry_run: bool = False) -> list[str]:
    """Take away what killed writers left in a folder or store, and name it; with `dry_run`, only name it.

    Raises ConfigError where there is nothing, IngestError while an ingest is writing there, StoreError.
    """
    folder = place(name)
    with reached(folder):
        if is_local(folder) and not folder.is_dir():
            raise ConfigError(f"{folder} is not a directory")
        if not is_of(folder, DATASET):
            return _swept_plain(folder, dry_run)
        with locked(
            lock_of(folder), IngestError(f"an ingest is writing {folder}: stop it, or wait for it, then sweep")
        ):
            return _swept_plain(folder, dry_run) + _swept_dataset(folder, dry_run)


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep of a folder and all below it came to."""

    datasets: int
    """Datasets that were looked at, finished or begun."""
    found: list[str]
    """What killed writers left, by its path below the folder; it is gone unless it was a dry run."""
    busy: list[str]
    """Datasets that an ingest is writing, which were left alone."""


def sweep_below(name: str | Path, *, dry_run: bool = False) -> Swept:
    """Sweep a folder or store, and every dataset below it at any depth; raises what `sweep` raises of the folder itself."""
    top = place(name)
    found = sweep(top, dry_run=dry_run)
    count, busy = int(_is_dataset(top)), list[str]()
    for folder in _datasets_below(top):
        below = str(folder.relative_to(top))
        try:
            found += [f"{below}/{left}" for left in sweep(folder, dry_run=dry_run)]
        except IngestError:
            busy.append(below)
        count += 1
    return Swept(count, list(dict.fromkeys(found)), busy)


def _datasets_below(top: Path) -> list[Path]:
    """Find the folders of datasets below a folder; hidden ones are none, and links are not followed."""
    if is_local(top):
        folders = []
        for where, names, _ in os.walk(top):
            names[:] = [name for name in names if not name.startswith(".")]
            folders += [Path(where) / name for name in names]
    else:
        with reached(top):
            folders = [path.parent for path in top.glob(f"**/{MANIFEST}")]
            folders += [path.parent.parent for path in top.glob(f"**/{PARTS}/run.json")]
    return sorted(folder for folder in {*folders} - {top} if _is_dataset(folder))


def _is_dataset(folder: Path) -> bool:
    """Tell a dataset, finished or begun, from what else has a manifest: a fine-tuning, somebody else's folder."""
    with reached(folder):
        if (folder / PARTS).exists():
            return True
        try:
            return (folder / MANIFEST).exists() and bool(read_manifest(folder))
        except DatasetError:
            return False


def _swept_plain(folder: Path, dry_run: bool) -> list[str]:
    """Sweep what may lie in any folder: temporary files and uploads that were never completed."""
    left = temporaries(folder) + temporaries(folder / PARTS)
    names = [str(path.relative_to(folder)) for path in left]
    for path in left if not dry_run else []:
        path.unlink(missing_ok=True)
    return names + ([] if is_local(folder) else _swept_uploads(cast("Any", folder), dry_run))


def _swept_uploads(folder: Any, dry_run: bool) -> list[str]:
    """Abort the uploads to an S3 store that were begun under a prefix and never completed."""
    if not hasattr(folder.fs, "call_s3"):  # other stores forget them by themselves
        return []
    bucket, prefix, _ = folder.fs.split_path(folder.path)
    below = f"{prefix.rstrip('/')}/" if prefix else ""
    names = []
    for upload in _uploads(folder.fs, bucket, below):
        names.append(f"{upload['Key'].removeprefix(below)} (upload of {upload['Initiated']})")
        if not dry_run:
            folder.fs.abort_mpu(bucket, upload["Key"], upload["UploadId"])
    return names


def _uploads(store: Any, bucket: str, below: str) -> Iterator[dict[str, Any]]:
    """Give the uploads under a prefix, a page of the store's answers after the other.

    The bucket's are all looked through: some stores (MinIO) take a prefix in the question for a whole key.
    """
    mark: dict[str, str] = {}
    while True:
        page = store.call_s3("list_multipart_uploads", Bucket=bucket, MaxUploads=PAGE, **mark)
        yield from (upload for upload in page.get("Uploads", []) if upload["Key"].startswith(below))
        following = {to: page[of] for to, of in MARKERS.items() if page.get(of)}
        if not page.get("IsTruncated") or not following or following == mark:
            return
        mark = following


def _swept_dataset(folder: Path, dry_run: bool) -> list[str]:
    """Sweep the shards of ours that nothing names, and the parts of a finished ingest."""
    finished, parts = (folder / MANIFEST).exists(), folder / PARTS
    if finished:
        read_manifest(folder)  # raises DatasetError where it is none of ours
    notes = [folder / MANIFEST] if finished else [*parts.glob("[0-9]*.json"), *parts.glob(f"{SHARD_NOTE}*.json")]
    names = sorted(path.name for path in unnoted(folder, notes))
    if dry_run:
        return names + ([PARTS] if finished and are_ours(folder) else [])
    delete_unnoted(folder, notes)
    return names + ([PARTS] if finished and remove_parts(folder) else [])
