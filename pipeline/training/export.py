"""Export a checkpoint to ONNX; check and calibrate the export on positions of a dataset."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.progress import Progress, silent
from pipeline.dataset.batches import HUMAN_COLUMNS, Batches
from pipeline.dataset.dataset import Dataset
from pipeline.dataset.files.columns import EARLIER_MOVES

LOG = logging.getLogger(__name__)

COMPARED_POSITIONS = 1000
"""Number of positions on which an export is compared with its checkpoint."""
CALIBRATION_POSITIONS = 256
"""Number of positions on which the scales of an 8-bit export are calibrated."""


def export_checkpoint(
    checkpoint: Path,
    out: Path | None = None,
    *,
    positions: Path | None = None,
    int8: bool = False,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Export a checkpoint to `out` (default: model.onnx beside its card); return the result.

    The export is compared with the checkpoint on test positions of the dataset `positions`, or on
    train positions if it has no test split. An 8-bit export is calibrated on train positions.
    Without a dataset, positions of random games are used. Raises ExportError, CheckpointError,
    DatasetError.
    """
    from model.data.playouts import playout_rows
    from model.inference.export import export

    calibration: Mapping[str, Any] | None = None
    if positions is None:
        compared = playout_rows(COMPARED_POSITIONS)
        if int8:
            calibration = playout_rows(CALIBRATION_POSITIONS, seed=1)
    else:
        dataset = Dataset.open(positions)
        split = "test" if dataset.has_rows("test") else "train"
        batches = _open_batches(dataset, split, COMPARED_POSITIONS)
        compared = next(batches.sample(COMPARED_POSITIONS))
        if int8:  # the first shuffled row group, because a random sample reads the whole split
            calibration = next(_open_batches(dataset, "train", CALIBRATION_POSITIONS).from_step(0))
    return export(checkpoint, out, compared, calibration=calibration, progress=progress)


def export_once(checkpoint: Path, human: Sequence[Path], progress: Progress) -> None:
    """Export a checkpoint to 8 bits, unless it already has an export.

    If 8 bits change the network's outputs too much, it is exported in float32. The first of the
    datasets `human` provides the positions. Raises the errors of `export_checkpoint`.
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


def _open_batches(dataset: Dataset, split: str, count: int) -> Batches:
    columns = (*HUMAN_COLUMNS, *EARLIER_MOVES)
    return Batches([dataset], split, batch_size=count, columns=columns, block_rows=1)
