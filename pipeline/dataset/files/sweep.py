"""Delete what killed writers left behind: nothing of it was ever part of a dataset.

That is: temporary files whose writer is provably gone (engine/temporaries.py), builds of datasets that are finished
(pipeline/storage/building.py), and in an S3 store uploads that were never completed, which cost money. An unfinished build
stays for its command to continue, and files of others stay whatever their names are.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from pipeline.dataset.files.shards import MANIFEST, read_manifest
from pipeline.errors import ConfigError, DatasetError, IngestError
from pipeline.storage.building import BUILDING, PARTS, RUN, discard, is_build
from pipeline.storage.stores import is_local, lock_of, locked, place, reached, temporaries

PAGE = 1000
"""Uploads per request: the most that S3 returns."""
MARKERS = {"KeyMarker": "NextKeyMarker", "UploadIdMarker": "NextUploadIdMarker"}
"""Parameters that ask for the next page of uploads, and the fields of the answer that they come from."""


@dataclass(frozen=True, slots=True)
class Swept:
    """Results of a sweep, as paths below the folder."""

    found: list[str] = field(default_factory=list)
    """Leftovers; they are deleted unless it was a dry run."""
    busy: list[str] = field(default_factory=list)
    """Datasets that a command is writing, which were left alone."""


def sweep(name: str | Path, *, dry_run: bool = False) -> Swept:
    """Sweep a folder or store and everything below it; with `dry_run`, only list the leftovers.

    Hidden folders are skipped, and links are not followed. Raises ConfigError if there is no such folder, StoreError.
    """
    top, swept = place(name), Swept()
    with reached(top):
        if is_local(top) and not top.is_dir():
            raise ConfigError(f"{top} is not a directory")
        for folder in _folders(top):
            try:
                with locked(lock_of(folder), IngestError("busy")) if (folder / BUILDING).exists() else reached(folder):
                    left = _sweep_folder(folder, dry_run)
                swept.found.extend(str(path.relative_to(top)) for path in left)
            except IngestError:
                swept.busy.append(str(folder.relative_to(top)))
        if not is_local(top):
            swept.found.extend(_sweep_uploads(cast("Any", top), dry_run))
    return swept


def _folders(top: Path) -> list[Path]:
    """Return a folder and those below it; of a store those with a build."""
    if not is_local(top):
        return sorted({path.parent.parent for path in top.glob(f"**/{BUILDING}/{RUN}")})
    folders = []
    for where, names, _ in os.walk(top):
        names[:] = [name for name in names if not name.startswith(".")]
        folders.append(Path(where))
    return sorted(folders)


def _sweep_folder(folder: Path, dry_run: bool) -> list[Path]:
    """Sweep one folder: temporary files, and the build of a finished dataset."""
    left = [path for part in (folder, folder / BUILDING, folder / PARTS) for path in temporaries(part)]
    for path in left if not dry_run else []:
        path.unlink(missing_ok=True)
    if is_build(folder) and _is_finished(folder):
        left.append(folder / BUILDING)
        if not dry_run:
            discard(folder)
    return left


def _is_finished(folder: Path) -> bool:
    """Return whether a folder has a dataset's manifest."""
    try:
        return (folder / MANIFEST).exists() and bool(read_manifest(folder))
    except DatasetError:
        return False


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
