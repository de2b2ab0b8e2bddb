"""The metrics for TensorBoard, beside metrics.jsonl: the same figures, by step."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.errors import UserError

FOLDER = "tensorboard"


class TensorBoardError(UserError):
    """What writes TensorBoard's files is not installed."""


class TensorBoardLog:
    """An open log in a checkpoint's folder; what an earlier, killed run logged beyond `step` is hidden."""

    def __init__(self, directory: Path, step: int) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError as error:
            raise TensorBoardError(
                "tensorboard was asked for, and tensorboardX is not installed: pip install 'fianchetto[tensorboard]'"
            ) from error
        self.writer = SummaryWriter(str(directory / FOLDER), purge_step=step + 1 if step else None, flush_secs=10)

    def write(self, entry: Mapping[str, Any]) -> None:
        """Add the figures of one line of metrics."""
        for name, value in entry.items():
            if name != "step":
                group = "validation/" if name.startswith("validation_") else "training/"
                self.writer.add_scalar(group + name.removeprefix("validation_"), value, entry["step"])

    def close(self) -> None:
        """Put everything on the disk."""
        self.writer.close()
