"""Manage the folder of a job: its kind, identity, lock, resume notes and published files.

    OUT/job.json          the marker: kind of the folder, and its inputs and settings
    OUT/.lock             held by the writing process
    OUT/.building/NAME    a finished file, which `finish` renames to OUT/NAME
    OUT/.building/parts/  notes and intermediate files of an unfinished job
    OUT/.journal/         finished items of self-play

The marker is the first file that a job writes. A folder is refused if it has files but no marker or
result, or if it has another kind or identity. A store cannot rename: its files get their final
names immediately, but the result is still written last.
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
from pipeline.errors import ConfigError, StoreError
from pipeline.storage.stores import (
    LOCK_FILE,
    catch_store_errors,
    hold_lock,
    is_local,
    make_folder,
    make_folder_lock,
    publish_bytes,
    publish_json,
    shorten_error,
)

MARKER, BUILDING, JOURNAL = "job.json", ".building", ".journal"
MAX_LISTED_DIFFERENCES = 4
"""Maximum number of different settings that an error message lists."""
SYSTEM_FILES = {
    *(".DS_Store", ".Spotlight-V100", ".Trashes", ".TemporaryItems", ".fseventsd", ".snapshot"),
    *("lost+found", "Thumbs.db", "desktop.ini", ".gitignore", ".gitkeep", ".keep"),
}
"""Files that operating systems and users put into empty folders; they are ignored and kept."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of job folder."""

    name: str
    """Name in error messages, with its article."""
    result: str = ""
    """File that a finished job writes last, and that replaces the marker; "" keeps the marker."""


DATASET_KIND = Kind("a dataset", "manifest.json")
SELFPLAY_KIND = Kind("a generation of self-play")
FINETUNING_KIND = Kind("a fine-tuning")
TRAINING_SET_KIND = Kind("a training set", "training_set.json")
CHECKPOINT_KIND = Kind("a checkpoint", "checkpoint.json")
MATCH_KIND = Kind("a match")
MATCHES_KIND = Kind("a folder of matches")
REPORT_KIND = Kind("a report")
IMITATION_REPORT_KIND = Kind("a report of an imitation")
AUDIT_KIND = Kind("an audit")
KINDS = (
    SELFPLAY_KIND, FINETUNING_KIND, TRAINING_SET_KIND, CHECKPOINT_KIND, MATCH_KIND, MATCHES_KIND,
    REPORT_KIND, IMITATION_REPORT_KIND, AUDIT_KIND, DATASET_KIND,
)  # fmt: skip


class JobFolder:
    """A folder, local or in a store, that a single job writes."""

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

        `refusal` is raised if the folder belongs to something else, `failure` (by default the same
        type) for a held lock or a full disk. `reads` are the inputs; the folder must not be one of
        them or inside one.
        """
        self.out, self.kind, self.reads = out, kind, tuple(reads)
        self.refusal, self.failure = refusal, failure or refusal
        self.files = out / BUILDING if is_local(out) else out
        """Folder for finished files until `finish` renames them; in a store, `out` itself."""
        self.notes = out / BUILDING / "parts"
        """Folder for notes and intermediate files."""
        self.journal = out / JOURNAL
        """Folder for finished items of self-play."""

    def check(self) -> None:
        """Raise `refusal` if it is a file, has other content, or is an input or inside one."""
        out, foreign = self.out, list[str]()
        if is_local(out) and not out.is_dir() and (out.exists() or out.is_symlink()):
            raise self.refusal(
                f"{out} cannot be created: it is a file or a broken link; choose another directory"
            )
        if out.exists() and not is_of_kind(out, self.kind):
            foreign = sorted(entry.name for entry in out.iterdir() if not is_ignored(entry))
        if foreign:
            kind = next((f", {other.name}" for other in KINDS if is_of_kind(out, other)), "")
            raise self.refusal(
                f"{out} holds {foreign[0]!r}{kind}, which is not part of {self.kind.name}: choose "
                "an empty or new directory"
            )
        require_apart(out, self.reads, self.refusal)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Check and create the folder, and hold its lock; delete temporary files of dead writers.

        If the block fails before there is anything to resume, the created folders are removed.
        """
        self.check()
        out = self.out
        folders = (out, *out.parents) if is_local(out) else ()
        created = [path for path in folders if not path.exists()]
        busy = self.failure(
            f"another process is writing {out}: wait for it, or choose another directory"
        )
        try:
            with catch_store_errors(out):
                make_folder(out)
                with hold_lock(make_folder_lock(out), busy):
                    self._delete_abandoned_files()
                    try:
                        yield
                    except BaseException:
                        self._remove_unused(created)
                        raise
                    finally:
                        self._delete_abandoned_files()
        except OSError as error:
            raise self._make_failure(error) from error

    def read_identity(self) -> dict[str, Any] | None:
        """Return the identity that the marker records, or None without a marker."""
        marker = read_marker(self.out)
        return None if marker is None else dict(marker["identity"])

    def list_differences(self, identity: Mapping[str, Any]) -> list[str]:
        """Describe the settings in which an identity differs from that of the marker."""
        before, now = (
            flatten_leaves(self.read_identity() or {}),
            flatten_leaves(json.loads(json.dumps(identity))),
        )
        return [
            f"{name} was {before.get(name)!r}, not {now.get(name)!r}"
            for name in sorted(before.keys() | now.keys())
            if before.get(name) != now.get(name)
        ]

    def claim(self, identity: Mapping[str, Any], *, has_results: bool = True) -> None:
        """Write the marker, or raise `refusal` if the existing one has another identity.

        Without `has_results`, no old results can be mixed with new ones: an unfinished build is
        deleted and the marker is replaced.
        """
        if self.read_identity() is None or not has_results:
            self.discard()
            publish_json(self.out, MARKER, {"kind": self.kind.name, "identity": identity})
        elif differences := self.list_differences(identity):
            raise self.refusal(
                f"{self.out} was started with other inputs or settings "
                f"({'; '.join(differences[:MAX_LISTED_DIFFERENCES])}): choose another directory"
            )

    def begin(self) -> None:
        """Check the folder and create its marker if missing; the caller must hold a lock."""
        self.check()
        if not is_of_kind(self.out, self.kind):
            try:
                make_folder(self.out)
                self.claim({})
            except OSError as error:
                raise self._make_failure(error) from error

    def _make_failure(self, error: OSError) -> UserError:
        """Convert the error of a full disk, an unreachable store or a folder without permission."""
        where = "" if isinstance(error, StoreError) else f" ({error.filename or self.out})"
        return self.failure(
            f"{shorten_error(error)}{where}: finished work is kept, run the same command to "
            "continue"
        )

    def make_notes_folder(self) -> None:
        """Create the folder for notes."""
        make_folder(self.notes)

    def has_notes(self) -> bool:
        """Return whether there is a note of finished work, from which a job can resume."""
        return any(not is_temporary(path.name) for path in self.notes.glob("*.json"))

    def is_finished(self) -> bool:
        """Return whether the dataset is finished; completes a `finish` that was interrupted."""
        result = DATASET_KIND.result
        if is_local(self.out) and (self.files / result).is_file():
            self.finish(result)
        is_finished = (self.out / result).exists()
        if is_finished:
            self._delete_work()
            self.finish()
        return is_finished

    def finish(self, last: str = "") -> None:
        """Rename the built files, with `last` at the end, and delete what else the build left.

        Without `last`, only a marker that a result has replaced is deleted. Call it again if it was
        killed. Raises `refusal` if a file of the same name exists that is not from this job.
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

    def _delete_abandoned_files(self) -> None:
        for folder in (self.out, self.files, self.notes, self.journal):
            for path in list_abandoned(folder) if is_local(folder) else ():
                path.unlink(missing_ok=True)

    def _remove_unused(self, created: Sequence[Path]) -> None:
        """Remove the created folders, innermost first, if there is nothing to resume."""
        if not created or self.has_notes():
            return
        if {entry.name for entry in self.out.iterdir()} <= {LOCK_FILE, MARKER, BUILDING}:
            with suppress(OSError):
                self.discard()
                for name in (MARKER, LOCK_FILE):
                    (self.out / name).unlink(missing_ok=True)
                for folder in created:
                    folder.rmdir()


def publish_result(
    out: Path, kind: Kind, name: str, result: Mapping[str, Any], files: Mapping[str, bytes]
) -> None:
    """Publish a result as the JSON file `name`, after other files, in a job folder.

    Raises ConfigError if the folder belongs to something else or cannot be written.
    """
    folder = JobFolder(out, kind, ConfigError)
    with folder.lock():
        folder.claim({})
        for other, content in files.items():
            publish_bytes(out, other, content)
        publish_json(out, name, result)


def read_marker(folder: Path) -> dict[str, Any] | None:
    """Return the marker of a folder; None if it is missing or invalid."""
    try:
        marker = json.loads((folder / MARKER).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    kinds = {kind.name for kind in KINDS}
    is_valid = isinstance(marker, dict) and marker.get("kind") in kinds
    return marker if is_valid and isinstance(marker.get("identity"), dict) else None


def is_of_kind(folder: Path, kind: Kind) -> bool:
    """Return whether a folder is of a kind, judged by its marker or its result."""
    marker = read_marker(folder)
    if marker is not None:
        return bool(marker["kind"] == kind.name)
    return kind.result != "" and (folder / kind.result).is_file()


def is_ignored(entry: Path) -> bool:
    """Return whether an entry is ignored when the content of a folder is checked."""
    name = entry.name
    if name == LOCK_FILE:  # taking a lock truncates the file, so do not ignore one with content
        return not is_local(entry) or (
            entry.is_file() and not entry.is_symlink() and not entry.stat().st_size
        )
    # "" is the folder itself, which a store lists too
    return not name or name in SYSTEM_FILES or is_temporary(name) or name.startswith(".nfs")


def require_apart(out: Path, inputs: Iterable[Path], refusal: type[UserError]) -> None:
    """Raise `refusal` if the output is an input or is inside one."""
    output_path = _resolve_path(out)
    for folder in inputs:
        input_path = _resolve_path(folder)
        if output_path == input_path or output_path.startswith(f"{input_path.rstrip('/')}/"):
            raise refusal(f"output {out} is input {folder} or inside it: choose another directory")


def _resolve_path(path: Path) -> str:
    return path.resolve().as_posix() if is_local(path) else str(path).rstrip("/")


def flatten_leaves(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Return the values of nested dicts by dotted name, such as "a.b"."""
    if not isinstance(tree, dict):
        return {prefix: tree}
    leaves: dict[str, Any] = {}
    for name, value in tree.items():
        leaves |= flatten_leaves(value, f"{prefix}.{name}" if prefix else str(name))
    return leaves
