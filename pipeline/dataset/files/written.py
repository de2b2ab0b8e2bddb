"""Which files of an unfinished dataset are ours: only these are ever deleted or replaced, whatever others are called.

    content whole and hashed -> .parts/wrote-NAME.json: its hash -> NAME

A file is ours while it is, byte for byte, what a record says: a record of this module, or the note of a chunk or a shard.
Another's file that stands under a name that we need is refused by name. `.parts` is ours as a whole, once `run.json` is in it.
"""

import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

from engine.temporaries import is_temporary, new_file
from pipeline.dataset.files.layout import MANIFEST, PARTS, RUN
from pipeline.errors import DatasetError
from pipeline.storage.stores import Published, file_hash, is_local, persist, publish

RECORD = "wrote-"
"""How the records begin."""


def publish_own(out: Path, name: str, rows: int, write: Callable[[Any], None]) -> Published:
    """Publish a file of a dataset whose `.parts` are there; raises DatasetError where another's stands under the name."""
    return publish(out, name, rows, write, note_down)


def note_down(out: Path, file: Published) -> None:
    """Record a file that is about to get its name; raises DatasetError where another's stands under it.

    Of the records none is brought to the disk by itself: after a power cut a file may lack its own, and is then another's,
    unless what is to be written is the same.
    """
    path = out / file.name
    if _stands(path):
        same = path.is_file() and not _linked(path) and _is(path, file.bytes, file.sha256)
        if not same and not is_ours(out, file.name):
            raise DatasetError(
                f"{path} does not belong to this ingest: move it away and run the same command again, or choose another --out"
            )
        if not same:
            path.unlink()  # before the record is one of other bytes
    record = out / PARTS / f"{RECORD}{file.name}.json"
    text = json.dumps({"name": file.name, "bytes": file.bytes, "sha256": file.sha256}).encode()
    if is_local(out):
        with new_file(record, sync=False) as target:
            target.write(text)
    else:
        persist(str(record), lambda: cast("Any", record).fs.pipe_file(cast("Any", record).path, text))


def is_ours(out: Path, name: str) -> bool:
    """Return whether a file is what a record of ours says."""
    return own_entry(out, name) is not None


def own_entry(out: Path, name: str) -> dict[str, Any] | None:
    """Return `name`, `bytes` and `sha256` of a file that is what a record of ours says; None where there is no such file."""
    path = out / name
    if not _stands(path) or _linked(path) or not path.is_file():
        return None
    entries = _entries(out / PARTS / f"{RECORD}{name}.json")
    return next((entry for entry in entries if _is(path, entry["bytes"], entry["sha256"])), None)


def unnoted(out: Path, notes: Iterable[Path] = ()) -> list[Path]:
    """Return the Parquet files that our records name and none of these notes does, and that are still what was written."""
    kept = {entry["name"] for note in notes for entry in _entries(note)}
    records = sorted((out / PARTS).glob(f"{RECORD}*.json"))
    names = dict.fromkeys(entry["name"] for record in records for entry in _entries(record))
    return [out / name for name in names if name.endswith(".parquet") and name not in kept and is_ours(out, name)]


def delete_unnoted(out: Path, notes: Iterable[Path] = ()) -> None:
    """Delete the files that `unnoted` returns, and their records."""
    for path in unnoted(out, notes):
        path.unlink(missing_ok=True)
        forget(out, [path.name])


def forget(out: Path, names: Iterable[str]) -> None:
    """Take away the records of files that a note names by now, or that are gone."""
    for name in names:
        (out / PARTS / f"{RECORD}{name}.json").unlink(missing_ok=True)


def delete_own(out: Path, note: Path) -> None:
    """Delete the files that a note names, those that are still what was written, and then the note."""
    for entry in _entries(note):
        path = out / entry["name"]
        if path.is_file() and not _linked(path) and _is(path, entry["bytes"], entry["sha256"]):
            path.unlink()
    note.unlink(missing_ok=True)


def are_ours(out: Path) -> bool:
    """Tell whether a dataset has `.parts` that are ours: what makes them so, or nothing but temporary files, is in them."""
    parts = out / PARTS
    if (parts / RUN).is_file():
        return not _linked(parts)
    return (
        is_local(out) and parts.is_dir() and not _linked(parts) and all(is_temporary(it.name) for it in parts.iterdir())
    )


def remove_parts(out: Path) -> bool:
    """Delete the `.parts` of a finished ingest, and files that it wrote and its manifest does not name.

    Returns False where they are not ours. What makes them ours goes last.
    """
    if not are_ours(out):
        return False
    delete_unnoted(out, [out / MANIFEST])
    parts = out / PARTS
    if not is_local(out):
        cast("Any", parts).fs.rm(cast("Any", parts).path, recursive=True)
        return True
    for entry in parts.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != RUN:
            entry.unlink(missing_ok=True)
    (parts / RUN).unlink(missing_ok=True)
    parts.rmdir()
    return True


def _entries(record: Path) -> list[dict[str, Any]]:
    """Return what a record or a note says of files; nothing where it is not there.

    A record that is damaged, as by a power cut, says nothing either; a note that is raises DatasetError.
    """
    try:
        said = json.loads(record.read_bytes())
        found = said.get("files", [said])
        if any(Path(it["name"]).name != it["name"] or it["name"] in ("", "..") for it in found):
            raise ValueError("it names a file in another folder")
        return [{"name": it["name"], "bytes": int(it["bytes"]), "sha256": str(it["sha256"])} for it in found]
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if record.name.startswith(RECORD):
            return []
        raise DatasetError(f"{record} is damaged: delete the dataset and ingest again") from error


def _is(path: Path, size: int, sha256: str) -> bool:
    """Tell whether a file has this content."""
    return path.stat().st_size == size and file_hash(path) == sha256


def _stands(path: Path) -> bool:
    """Tell whether anything has this name, a link to nothing too."""
    return path.exists() or _linked(path)


def _linked(path: Path) -> bool:
    return is_local(path) and path.is_symlink()
