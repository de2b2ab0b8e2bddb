"""What killed writers left behind, and how it goes: nothing of it was ever part of a dataset.

Temporary files; shards that neither the manifest nor the note of a chunk names; the parts of an ingest that is finished; in
an S3 store, uploads that were never completed, which are seen under no name and are paid for.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import psutil
from filelock import Timeout

from engine.json_files import parse_json
from pipeline.errors import ConfigError, DatasetError, IngestError
from pipeline.scatter import NOTE
from pipeline.shards import MANIFEST, PARTS, SPLITS, read_manifest
from pipeline.stores import is_local, lock_of, place, reached, remove_tree, temporaries

_SHARD = re.compile(rf"({'|'.join(SPLITS)})-\d+-(of-)?\d+\.parquet")

PAGE = 1000
"""Uploads that a store is asked for at a time: the most that S3 gives."""

MARKERS = {"KeyMarker": "NextKeyMarker", "UploadIdMarker": "NextUploadIdMarker"}
"""Where the next page begins, as it is asked for, and as the page before tells."""

_TEMPORARY = re.compile(r"\..+\.(\d{1,9})\.tmp")


def sweep(name: str | Path, *, dry_run: bool = False) -> list[str]:
    """Take away what killed writers left in a folder or store, and name it; with `dry_run`, only name it.

    Raises ConfigError where there is nothing, IngestError while an ingest is writing there, StoreError.
    """
    folder = place(name)
    with reached(folder):
        if is_local(folder) and not folder.is_dir():
            raise ConfigError(f"{folder} is not a directory")
        if not (folder / MANIFEST).exists() and not (folder / PARTS).exists():
            return _swept_plain(folder, dry_run)
        try:
            with lock_of(folder):
                return _swept_plain(folder, dry_run) + _swept_dataset(folder, dry_run)
        except Timeout as error:
            raise IngestError(f"an ingest is writing {folder}: stop it, or wait for it, then sweep") from error


def _swept_plain(folder: Path, dry_run: bool) -> list[str]:
    """Sweep what may lie in any folder: temporary files and uploads that were never completed."""
    left = [path for path in temporaries(folder) + temporaries(folder / PARTS) if _abandoned(path)]
    names = [str(path.relative_to(folder)) for path in left]
    for path in left if not dry_run else []:
        path.unlink(missing_ok=True)
    return names + ([] if is_local(folder) else _swept_uploads(cast("Any", folder), dry_run))


def _abandoned(temporary: Path) -> bool:
    """Tell whether a file is a temporary one of ours, whose writer is gone."""
    found = _TEMPORARY.fullmatch(temporary.name)
    return found is not None and not psutil.pid_exists(int(found[1]))


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
    """Sweep the shards that nothing names, and the parts of a finished ingest."""
    finished = (folder / MANIFEST).exists()
    if finished:
        named = {entry["name"] for entry in read_manifest(folder)["files"]}
    else:
        notes = [*(folder / PARTS).glob("[0-9]*.json"), *(folder / PARTS).glob(f"{NOTE}*.json")]
        named = set().union(*map(_named, notes))
    strangers = [path for path in folder.glob("*.parquet") if _SHARD.fullmatch(path.name) and path.name not in named]
    names = sorted(path.name for path in strangers)
    for path in strangers if not dry_run else []:
        path.unlink(missing_ok=True)
    if finished and (folder / PARTS).exists():
        names.append(PARTS)
        if not dry_run:
            remove_tree(folder / PARTS)
    return names


def _named(note: Path) -> set[str]:
    """Give the shards that a note vouches for."""
    try:
        return {entry["name"] for entry in parse_json(note.read_bytes())["files"]}
    except (ValueError, KeyError, TypeError) as error:
        raise DatasetError(f"{note} is damaged: delete the dataset and ingest again") from error
