"""Build a folder aside: its files get their names when all of them are complete, the one that marks
the folder last.

    OUT/.building/run.json      what is being built: with it, all of .building is ours
    OUT/.building/parts/...     notes and intermediate files, which stay for a resume
    OUT/.building/NAME          a finished file, which `finish` renames to OUT/NAME

A store has no rename: files are published under their final names at once, and the marking file
still comes last. A killed build is continued or discarded by the next command with the same OUT;
files of others in OUT are never touched.
"""

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from engine.errors import UserError
from engine.temporaries import is_temporary, sync_directory
from pipeline.storage.stores import is_local, make_folder, publish_json

BUILDING = ".building"
RUN = "run.json"
PARTS = f"{BUILDING}/parts"


def begin(out: Path, identity: Mapping[str, Any]) -> None:
    """Begin a build; one that was already begun gets the new identity."""
    make_folder(out / PARTS)
    publish_json(out / BUILDING, RUN, identity)


def files_folder(out: Path) -> Path:
    """Return the folder that finished files are written into."""
    return out / BUILDING if is_local(out) else out


def is_build(out: Path) -> bool:
    """Return whether OUT holds a build: marked by its identity, or killed before it wrote
    anything.
    """
    folder = out / BUILDING
    if (folder / RUN).is_file():
        return not is_local(out) or not folder.is_symlink()
    if not is_local(out) or not folder.is_dir() or folder.is_symlink():
        return False
    return all(is_temporary(path.name) or path.is_dir() for path in folder.rglob("*"))


def require_unused(out: Path, names: Iterable[str], refusal: type[UserError]) -> None:
    """Raise `refusal` if another program's file has a name that the build needs; in a store such a
    file is ours.
    """
    for name in names if is_local(out) else ():
        if (out / name).exists() or (out / name).is_symlink():
            raise refusal(
                f"{out / name} is not of this build: move it away and run the same command again, "
                f"or choose another --out"
            )


def finish(out: Path, last: str, refusal: type[UserError]) -> None:
    """Give the files of a build their names, `last` at the end, and delete the rest of it; if
    killed, call it again.

    Raises `refusal` if another program's file has one of the names.
    """
    if is_local(out):
        folder = out / BUILDING
        files = sorted(
            path.name for path in folder.iterdir() if path.is_file() and not is_temporary(path.name)
        )
        names = [name for name in files if name not in (RUN, last)]
        require_unused(out, [*names, last], refusal)
        sync_directory(folder)
        for name in names:
            (folder / name).rename(out / name)
        sync_directory(out)
        (folder / last).rename(out / last)
        sync_directory(out)
    discard(out)


def discard(out: Path) -> bool:
    """Delete a build, its identity last; return False if there is none."""
    if not is_build(out):
        return False
    folder = out / BUILDING
    if not is_local(out):
        cast("Any", folder).fs.rm(cast("Any", folder).path, recursive=True)
        return True
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != RUN:
            entry.unlink(missing_ok=True)
    (folder / RUN).unlink(missing_ok=True)
    folder.rmdir()
    return True
