"""Read and write metrics.jsonl: one JSON object per line, consistent with the last save.

The lines can also be sent to TensorBoard, Weights & Biases or MLflow.
"""

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from engine.json_files import parse_json
from model.checkpoint import CheckpointError, write_atomically
from model.training.config import TrainConfigError

METRICS_FILE = "metrics.jsonl"


def read_metrics(directory: Path) -> list[dict[str, Any]]:
    """Return a run's metrics; skip truncated and foreign lines."""
    try:
        text = (directory / METRICS_FILE).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(
            f"{directory / METRICS_FILE} cannot be read: {error.strerror}"
        ) from error
    found = []
    for line in text.splitlines():
        with suppress(ValueError):
            if _is_line(entry := parse_json(line)):
                found.append(entry)
    return found


def _is_line(entry: object) -> bool:
    """Return whether a value looks like a line of the trainer: numbers with a step."""
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("step"), int)
        and all(type(value) in (int, float) for value in entry.values())
    )


class MetricsLog:
    """The metrics file of a run; opening it at `step` drops later lines, which were not saved."""

    def __init__(self, directory: Path, step: int, validated_step: int, log: str = "none") -> None:
        self.path = directory / METRICS_FILE
        self.tracker = None if log == "none" else open_tracker(log, directory, step)
        kept = [
            entry
            for entry in (read_metrics(directory) if step else [])
            if entry["step"] <= (validated_step if "validation_top1" in entry else step)
        ]
        write_atomically(self.path, "".join(json.dumps(entry) + "\n" for entry in kept).encode())

    def write(self, entry: Mapping[str, Any]) -> None:
        """Append one line."""
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
        except OSError as error:
            raise CheckpointError(f"{self.path} cannot be written: {error.strerror}") from error
        if self.tracker is not None:
            figures = {name: value for name, value in entry.items() if name != "step"}
            self.tracker.write(figures, entry["step"])

    def close(self) -> None:
        """End the tracker's run."""
        if self.tracker is not None:
            self.tracker.close()

    def sync(self) -> None:
        """Flush the file to the disk."""
        try:
            with self.path.open("rb") as file:
                os.fsync(file.fileno())
        except OSError as error:
            raise CheckpointError(f"{self.path} cannot be written: {error.strerror}") from error


class Tracker(NamedTuple):
    """An experiment tracker that receives the lines of metrics."""

    write: Callable[[Mapping[str, float], int], object]
    """Send the figures of a step."""
    close: Callable[[], object]


def require_tracker(log: str) -> None:
    """Raise TrainConfigError if the package of a tracker is not installed."""
    if log != "none" and find_spec(log) is None:
        raise TrainConfigError(f"log={log} needs the package {log}: pip install {log}")


def open_tracker(log: str, directory: Path, step: int) -> Tracker:
    """Begin a run named after the checkpoint's directory, or continue it after `step`."""
    name = directory.resolve().name
    if log == "tensorboard":
        from torch.utils.tensorboard import SummaryWriter

        writer: Any = SummaryWriter(str(directory / "tensorboard"), purge_step=step + 1)

        def add_scalars(figures: Mapping[str, float], at: int) -> None:
            for figure, value in figures.items():
                writer.add_scalar(figure, value, at)

        return Tracker(add_scalars, writer.close)
    package: Any = import_module(log)
    if log == "wandb":
        run = package.init(project="fianchetto", name=name, dir=str(directory))
        return Tracker(lambda figures, at: run.log(dict(figures), step=at), run.finish)
    package.set_experiment("fianchetto")
    package.start_run(run_name=name)
    return Tracker(lambda figures, at: package.log_metrics(dict(figures), step=at), package.end_run)
