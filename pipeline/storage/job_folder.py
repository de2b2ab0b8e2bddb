"""Manage the folder of a job: its kind and identity, lock, resume notes and published files.

    OUT/job.json          the marker: kind of the folder, and its inputs and settings
    OUT/.lock             held by the writing process
    OUT/.building/NAME    a finished file, which `finish` renames to OUT/NAME
    OUT/.building/parts/  notes and intermediate files of an unfinished job
    OUT/.journal/         finished items of self-play

The marker is the first file of a job. A folder is refused if it has files but no marker or result,
or if it has another kind or identity. A store cannot rename: its files get their final names
immediately, and the result is still written last.
"""

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from engine.errors import UserError
from engine.temporaries import is_temporary, list_abandoned, sync_directory
from pipeline.errors import StoreError
from pipeline.storage.stores import (
    LOCK,
    catch_store_errors,
    folder_lock,
    hold_lock,
    is_local,
    make_folder,
    one_line,
    publish_json,
)

MARKER, BUILDING, JOURNAL = "job.json", ".building", ".journal"
MAX_DIFFERENCES = 4
"""Maximum number of differences that an error message lists."""
SYSTEM_FILES = {
    *(".DS_Store", ".Spotlight-V100", ".Trashes", ".TemporaryItems", ".fseventsd", ".snapshot"),
    *("lost+found", "Thumbs.db", "desktop.ini", ".gitignore", ".gitkeep", ".keep"),
}
"""Files that operating systems and users put into empty folders: they are ignored and kept."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of folder: its name in messages, and the file that marks a finished one."""

    name: str
    result: str = ""
    """File that a finished job writes last, and that replaces the marker; "" keeps the marker."""


DATASET = Kind("a dataset", "manifest.json")
SELFPLAY = Kind("a generation of self-play")
FINETUNING = Kind("a fine-tuning")
TRAINING_SET = Kind("a training set", "training_set.json")
CHECKPOINT = Kind("a checkpoint", "checkpoint.json")
MATCH = Kind("a match")
MATCHES = Kind("a folder of matches")
REPORT = Kind("a report")
IMITATION_REPORT = Kind("a report of an imitation")
AUDIT = Kind("an audit")
KINDS = (
    SELFPLAY, FINETUNING, TRAINING_SET, CHECKPOINT, MATCH, MATCHES, REPORT, IMITATION_REPORT,
    AUDIT, DATASET,
)  # fmt: skip


class JobFolder:
    """A local or store folder that a single job writes."""

    def __init__(
        self,
        out: Path,
        kind: Kind,
        refusal: type[UserError],
        failure: type[UserError] | None = None,
        *,
        reads: Iterable[Path] = (),
    ) -> None:
        """Describe the folder; nothing is read or written yet.

        `refusal` is raised if the folder belongs to something else, `failure` for a held lock or a
        full disk. `reads` are the inputs; the folder must not be inside one.
        """
        self.out, self.kind, self.reads = out, kind, tuple(reads)
        self.refusal, self.failure = refusal, failure or refusal
        self.files = out / BUILDING if is_local(out) else out
        """Folder for finished files."""
        self.notes = out / BUILDING / "parts"
        """Folder for notes and intermediate files."""
        self.journal = out / JOURNAL
        """Folder for finished items of self-play."""

    def check(self) -> None:
        """Raise `refusal` if the folder has other content or is inside an input; write nothing."""
        out, foreign = self.out, list[str]()
        if is_local(out) and not out.is_dir() and (out.exists() or out.is_symlink()):
            raise self.refusal(
                f"{out} cannot be created: it is a file or a broken link; choose another"
            )
        if out.exists() and not is_of(out, self.kind):
            foreign = sorted(entry.name for entry in out.iterdir() if not is_ignored(entry))
        if foreign:
            kind = next((f", {other.name}" for other in KINDS if is_of(out, other)), "")
            raise self.refusal(
                f"{out} holds {foreign[0]!r}{kind}, which is not part of {self.kind.name}: choose "
                "an empty or new directory"
            )
        require_apart(out, self.reads, self.refusal)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Check and create the folder, hold its lock, and delete temporary files of dead writers.

        If the block fails before anything is worth keeping, the created folders are removed.
        """
        self.check()
        out = self.out
        folders = (out, *out.parents) if is_local(out) else ()
        made = [path for path in folders if not path.exists()]
        busy = self.failure(
            f"another process is writing {out}: wait for it, or choose another directory"
        )
        try:
            with catch_store_errors(out):
                make_folder(out)
                with hold_lock(folder_lock(out), busy):
                    self._sweep()
                    try:
                        yield
                    except BaseException:
                        self._remove_unused(made)
                        raise
                    finally:
                        self._sweep()
        except OSError as error:
            raise self._make_failure(error) from error

    def identity(self) -> dict[str, Any] | None:
        """Return the identity recorded in the marker, None without a marker."""
        marker = read_marker(self.out)
        return None if marker is None else dict(marker["identity"])

    def differences(self, identity: Mapping[str, Any]) -> list[str]:
        """List the settings in which the marker differs from an identity, with both values."""
        before, now = (
            flatten_leaves(self.identity() or {}),
            flatten_leaves(json.loads(json.dumps(identity))),
        )
        return [
            f"{name} was {before.get(name)!r}, not {now.get(name)!r}"
            for name in sorted(before.keys() | now.keys())
            if before.get(name) != now.get(name)
        ]

    def claim(self, identity: Mapping[str, Any], *, has_results: bool = True) -> None:
        """Write the marker, or raise `refusal` if the existing one differs.

        Without `has_results` nothing can be mixed: an unfinished build is deleted and the marker is
        replaced.
        """
        if self.identity() is None or not has_results:
            self.discard()
            publish_json(self.out, MARKER, {"kind": self.kind.name, "identity": identity})
        elif found := self.differences(identity):
            raise self.refusal(
                f"{self.out} was started with other inputs or settings "
                f"({'; '.join(found[:MAX_DIFFERENCES])}): choose another directory"
            )

    def begin(self) -> None:
        """Check and mark the folder, for a trainer that holds the lock itself."""
        self.check()
        if not is_of(self.out, self.kind):
            try:
                make_folder(self.out)
                self.claim({})
            except OSError as error:
                raise self._make_failure(error) from error

    def _make_failure(self, error: OSError) -> UserError:
        """Return the error for a full disk, an unreachable store or an unwritable folder."""
        where = "" if isinstance(error, StoreError) else f" ({error.filename or self.out})"
        kept = "finished work is kept, run the same command to continue"
        return self.failure(f"{one_line(error)}{where}: {kept}")

    def make_notes(self) -> None:
        """Create the folder for notes."""
        make_folder(self.notes)

    def has_notes(self) -> bool:
        """Return whether a note of finished work exists."""
        return any(not is_temporary(path.name) for path in self.notes.glob("*.json"))

    def is_finished(self) -> bool:
        """Return whether the folder's dataset is finished; completes an interrupted `finish`."""
        result = DATASET.result
        if is_local(self.out) and (self.files / result).is_file():
            self.finish(result)
        is_finished = (self.out / result).exists()
        if is_finished:
            self._delete_work()
            self.finish()
        return is_finished

    def finish(self, last: str = "") -> None:
        """Rename the built files, `last` at the end, and delete the rest of the build.

        After a kill, call it again. Raises `refusal` if another program's file has the same name.
        """
        if last and is_local(self.out):
            self._rename_files(last)
        if last:
            self._delete_work()
        if self.kind.result and (self.out / self.kind.result).exists():
            (self.out / MARKER).unlink(missing_ok=True)

    def _rename_files(self, last: str) -> None:
        names = sorted(path.name for path in self.files.iterdir() if path.is_file())
        names = [name for name in names if name != last and not is_temporary(name)] + [last]
        for path in (self.out / name for name in names):
            if path.exists() or path.is_symlink():
                raise self.refusal(
                    f"{path} is not part of this build: move it away and run the same command again"
                )
        sync_directory(self.files)
        for name in names:
            if name == last:
                sync_directory(self.out)
            (self.files / name).rename(self.out / name)
        sync_directory(self.out)

    def discard(self) -> None:
        """Delete the unfinished build, notes included."""
        folder = self.out / BUILDING
        if not is_local(folder):
            if folder.exists():
                cast("Any", folder).fs.rm(cast("Any", folder).path, recursive=True)
        elif folder.is_dir() and not folder.is_symlink():
            shutil.rmtree(folder)

    def _delete_work(self) -> None:
        self.discard()
        if is_local(self.out):
            shutil.rmtree(self.journal, ignore_errors=True)

    def _sweep(self) -> None:
        """Delete temporary files of dead writers; a store has none."""
        for folder in (self.out, self.files, self.notes, self.journal):
            for path in list_abandoned(folder) if is_local(folder) else ():
                path.unlink(missing_ok=True)

    def _remove_unused(self, made: Sequence[Path]) -> None:
        """Remove created folders, innermost first, if they have nothing to resume."""
        if not made or self.has_notes():
            return
        if {entry.name for entry in self.out.iterdir()} <= {LOCK, MARKER, BUILDING}:
            with suppress(OSError):
                self.discard()
                for name in (MARKER, LOCK):
                    (self.out / name).unlink(missing_ok=True)
                for folder in made:
                    folder.rmdir()


def read_marker(folder: Path) -> dict[str, Any] | None:
    """Return the marker of a folder, None if there is none."""
    try:
        found = json.loads((folder / MARKER).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    kinds = {kind.name for kind in KINDS}
    valid = isinstance(found, dict) and found.get("kind") in kinds
    return found if valid and isinstance(found.get("identity"), dict) else None


def is_of(folder: Path, kind: Kind) -> bool:
    """Return whether a folder is of a kind, by its marker or its result."""
    marker = read_marker(folder)
    if marker is not None:
        return bool(marker["kind"] == kind.name)
    return kind.result != "" and (folder / kind.result).is_file()


def is_ignored(entry: Path) -> bool:
    """Return whether to ignore an entry when checking what a folder belongs to."""
    name = entry.name
    if name == LOCK:  # ignore only empty locks: taking a lock truncates the file
        return not is_local(entry) or (
            entry.is_file() and not entry.is_symlink() and not entry.stat().st_size
        )
    # a store lists the folder itself as ""
    return not name or name in SYSTEM_FILES or is_temporary(name) or name.startswith(".nfs")


def require_apart(out: Path, inputs: Iterable[Path], refusal: type[UserError]) -> None:
    """Raise `refusal` if the output is an input or is inside one."""
    target = _resolve(out)
    for one in inputs:
        read = _resolve(one)
        if target == read or target.startswith(f"{read.rstrip('/')}/"):
            raise refusal(f"output {out} is input {one} or inside it: choose another directory")


def _resolve(path: Path) -> str:
    return path.resolve().as_posix() if is_local(path) else str(path).rstrip("/")


def flatten_leaves(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Return the leaves of nested objects by dotted name."""
    if not isinstance(tree, dict):
        return {prefix: tree}
    leaves: dict[str, Any] = {}
    for name, value in tree.items():
        leaves |= flatten_leaves(value, f"{prefix}.{name}" if prefix else str(name))
    return leaves
