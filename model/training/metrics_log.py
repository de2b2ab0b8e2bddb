"""Read, write and plot metrics.jsonl: one JSON object per line, consistent with the last save."""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

from engine.json_files import parse_json
from model.checkpoint import CheckpointError, write_atomically

NAME = "metrics.jsonl"
PANELS = (
    ("policy_loss", "validation_cross_entropy", "policy cross-entropy among legal moves [nats]"),
    ("top1", "validation_top1", "top-1: the human's move is the first choice"),
)


def read_metrics(directory: Path) -> list[dict[str, Any]]:
    """Return a run's metrics; skip truncated and foreign lines."""
    try:
        text = (directory / NAME).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(f"{directory / NAME} cannot be read: {error.strerror}") from error
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

    def __init__(self, directory: Path, step: int, validated_step: int) -> None:
        self.path = directory / NAME
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

    def sync(self) -> None:
        """Flush the file to the disk."""
        try:
            with self.path.open("rb") as file:
                os.fsync(file.fileno())
        except OSError as error:
            raise CheckpointError(f"{self.path} cannot be written: {error.strerror}") from error


def draw_curves(runs: Mapping[str, list[dict[str, Any]]]) -> bytes:
    """Return the curves of runs by label as a PNG: training faint, validation as dots."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # the width that fits Dagster's page
    figure = Figure(figsize=(4.8, 6.8), dpi=80, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    for axes, (training, validation, title) in zip(figure.subplots(2, 1), PANELS, strict=True):
        for number, (label, entries) in enumerate(runs.items()):
            faint: dict[str, Any] = {"color": f"C{number}", "alpha": 0.4, "linewidth": 1}
            axes.plot(*_series(entries, training), **faint)
            dots: dict[str, Any] = {
                "color": f"C{number}",
                "marker": "o",
                "markersize": 3,
                "label": label,
            }
            axes.plot(*_series(entries, validation), **dots)
        axes.set_xlabel("positions seen (faint: training batches)")
        axes.locator_params(axis="x", nbins=5)  # so that long numbers do not touch
        axes.set_title(title, fontsize=9)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    picture = BytesIO()
    canvas.print_png(picture)  # type: ignore[no-untyped-call]
    return picture.getvalue()


def _series(entries: list[dict[str, Any]], name: str) -> tuple[list[float], list[float]]:
    points = [entry for entry in entries if name in entry and "positions" in entry]
    return [entry["positions"] for entry in points], [entry[name] for entry in points]
