"""The journal of searches under way: what is finished, at once, in a file of each process that works.

.journal/00000.jsonl ...   lines {"record", "thoughts"} and more, each of a numbered item: a game (records.py), or a block of
                           searched positions (pipeline/reanalyse); lines {"work"}, what the process has done so far

A process that is killed loses no line that it has written, since the system has it; fsync, a few seconds apart, is for the
power. Each process, each time, begins a file of its own, so a line that was cut short is the last of its file: it is
counted, left out, and its item done again. An item that stands twice is the same item.
"""

import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.temporaries import name_path

FOLDER = ".journal"
EVALUATIONS, PREFIX = re.compile(rb'"evaluations":(\d+)'), 200
"""What a record says of its evaluations, and the bytes of a line that it stands in."""
SOONEST, LATEST = 1.0, 5.0
"""Seconds between two fsyncs at least, unless the disk is slow, and at most."""
PATIENCE = 50.0
"""An fsync that took long waits this many times as long for the next: 2 % of the time."""


class Journal:
    """One process's file."""

    def __init__(self, folder: Path) -> None:
        self.file = _new_file(folder)
        self.synced, self.wait = time.monotonic(), SOONEST
        self.waiting = False

    def add(self, entry: Mapping[str, Any]) -> None:
        """Append a line and hand it to the system."""
        with name_path(Path(self.file.name)):
            self.file.write(json.dumps(entry, separators=(",", ":"), allow_nan=False).encode() + b"\n")
            self.file.flush()
        self.waiting = True

    @property
    def due(self) -> bool:
        """Return whether something waits for a `sync`, and it is time."""
        return self.waiting and time.monotonic() - self.synced >= self.wait

    def sync(self, work: Mapping[str, Any]) -> None:
        """Append what the process has done since it began, and put everything on the disk."""
        self.add({"work": work})
        began = time.monotonic()
        os.fsync(self.file.fileno())
        self.synced, self.waiting = time.monotonic(), False
        self.wait = min(max(SOONEST, PATIENCE * (self.synced - began)), LATEST)

    def close(self) -> None:
        """Close the file."""
        self.file.close()


def _new_file(folder: Path) -> Any:
    """Open the next file that nobody has."""
    number = len(list(folder.glob("*.jsonl")))
    while True:
        try:
            return (folder / f"{number:05d}.jsonl").open("xb")
        except FileExistsError:
            number += 1


@dataclass(frozen=True, slots=True)
class Place:
    """Where an item's line lies."""

    path: Path
    offset: int
    length: int

    def read(self) -> dict[str, Any]:
        """Read the line."""
        with self.path.open("rb") as file:
            file.seek(self.offset)
            entry: dict[str, Any] = json.loads(file.read(self.length))
        return entry


@dataclass(slots=True)
class Journals:
    """What all files hold."""

    places: dict[int, Place] = field(default_factory=dict)
    """Finished items by number."""
    work: list[dict[str, Any]] = field(default_factory=list)
    """What each process had done by its last word."""
    damaged: int = 0
    """Lines that cannot be read."""


def read_journals(folder: Path) -> Journals:
    """Find every finished item."""
    found = Journals()
    for path in sorted(folder.glob("*.jsonl")):
        work = None
        offset = 0
        with path.open("rb") as file:
            for line in file:
                entry = _entry(line)
                if entry is None:
                    found.damaged += 1
                elif "work" in entry:
                    work = entry["work"]
                else:
                    found.places.setdefault(entry["record"]["number"], Place(path, offset, len(line)))
                offset += len(line)
        if work is not None:
            found.work.append(work)
    return found


def _entry(line: bytes) -> dict[str, Any] | None:
    """Read a line; None for one that is none."""
    if not line.endswith(b"\n"):
        return None
    try:
        entry = json.loads(line)
        whole = isinstance(entry["work"], dict) if "work" in entry else isinstance(entry["record"]["number"], int)
        return entry if whole and ("work" in entry or "thoughts" in entry) else None
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


class Watch:
    """Counts the items that are finished, and the evaluations that their records speak of, by what is appended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.items = self.evaluations = 0
        self.read = {path: path.stat().st_size for path in folder.glob("*.jsonl")}

    def look(self) -> int:
        """Return the items finished since this began to watch."""
        for path in self.folder.glob("*.jsonl"):
            with path.open("rb") as file:
                file.seek(self.read.get(path, 0))
                whole, newline, _ = file.read().rpartition(b"\n")
            self.read[path] = self.read.get(path, 0) + len(whole) + len(newline)
            for line in whole.split(b"\n"):
                if line.startswith(b'{"record"'):
                    self.items += 1
                    told = EVALUATIONS.search(line, 0, PREFIX)
                    self.evaluations += int(told[1]) if told is not None else 0
        return self.items
