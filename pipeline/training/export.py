"""Export a checkpoint to ONNX; check and calibrate the export on positions of a dataset."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.progress import Progress, silent
from pipeline.dataset.batches import HUMAN_COLUMNS, Batches
from pipeline.dataset.dataset import Dataset
from pipeline.dataset.files.columns import EARLIER_MOVES

LOG = logging.getLogger(__name__)

COMPARED_POSITIONS = 1000
"""Positions on which an export is compared with its checkpoint."""
CALIBRATION_POSITIONS = 256
"""Positions that set the scales of an 8-bit export."""


def export_checkpoint(
    checkpoint: Path,
    out: Path | None = None,
    *,
    positions: Path | None = None,
    int8: bool = False,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Export a checkpoint to `out`, by default model.onnx beside its card; return the result.

    The export is compared with the checkpoint on the dataset's test positions (its train positions
    if it has no test split). An 8-bit export is calibrated on train positions. Without a dataset,
    positions of random games are used. Raises ExportError, CheckpointError, DatasetError.
    """
    from model.data.playouts import playout_rows
    from model.inference.export import export

    if positions is None:
        rows = playout_rows(COMPARED_POSITIONS)
        calibration = playout_rows(CALIBRATION_POSITIONS, seed=1)
    else:
        dataset = Dataset.open(positions)
        split = "test" if dataset.has_rows("test") else "train"
        rows = next(_batches(dataset, split, COMPARED_POSITIONS).sample(COMPARED_POSITIONS))
        calibration = {}
        if int8:  # read the first shuffled row group: a random sample would read the whole split
            calibration = next(_batches(dataset, "train", CALIBRATION_POSITIONS).from_step(0))
    calibrated = calibration if int8 else None
    return export(checkpoint, out, rows, calibration=calibrated, progress=progress)


def export_once(checkpoint: Path, human: Sequence[Path], progress: Progress) -> None:
    """Export a checkpoint unless it already has an export.

    The export is 8-bit, or float32 if 8 bits change the network's outputs too much. Raises the
    errors of `export_checkpoint`.
    """
    from model.inference.export import ExportError
    from model.inference.onnx_evaluator import find_export

    if find_export(checkpoint) is not None:
        return
    positions = human[0] if human else None
    try:
        export_checkpoint(checkpoint, positions=positions, int8=True, progress=progress)
    except ExportError as error:
        LOG.warning("%s; exporting in float32 instead", error)
        export_checkpoint(checkpoint, positions=positions, progress=progress)


def _batches(dataset: Dataset, split: str, count: int) -> Batches:
    columns = (*HUMAN_COLUMNS, *EARLIER_MOVES)
    return Batches([dataset], split, batch_size=count, columns=columns, block_rows=1)
