"""Whose a folder is, and what it is of: nothing is written into the folder of somebody else, or of another kind.

A command that fills a folder asks `require_own` before it writes anything, and `require_apart` where it has inputs. `claim`
then writes down what the work is of when it begins, and compares that for whoever would go on with it.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import UserError
from engine.temporaries import is_temporary
from pipeline.storage.stores import LOCK, is_local, publish_json

TOLD = 4
"""Differences that a refusal names."""

SYSTEM = frozenset(
    {".DS_Store", ".Spotlight-V100", ".Trashes", ".TemporaryItems", ".fseventsd", ".snapshot", "lost+found"}
    | {"Thumbs.db", "desktop.ini", ".gitignore", ".gitkeep", ".keep"}
)
"""Names that systems and people put into folders that are empty otherwise: they are left alone, and are in nobody's way."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of folder: what it is called, and the files of which any one makes a folder of this kind."""

    name: str
    marks: tuple[str, ...]
    key: str = ""
    """A key that the mark, a JSON object, has; "" where whoever goes on with the folder reads and checks the mark anyway."""


DATASET = Kind("a dataset", ("manifest.json", ".parts/run.json"))
SELFPLAY = Kind("a generation of self-play", ("explore.json",))
FINETUNING = Kind("a fine-tuning", ("state.json",))
TRAINING_SET = Kind("a training set", ("training_set.json",))
CHECKPOINT = Kind("a checkpoint", ("checkpoint.json",))
MATCH = Kind("a match", ("arena.json",))
JUDGEMENTS = Kind("a judging", ("judge.json",))
LADDER = Kind("a ladder", ("ladder.json",), "player")
COMPARISON = Kind("a comparison", ("comparison.json",), "rows")
REPORT = Kind("a report", ("report.json",), "common_rule")
AUDIT = Kind("an audit", ("audit.json",), "in_train")
# the more special ones first: a generation of self-play is a dataset too
KINDS = (SELFPLAY, FINETUNING, TRAINING_SET, CHECKPOINT, MATCH, JUDGEMENTS, LADDER, COMPARISON, REPORT, AUDIT, DATASET)


def require_own(
    folder: Path,
    kind: Kind,
    refusal: type[UserError],
    *,
    ours: Callable[[Path], bool] = lambda entry: False,
) -> None:
    """Raise `refusal`, naming what is there, unless a folder is absent, empty, or of this kind already.

    Call it before anything is written, the lock included. What systems leave in folders (SYSTEM), an empty lock and temporary
    files of ours do not count, nor does an entry that `ours` says is part of such a folder, as the matches of a ladder are.
    Whoever is let in still has to compare what the folder is of (`claim`).
    """
    if is_local(folder) and folder.is_symlink() and not folder.exists():
        raise refusal(f"{folder} is a link to nothing: choose another directory")
    if not folder.exists() or is_of(folder, kind):
        return
    if is_local(folder) and not folder.is_dir():
        raise refusal(f"{folder} cannot be made into a directory, it is a file: choose another")
    entries = (entry for entry in folder.iterdir() if entry.name and entry != folder)
    foreign = sorted(entry.name for entry in entries if not _counts_not(entry) and not ours(entry))
    if foreign:
        found = next((f", {other.name}" for other in KINDS if is_of(folder, other)), "")
        raise refusal(
            f"{folder} holds {foreign[0]!r}{found}, which is not of {kind.name}: choose an empty or new directory"
        )


def is_of(folder: Path, kind: Kind) -> bool:
    """Tell whether a folder is of a kind, by its marks."""
    return any(_marked(folder / mark, kind.key) for mark in kind.marks)


def is_free(folder: Path, *but: str) -> bool:
    """Tell whether a folder is there and as good as empty, files of the names `but` left out."""
    return folder.is_dir() and all(entry.name in but or _counts_not(entry) for entry in folder.iterdir())


def _marked(mark: Path, key: str) -> bool:
    """Tell whether a mark is there and, where there must be a key, is a JSON object with it."""
    if not mark.is_file() or not key:
        return mark.is_file()
    try:
        found = json.loads(mark.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(found, dict) and key in found


def _counts_not(entry: Path) -> bool:
    """Tell whether an entry of a folder leaves it as good as empty."""
    if entry.name in SYSTEM or is_temporary(entry.name) or entry.name.startswith(".nfs"):
        return True
    if entry.name == LOCK:  # a lock of ours is empty; taking one empties what was in it
        return not is_local(entry) or (entry.is_file() and not entry.is_symlink() and not entry.stat().st_size)
    hidden = entry.name in (".parts", ".journal")  # made, and killed before anything was in it
    return hidden and not entry.is_symlink() and entry.is_dir() and all(is_temporary(it.name) for it in entry.iterdir())


def require_apart(out: Path, inputs: Iterable[Path], refusal: type[UserError]) -> None:
    """Raise `refusal` where `out` is one of the folders or files that a command reads, or lies inside one."""
    place = _resolved(out)
    for one in inputs:
        read = _resolved(one)
        if place == read or place.startswith(f"{read.rstrip('/')}/"):
            raise refusal(f"{out} is, or lies in, {one}, which is read from: choose another directory")


def _resolved(path: Path) -> str:
    """Give what two names of one folder have in common."""
    return path.resolve().as_posix() if is_local(path) else str(path).rstrip("/")


def claim(path: Path, identity: Mapping[str, Any], refusal: type[UserError]) -> None:
    """Publish `identity` as the JSON file `path` where there is none, or find the same there.

    Raises `refusal`, naming what differs, where the folder was begun otherwise, or `path` is no such file.
    """
    if not path.exists():
        publish_json(path.parent, path.name, identity)
        return
    try:
        before = flat({**json.loads(path.read_bytes())})
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise refusal(f"{path} cannot be read: choose another directory") from error
    told = differences(before, flat(json.loads(json.dumps(identity))))
    if told:
        message = (
            f"{path.parent} was begun otherwise ({'; '.join(told[:TOLD])}): choose another directory, or remove it"
        )
        raise refusal(message)


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Tell in which names two flat objects differ, a phrase each."""
    names = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    return [f"{name} was {before.get(name)!r}, not {now.get(name)!r}" for name in names]


def flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Give the leaves of nested objects by their dotted names."""
    if not isinstance(tree, dict):
        return {prefix: tree}
    leaves: dict[str, Any] = {}
    for name, value in tree.items():
        leaves |= flat(value, f"{prefix}.{name}" if prefix else str(name))
    return leaves
