"""Replace a dataset: the new one is built beside the old one, and takes its name only when it is whole.

    NAME/                      the dataset that everybody reads, as it was, until the last moment
    .NAME.building-<digest>/   the new one; the digest is of the dump, the settings and the code, so a stop is continued
    .NAME.replaced/            the old one, between the renames
    .NAME.deleting/            the old one, while its files are deleted

Two renames and then the deletion: killed between them, `recover` gives the old dataset its name back, and the new one, which
is whole, is swapped in by the next call. Only files that a dataset's own records name are deleted; a folder that holds
anything else is refused before the work begins. A store has no rename of folders, so a dataset there is not replaced.
"""

import hashlib
import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from engine.encoding.planes import ENCODING_VERSION, moves_hash
from engine.progress import Progress, Stop, never, silent
from pipeline.dataset.files.columns import FORMAT_VERSION
from pipeline.dataset.files.layout import CARD
from pipeline.dataset.files.shards import MANIFEST, read_manifest
from pipeline.errors import ConfigError, DamagedError, DatasetError, IngestError, OtherDumpError
from pipeline.executors.local import Engine
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from pipeline.ingest.manifest import plain_config
from pipeline.ingest.rows_code import rows_code
from pipeline.storage.building import BUILDING, discard, is_build
from pipeline.storage.stores import LOCK, alone, is_local, sync_directory, temporaries

JUNK = frozenset({".DS_Store", "Thumbs.db", "desktop.ini"})
"""Names that systems give to files of theirs in any folder that somebody looks at; they go with the dataset."""
TOLD = 3
"""Strange files that a refusal names."""


def replace(
    source: Path,
    out: Path,
    config: IngestConfig,
    *,
    engine: Engine | None = None,
    progress: Progress = silent,
    stop: Stop = never,
) -> dict[str, Any]:
    """Build the dataset `out` of a dump anew, whatever is there, and return its manifest.

    Stopped or killed, `out` is what it was, and the same call continues. Raises ConfigError for a store, DatasetError where
    `out` holds files that are not of the dataset, IngestError where another ingest is writing it, and what `ingest` raises.
    """
    if not is_local(out):
        raise ConfigError(f"{out}: a store has no rename, so a dataset there is not replaced: ingest to another place")
    out = _real(out)
    recover(out)
    _require_no_strangers(out)  # before the lock, which would empty another's
    building = out.with_name(f".{out.name}.building-{_digest(source, config)}")
    _discard_others(out, building)
    damage = None
    with alone(out, IngestError(f"another ingest is writing {out}: wait for it or stop it, then replace it")):
        _require_no_strangers(out)
        try:
            manifest = _built(source, building, config, engine, progress, stop)
        except DamagedError as error:  # what came before the damage is a whole dataset
            damage, manifest = error, read_manifest(building)
        _require_no_strangers(out)
        try:
            _swap(building, out)
        except OSError as error:
            raise IngestError(f"{out} could not be replaced: {error.strerror}; run it again to go on") from error
    _discard(out)
    if damage is not None:
        raise damage
    return manifest


def recover(out: Path) -> None:
    """Finish or undo a swap that was killed half-way, so that `out` is a dataset again.

    Before the second rename the old one gets its name back; after it, the old one's files are deleted.
    """
    out = _real(out)
    aside = aside_of(out)
    with suppress(DatasetError):  # of another's that came into it meanwhile: it stays there, and is in nobody's way
        _delete(_deleting(out))
    if not aside.exists():
        return
    if not out.exists():
        aside.rename(out)
        sync_directory(out.parent)
    elif (out / MANIFEST).is_file():
        _discard(out)
    else:
        raise DatasetError(
            f"{aside} is the former dataset of {out}, and the one in its place is unfinished: delete one of the two"
        )


def aside_of(out: Path) -> Path:
    """Return where the old dataset lies while it is replaced."""
    return out.with_name(f".{out.name}.replaced")


def _deleting(out: Path) -> Path:
    """Return where the old dataset lies while its files are deleted; it never comes back from there."""
    return out.with_name(f".{out.name}.deleting")


def _discard(out: Path) -> None:
    """Delete the old dataset of `out`."""
    aside_of(out).rename(_deleting(out))
    _delete(_deleting(out))


def _digest(source: Path, config: IngestConfig) -> str:
    """Hash what a build depends on, 16 hex digits: another dump, other settings or other code are another build."""
    try:
        facts = source.stat()
    except OSError as error:
        raise DatasetError(f"{source} cannot be read: {error.strerror}") from error
    told = [source.name, facts.st_size, facts.st_mtime_ns, plain_config(config), FORMAT_VERSION, ENCODING_VERSION]
    told += [moves_hash(), rows_code()]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]


def _real(out: Path) -> Path:
    """Return a folder by its own path: of a link that leads to one the folder is replaced, where it lies.

    Raises ConfigError for a disk's mount point, which cannot be renamed.
    """
    real = out.resolve()
    if real.is_mount():
        raise ConfigError(f"{out} is a mount point, which cannot be renamed: choose a folder below it")
    return real


def _built(
    source: Path,
    building: Path,
    config: IngestConfig,
    engine: Engine | None,
    progress: Progress,
    stop: Stop,
) -> dict[str, Any]:
    """Build or continue the new dataset; one of a dump that changed under the same size and time is begun anew."""
    try:
        return ingest([str(source)], building, config, engine=engine, progress=progress, stop=stop)
    except OtherDumpError:
        _delete(building)
        return ingest([str(source)], building, config, engine=engine, progress=progress, stop=stop)


def _discard_others(out: Path, building: Path) -> None:
    """Delete builds of `out` that were given up: those of another dump, other settings or other code."""
    if not out.parent.is_dir():
        return
    name = re.compile(rf"\.{re.escape(out.name)}\.building-[0-9a-f]{{16}}")
    for folder in list(out.parent.iterdir()):
        if name.fullmatch(folder.name) and folder != building:
            _delete(folder)


def _swap(building: Path, out: Path) -> None:
    """Give the new dataset the name of the old one."""
    out.rename(aside_of(out))
    sync_directory(out.parent)
    building.rename(out)
    sync_directory(out.parent)


def _recorded(folder: Path) -> set[str]:
    """Return the names in a folder that are a dataset's: those that its manifest names.

    A manifest of another version counts; one that is damaged, or of something else, is not ours.
    """
    names, build, manifest = (
        {path.name for path in temporaries(folder)},
        is_build(folder),
        _is_manifest(folder / MANIFEST),
    )
    if (folder / LOCK).is_file() and not (folder / LOCK).stat().st_size:
        names.add(LOCK)
    names |= {BUILDING} if build else set()
    if manifest:
        names |= {MANIFEST, CARD}
        with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            names |= {str(entry["name"]) for entry in json.loads((folder / MANIFEST).read_bytes())["files"]}
    return names


def _is_manifest(path: Path) -> bool:
    """Tell whether a file is a dataset's manifest, of whatever version."""
    try:
        said = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(said, dict) and {"format_version", "moves_hash", "files"} <= said.keys()


def _strangers(folder: Path) -> list[str]:
    """Return the names in a folder that are not of the dataset; a folder or link under a file's name is one.

    What systems write into folders again and again (JUNK) is nobody's.
    """
    recorded = _recorded(folder) | JUNK
    there = folder.iterdir() if folder.exists() else ()
    return sorted(
        path.name
        for path in there
        if path.name not in recorded or path.is_symlink() or path.is_dir() != (path.name == BUILDING)
    )


def _require_no_strangers(out: Path) -> None:
    """Raise DatasetError for a folder with files that no record of the dataset names: they would be lost."""
    if found := _strangers(out):
        told = ", ".join(found[:TOLD]) + (f" and {len(found) - TOLD} more" if len(found) > TOLD else "")
        raise DatasetError(f"{out} holds files that are not of the dataset ({told}): move that away, then replace it")


def _delete(folder: Path) -> None:
    """Delete a dataset by its recorded files; what else lies there stays, and is named."""
    if not folder.exists():
        return
    strangers = set(_strangers(folder))
    mine = [path for path in folder.iterdir() if path.name not in strangers and path.name not in (MANIFEST, BUILDING)]
    for path in mine:
        path.unlink(missing_ok=True)
    discard(folder)
    (folder / MANIFEST).unlink(missing_ok=True)
    if strangers:
        raise DatasetError(f"{folder} holds files that are not of the dataset ({sorted(strangers)[0]}): move that away")
    folder.rmdir()
