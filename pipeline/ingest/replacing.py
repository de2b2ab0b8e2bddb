"""Replace a dataset: build the new one beside it, and rename both when the new one is complete.

    NAME/        the current dataset, unchanged until the new one is complete
    .NAME.new/   the new dataset; the build is continued after a stop or a kill
    .NAME.old/   the old dataset, between the renaming and its deletion

Object stores cannot rename folders, so datasets there cannot be replaced.
"""

import json
import shutil
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from engine.progress import Progress, Stop, never, silent
from engine.temporaries import sync_directory
from pipeline.dataset.files.columns import DATA_CARD_FILE, MANIFEST
from pipeline.dataset.files.manifest import read_manifest
from pipeline.errors import (
    ConfigError,
    DamagedError,
    DatasetError,
    IngestError,
    OtherDumpError,
    OtherSettingsError,
)
from pipeline.executors.local import Engine
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from pipeline.storage.job_folder import BUILDING, MARKER, is_ignored
from pipeline.storage.stores import hold_lock, is_local, make_folder_lock


def replace_dataset(
    source: Path,
    out: Path,
    config: IngestConfig,
    *,
    engine: Engine | None = None,
    progress: Progress = silent,
    stop: Stop = never,
) -> dict[str, Any]:
    """Rebuild the dataset `out` from a dump and return its manifest.

    If the build is stopped or killed, `out` is unchanged, and the same call continues the build.
    Raises ConfigError for a store, DatasetError if `out` has files that do not belong to the
    dataset, IngestError if another process is writing it, and the errors of `ingest`.
    """
    if not is_local(out):
        raise ConfigError(
            f"{out} cannot be replaced, since object stores cannot rename folders: choose another "
            "--out"
        )
    out = out.resolve()
    new, old = out.with_name(f".{out.name}.new"), out.with_name(f".{out.name}.old")
    recover_dataset(out)
    _refuse_foreign_files(out)  # before locking, which truncates an existing file of that name
    out.mkdir(parents=True, exist_ok=True)
    build = partial(ingest, [str(source)], new, config, engine=engine, progress=progress, stop=stop)
    damage: DamagedError | None = None
    busy_error = IngestError(f"another process is writing {out}: wait for it, then replace it")
    with hold_lock(make_folder_lock(out), busy_error):
        try:
            try:
                manifest = build()
            except (OtherDumpError, OtherSettingsError):
                shutil.rmtree(new)
                manifest = build()
        except DamagedError as error:  # raised after the games before the damage were ingested
            damage, manifest = error, read_manifest(new)
        _refuse_foreign_files(out)
        try:
            out.rename(old)
            new.rename(out)
            sync_directory(out.parent)
        except OSError as error:
            raise IngestError(
                f"{out} could not be replaced ({error.strerror}): run the same command again"
            ) from error
    recover_dataset(out)
    if damage is not None:
        raise damage
    return manifest


def recover_dataset(out: Path) -> None:
    """Restore the old dataset if the new one is not in its place, or delete what is left of it."""
    out = out.resolve()
    old = out.with_name(f".{out.name}.old")
    if old.exists() and not out.exists():
        old.rename(out)
    if old.exists():
        shutil.rmtree(old)


def _refuse_foreign_files(folder: Path) -> None:
    """Raise DatasetError if a folder has files that are not the dataset's, and would be lost."""
    own = {BUILDING, MARKER} if (folder / MARKER).is_file() else set()
    # without a readable manifest, no file is known to belong to the dataset
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        manifest = json.loads((folder / MANIFEST).read_bytes())
        if {"format_version", "moves_hash"} <= manifest.keys():
            own |= {MANIFEST, DATA_CARD_FILE, *(str(entry["name"]) for entry in manifest["files"])}
    paths = [path for path in sorted(folder.glob("*")) if not is_ignored(path)]
    if others := [path.name for path in paths if path.name not in own]:
        names = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
        raise DatasetError(
            f"{folder} holds files that are not part of the dataset ({names}): move them away, "
            "then replace it"
        )
