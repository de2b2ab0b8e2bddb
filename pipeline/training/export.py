"""A checkpoint's export, compared with it on positions of a dataset, and in 8-bit integers scaled on others."""

from pathlib import Path
from typing import Any

from engine.progress import Progress, silent
from pipeline.dataset.batches import HUMAN_COLUMNS, Batches
from pipeline.dataset.files.columns import EARLIER_MOVES
from pipeline.training.train import has

COMPARED = 1000
"""Positions on which an exported network must answer as its checkpoint does."""
CALIBRATED = 256
"""Positions by which the layers of a network in integers are scaled."""


def export_checkpoint(
    checkpoint: Path,
    out: Path | None = None,
    *,
    positions: Path | None = None,
    int8: bool = False,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Export a checkpoint to `out`, or to model.onnx beside its card, and return what `model.inference.export.export` says.

    It is compared on a dataset's test positions (train's where it has none), and scaled on those of train; without a dataset
    positions of random games stand for both. Raises ExportError, CheckpointError, DatasetError.
    """
    from model.data.playouts import playout_rows
    from model.inference.export import export

    calibration = None
    if positions is None:
        rows = playout_rows(COMPARED)
        if int8:
            calibration = playout_rows(CALIBRATED, seed=1)
    else:
        split = "test" if has([positions], "test") else "train"
        rows = next(_batches(positions, split, COMPARED).sample(COMPARED))
        if int8:  # of the first row group of the shuffle: to draw from all would read all
            calibration = next(_batches(positions, "train", CALIBRATED).from_step(0))
    return export(checkpoint, out, rows, calibration=calibration, progress=progress)


def _batches(positions: Path, split: str, count: int) -> Batches:
    """Open a split with all columns that networks read."""
    return Batches([positions], split, batch_size=count, columns=(*HUMAN_COLUMNS, *EARLIER_MOVES), block_rows=1)
