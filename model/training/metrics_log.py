"""metrics.jsonl: one JSON object per line, appended during training and consistent with the last save."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.json_files import parse_json
from model.checkpoint import CheckpointError, write_atomically

NAME = "metrics.jsonl"


def read_metrics(directory: Path) -> list[dict[str, Any]]:
    """Return a run's metrics without a truncated last line and lines that the trainer did not write."""
    try:
        text = (directory / NAME).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(f"{directory / NAME} cannot be read: {error.strerror}") from error
    found = []
    for line in text.splitlines():
        try:
            entry = parse_json(line)
        except ValueError:
            continue
        if _figures(entry):
            found.append(entry)
    return found


def _figures(entry: object) -> bool:
    """Return whether a line is an object of numbers, as the trainer writes it."""
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("step"), int)
        and all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in entry.values())
    )


class MetricsLog:
    """The metrics file of a run at `step`; lines after it, of lost work, are removed first."""

    def __init__(self, directory: Path, step: int) -> None:
        self.path = directory / NAME
        kept = [entry for entry in read_metrics(directory) if entry["step"] <= step] if step else []
        write_atomically(self.path, "".join(json.dumps(entry) + "\n" for entry in kept).encode())

    def write(self, entry: Mapping[str, Any]) -> None:
        """Append one line."""
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
        except OSError as error:
            raise CheckpointError(f"{self.path} cannot be written: {error.strerror}") from error

    def sync(self) -> None:
        """Flush the file to the disk."""
        try:
            with self.path.open("rb") as file:
                os.fsync(file.fileno())
        except OSError as error:
            raise CheckpointError(f"{self.path} cannot be written: {error.strerror}") from error
