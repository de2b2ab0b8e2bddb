"""Checks of output folders: nothing is written into a folder that holds other files, or results of
another kind.

A command calls `require_own` before it writes anything, and `require_apart` if it reads folders.
`claim` records what the results are made from, and refuses to continue them as something else.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import UserError
from engine.temporaries import is_temporary
from pipeline.storage.stores import LOCK, is_local, publish_json

SHOWN = 4
"""Maximum number of differences that an error message lists."""
SYSTEM = frozenset(
    {
        ".DS_Store",
        ".Spotlight-V100",
        ".Trashes",
        ".TemporaryItems",
        ".fseventsd",
        ".snapshot",
        "lost+found",
    }
    | {"Thumbs.db", "desktop.ini", ".gitignore", ".gitkeep", ".keep"}
)
"""Files that systems and people put into otherwise empty folders: they are ignored and kept."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of folder: its name, and the files any one of which marks a folder as this kind."""

    name: str
    marks: tuple[str, ...]
    key: str = ""
    """A key that the mark, a JSON object, must have; "" if the mark is checked elsewhere."""


DATASET = Kind("a dataset", ("manifest.json", ".building/run.json"))
SELFPLAY = Kind("a generation of self-play", ("explore.json",))
FINETUNING = Kind("a fine-tuning", ("finetune.json",))
TRAINING_SET = Kind("a training set", ("training_set.json",))
CHECKPOINT = Kind("a checkpoint", ("checkpoint.json",))
MATCH = Kind("a match", ("arena.json",))
MATCHES = Kind("a folder of matches", ("matches.json",), "rows")
REPORT = Kind("a report", ("report.json",), "common_rule")
IMITATION_REPORT = Kind("a report of an imitation", ("report.json",), "held_out")
AUDIT = Kind("an audit", ("audit.json",), "in_train")
# special kinds first: a generation of self-play is a dataset too
_FOLDERS = (SELFPLAY, FINETUNING, TRAINING_SET, CHECKPOINT, MATCH)
KINDS = (*_FOLDERS, MATCHES, REPORT, IMITATION_REPORT, AUDIT, DATASET)


def require_own(
    folder: Path,
    kind: Kind,
    refusal: type[UserError],
    *,
    ours: Callable[[Path], bool] = lambda entry: False,
) -> None:
    """Raise `refusal` unless a folder is absent, empty, or of this kind.

    Call it before anything is written, the lock included. Files of SYSTEM, an empty lock and our
    temporary files are ignored, and so are entries that `ours` accepts, such as those of single
    matches.
    """
    if is_local(folder) and folder.is_symlink() and not folder.exists():
        raise refusal(f"{folder} is a link to nothing: choose another directory")
    if not folder.exists() or is_of(folder, kind):
        return
    if is_local(folder) and not folder.is_dir():
        raise refusal(f"{folder} cannot be made into a directory, it is a file: choose another")
    foreign = sorted(
        entry.name for entry in folder.iterdir() if not is_ignored(entry) and not ours(entry)
    )
    if foreign:
        found = next((f", {other.name}" for other in KINDS if is_of(folder, other)), "")
        raise refusal(
            f"{folder} holds {foreign[0]!r}{found}, which is not of {kind.name}: choose an empty "
            f"or new directory"
        )


def is_of(folder: Path, kind: Kind) -> bool:
    """Return whether a folder is of a kind, by its marks."""
    return any(_is_mark(folder / mark, kind.key) for mark in kind.marks)


def is_free(folder: Path, *but: str) -> bool:
    """Return whether a folder exists and has only files that are ignored or named in `but`."""
    return folder.is_dir() and all(
        entry.name in but or is_ignored(entry) for entry in folder.iterdir()
    )


def _is_mark(mark: Path, key: str) -> bool:
    """Return whether a mark exists and, if a key is required, is a JSON object with it."""
    if not mark.is_file() or not key:
        return mark.is_file()
    try:
        found = json.loads(mark.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(found, dict) and key in found


def is_ignored(entry: Path) -> bool:
    """Return whether an entry does not count when a folder's owner is determined."""
    name = entry.name
    if (
        not name or name in SYSTEM or is_temporary(name) or name.startswith(".nfs")
    ):  # a store lists the folder itself as ""
        return True
    if name == LOCK:  # our locks are empty, and taking one truncates the file
        return not is_local(entry) or (
            entry.is_file() and not entry.is_symlink() and not entry.stat().st_size
        )
    # made by a process that was killed before it wrote there
    hidden = name in (".building", ".journal")
    return (
        hidden
        and not entry.is_symlink()
        and entry.is_dir()
        and all(is_temporary(it.name) or it.is_dir() for it in entry.rglob("*"))
    )


def require_apart(out: Path, inputs: Iterable[Path], refusal: type[UserError]) -> None:
    """Raise `refusal` if `out` is one of the folders or files that a command reads, or lies inside
    one.
    """
    target = _resolve(out)
    for one in inputs:
        read = _resolve(one)
        if target == read or target.startswith(f"{read.rstrip('/')}/"):
            raise refusal(
                f"{out} is, or lies in, {one}, which is read from: choose another directory"
            )


def _resolve(path: Path) -> str:
    return path.resolve().as_posix() if is_local(path) else str(path).rstrip("/")


def claim(path: Path, identity: Mapping[str, Any], refusal: type[UserError]) -> None:
    """Publish `identity` as the JSON file `path`, or raise `refusal` if the file that exists
    differs or cannot be read.
    """
    if not path.exists():
        publish_json(path.parent, path.name, identity)
        return
    try:
        before = flat({**json.loads(path.read_bytes())})
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise refusal(f"{path} cannot be read: choose another directory") from error
    now = flat(json.loads(json.dumps(identity)))
    if names := sorted(
        name for name in before.keys() | now.keys() if before.get(name) != now.get(name)
    ):
        shown = "; ".join(
            f"{name} was {before.get(name)!r}, not {now.get(name)!r}" for name in names[:SHOWN]
        )
        raise refusal(
            f"{path.parent} was started with other inputs or settings ({shown}): choose another "
            f"directory, or remove it"
        )


def flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Return the leaves of nested objects by dotted name."""
    if not isinstance(tree, dict):
        return {prefix: tree}
    leaves: dict[str, Any] = {}
    for name, value in tree.items():
        leaves |= flat(value, f"{prefix}.{name}" if prefix else str(name))
    return leaves
