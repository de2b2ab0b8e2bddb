"""Delete what killed writers left behind: nothing of it was ever part of a dataset.

That is: temporary files whose writer is provably gone (engine/temporaries.py), builds of datasets that are finished
(pipeline/storage/building.py), and in an S3 store uploads that were never completed, which cost money. An unfinished build
stays for its command to continue, and files of others stay whatever their names are.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pipeline.dataset.files.shards import MANIFEST, read_manifest
from pipeline.errors import ConfigError, DatasetError, IngestError
from pipeline.storage.building import BUILDING, PARTS, RUN, discard, is_build
from pipeline.storage.claims import DATASET, is_of
from pipeline.storage.stores import is_local, lock_of, locked, place, reached, temporaries

PAGE = 1000
"""Uploads per request: the most that S3 returns."""

MARKERS = {"KeyMarker": "NextKeyMarker", "UploadIdMarker": "NextUploadIdMarker"}
"""Parameters that ask for the next page of uploads, and the fields of the answer that they come from."""


def sweep(name: str | Path, *, dry_run: bool = False) -> list[str]:
    """Delete what killed writers left in a folder or store, and return its names; with `dry_run`, only return them.

    Raises ConfigError if the folder does not exist, IngestError while an ingest is writing there, StoreError.
    """
    folder = place(name)
    with reached(folder):
        if is_local(folder) and not folder.is_dir():
            raise ConfigError(f"{folder} is not a directory")
        if not is_of(folder, DATASET):
            return _sweep_files(folder, dry_run)
        with locked(
            lock_of(folder), IngestError(f"an ingest is writing {folder}: stop it, or wait for it, then sweep")
        ):
            return _sweep_files(folder, dry_run) + _sweep_build(folder, dry_run)


@dataclass(frozen=True, slots=True)
class Swept:
    """Results of sweeping a folder and everything below it."""

    datasets: int
    """Datasets that were looked at, finished or begun."""
    found: list[str]
    """Paths below the folder that killed writers left; they are deleted unless it was a dry run."""
    busy: list[str]
    """Datasets that an ingest is writing, which were left alone."""


def sweep_below(name: str | Path, *, dry_run: bool = False) -> Swept:
    """Sweep a folder or store and every dataset below it; raises what `sweep` raises for the folder itself."""
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
    """Return the folders of datasets below a folder; hidden folders are skipped, and links are not followed."""
    if is_local(top):
        folders = []
        for where, names, _ in os.walk(top):
            names[:] = [name for name in names if not name.startswith(".")]
            folders += [Path(where) / name for name in names]
    else:
        with reached(top):
            folders = [path.parent for path in top.glob(f"**/{MANIFEST}")]
            folders += [path.parent.parent for path in top.glob(f"**/{BUILDING}/{RUN}")]
    return sorted(folder for folder in {*folders} - {top} if _is_dataset(folder))


def _is_dataset(folder: Path) -> bool:
    """Return whether a folder is a dataset, finished or begun; other work has a manifest.json too."""
    with reached(folder):
        if (folder / BUILDING).exists():
            return True
        try:
            return (folder / MANIFEST).exists() and bool(read_manifest(folder))
        except DatasetError:
            return False


def _sweep_files(folder: Path, dry_run: bool) -> list[str]:
    """Sweep temporary files and uploads that were never completed."""
    left = [path for place in (folder, folder / BUILDING, folder / PARTS) for path in temporaries(place)]
    names = [str(path.relative_to(folder)) for path in left]
    for path in left if not dry_run else []:
        path.unlink(missing_ok=True)
    return names + ([] if is_local(folder) else _sweep_uploads(cast("Any", folder), dry_run))


def _sweep_uploads(folder: Any, dry_run: bool) -> list[str]:
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
    """Yield the uploads under a prefix, page by page; the whole bucket is listed, since MinIO takes a prefix for a key."""
    mark: dict[str, str] = {}
    while True:
        page = store.call_s3("list_multipart_uploads", Bucket=bucket, MaxUploads=PAGE, **mark)
        yield from (upload for upload in page.get("Uploads", []) if upload["Key"].startswith(below))
        following = {to: page[of] for to, of in MARKERS.items() if page.get(of)}
        if not page.get("IsTruncated") or not following or following == mark:
            return
        mark = following


def _sweep_build(folder: Path, dry_run: bool) -> list[str]:
    """Sweep what is left of the build of a finished dataset."""
    if not (folder / MANIFEST).exists() or not is_build(folder):
        return []
    read_manifest(folder)  # raises DatasetError if it is not ours
    if not dry_run:
        discard(folder)
    return [BUILDING]
