"""Replace a dataset: the new one is built beside the old one, and gets its name when it is
complete.

    NAME/             the dataset that everybody reads, unchanged until the last moment
    .NAME.building/   the new one; it is continued after a stop or a kill
    .NAME.replaced/   the old one between the two renames; `recover` gives it back its name if they
    were not both done
    .NAME.deleting/   the old one while its files are deleted

Only files that a dataset's own records name are deleted. A store cannot rename folders, so datasets
there are not replaced.
"""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from engine.progress import Progress, Stop, never, silent
from pipeline.dataset.files.layout import CARD
from pipeline.dataset.files.shards import MANIFEST, read_manifest
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
from pipeline.storage.building import BUILDING, discard, is_build
from pipeline.storage.ownership import SYSTEM, is_ignored
from pipeline.storage.stores import alone, is_local, sync_directory


def replace(
    source: Path,
    out: Path,
    config: IngestConfig,
    *,
    engine: Engine | None = None,
    progress: Progress = silent,
    stop: Stop = never,
) -> dict[str, Any]:
    """Build the dataset `out` of a dump again, whatever is there, and return its manifest.

    If stopped or killed, `out` is what it was, and the same call continues. Raises ConfigError for
    a store or a mount point, DatasetError if `out` has files that are not the dataset's,
    IngestError if another ingest is writing it, and what `ingest` raises.
    """
    if not is_local(out):
        raise ConfigError(
            f"{out}: a store has no rename, so a dataset there is not replaced: ingest to another "
            f"place"
        )
    out = out.resolve()
    if out.is_mount():
        raise ConfigError(
            f"{out} is a mount point, which cannot be renamed: choose a folder below it"
        )
    recover(out)
    _require_own_files(out)  # before the lock, which truncates a file of that name
    building, aside = (out.with_name(f".{out.name}.{state}") for state in ("building", "replaced"))
    damage = None
    with alone(
        out,
        IngestError(f"another ingest is writing {out}: wait for it or stop it, then replace it"),
    ):
        try:
            try:
                manifest = ingest(
                    [str(source)], building, config, engine=engine, progress=progress, stop=stop
                )
            except (OtherDumpError, OtherSettingsError):
                _delete(building)
                manifest = ingest(
                    [str(source)], building, config, engine=engine, progress=progress, stop=stop
                )
        except DamagedError as error:  # all games before the damage are a complete dataset
            damage, manifest = error, read_manifest(building)
        _require_own_files(out)
        try:
            for before, after in ((out, aside), (building, out)):
                before.rename(after)
                sync_directory(out.parent)
        except OSError as error:
            raise IngestError(
                f"{out} could not be replaced ({error.strerror}): run it again"
            ) from error
    recover(out)
    if damage is not None:
        raise damage
    return manifest


def recover(out: Path) -> None:
    """Finish or undo a swap that was killed half-way, so that `out` is a dataset again."""
    out = out.resolve()
    aside, deleting = (out.with_name(f".{out.name}.{state}") for state in ("replaced", "deleting"))
    _delete(deleting)
    if not aside.exists():
        return
    if not out.exists():
        aside.rename(out)
        sync_directory(out.parent)
    elif not (out / MANIFEST).is_file():
        raise DatasetError(
            f"{aside} is the former dataset of {out}, and the one in its place is unfinished: "
            f"delete one of the two"
        )
    else:
        for path in aside.iterdir():
            if path.name in SYSTEM and not (out / path.name).exists():
                path.rename(out / path.name)
        aside.rename(deleting)
        _delete(deleting)


def _own_names(folder: Path) -> set[str]:
    """Return the names in a folder that are a dataset's, by its manifest, of whatever version, and
    its build.
    """
    names = {BUILDING} if is_build(folder) else set()
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        manifest = json.loads((folder / MANIFEST).read_bytes())
        if {"format_version", "moves_hash"} <= manifest.keys():
            names |= {MANIFEST, CARD, *(str(entry["name"]) for entry in manifest["files"])}
    return names


def _require_own_files(out: Path) -> None:
    """Raise DatasetError for a folder with files that no record of the dataset names: they would be
    lost.
    """
    own = _own_names(out)
    found = [path for path in sorted(out.iterdir()) if not is_ignored(path)] if out.exists() else []
    others = [
        it.name
        for it in found
        if it.name not in own or it.is_symlink() or it.is_dir() != (it.name == BUILDING)
    ]
    if others:
        shown = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
        raise DatasetError(
            f"{out} holds files that are not of the dataset ({shown}): move that away, then "
            f"replace it"
        )


def _delete(folder: Path) -> None:
    """Delete a dataset, its records last; files that they do not name stay, and the folder with
    them.
    """
    own = _own_names(folder)
    for path in list(folder.iterdir()) if folder.exists() else ():
        if (path.name in own or is_ignored(path)) and path.name != MANIFEST and path.is_file():
            path.unlink(missing_ok=True)
    discard(folder)
    if MANIFEST in own:
        (folder / MANIFEST).unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()
