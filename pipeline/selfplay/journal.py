"""The journal of a generation in progress: each process appends what it has finished to its own
file.

.journal/UUID.jsonl   lines CRC32 JSON, where JSON is {"record", "searches"} and more for a finished
item, a game
                           (records.py) or a group of positions (positions.py), or {"work"}: what
                           the process has done so far

A killed process loses no line that it has written, since the system has it; fsync, every few
seconds, is for power cuts. A process always opens a new file, so only the last line of a file can
be cut short. A damaged line is counted and ignored, and its item is done again. An item that was
done twice is the same both times.
"""

import json
import os
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from engine.temporaries import name_path

CHECKSUM = 8
"""Hexadecimal digits before the space and the JSON text of a line."""
RECORD = b' {"record"'
"""The rest of a finished item's line begins so."""
SYNC_SECONDS = 5.0
"""Time between two fsyncs, and so the work that a power cut loses at most."""


class Journal:
    """The file of one process."""

    def __init__(self, folder: Path) -> None:
        self.file = (folder / f"{uuid4().hex}.jsonl").open("xb")
        self.synced = time.monotonic()

    def add(self, entry: Mapping[str, Any]) -> None:
        """Append a line and hand it to the system."""
        text = json.dumps(entry, separators=(",", ":"), allow_nan=False).encode()
        with name_path(Path(self.file.name)):
            self.file.write(b"%08x %b\n" % (zlib.crc32(text), text))
            self.file.flush()

    @property
    def due(self) -> bool:
        """Return whether it is time to call `sync`."""
        return time.monotonic() - self.synced >= SYNC_SECONDS

    def sync(self, work: Mapping[str, Any]) -> None:
        """Append what the process has done since it began, and write everything to the disk."""
        self.add({"work": work})
        os.fsync(self.file.fileno())
        self.synced = time.monotonic()

    def close(self) -> None:
        """Close the file."""
        self.file.close()


class Place(NamedTuple):
    """Where an item's line is."""

    path: Path
    offset: int

    def read(self) -> dict[str, Any]:
        """Read the line."""
        with self.path.open("rb") as file:
            file.seek(self.offset)
            entry: dict[str, Any] = json.loads(file.readline()[CHECKSUM:])
        return entry


@dataclass(slots=True)
class Journals:
    """The contents of all files."""

    places: dict[int, Place] = field(default_factory=dict)
    """Finished items by number."""
    work: list[dict[str, Any]] = field(default_factory=list)
    """The work of each process up to its last sync."""
    damaged: int = 0
    """Lines with a wrong checksum."""


def read_journals(folder: Path) -> Journals:
    """Find every finished item."""
    found = Journals()
    for path in sorted(folder.glob("*.jsonl")):
        work = None
        offset = 0
        with path.open("rb") as file:
            for line in file:
                if (entry := _parse(line)) is None:
                    found.damaged += 1
                elif "work" in entry:
                    work = entry["work"]
                else:
                    found.places.setdefault(entry["record"]["number"], Place(path, offset))
                offset += len(line)
        if work is not None:
            found.work.append(work)
    return found


def _parse(line: bytes) -> dict[str, Any] | None:
    """Parse a line; None if its checksum is wrong."""
    checksum, text = line[:CHECKSUM], line[CHECKSUM + 1 : -1]
    if not line.endswith(b"\n") or checksum != b"%08x" % zlib.crc32(text):
        return None
    entry: dict[str, Any] = json.loads(text)
    return entry


class Watch:
    """Counts the items that are finished from now on, by the lines that are appended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.items = 0
        self.read = {path: path.stat().st_size for path in folder.glob("*.jsonl")}

    def count(self) -> int:
        """Return the items finished since this object was made."""
        for path in self.folder.glob("*.jsonl"):
            with path.open("rb") as file:
                file.seek(self.read.get(path, 0))
                lines, newline, _ = file.read().rpartition(b"\n")
            self.read[path] = self.read.get(path, 0) + len(lines) + len(newline)
            self.items += sum(line.startswith(RECORD, CHECKSUM) for line in lines.split(b"\n"))
        return self.items
