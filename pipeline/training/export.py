"""Export a checkpoint, compared and scaled on positions of a dataset."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.progress import Progress, silent
from pipeline.dataset.batches import HUMAN_COLUMNS, Batches
from pipeline.dataset.dataset import Dataset
from pipeline.dataset.files.columns import EARLIER_MOVES

LOG = logging.getLogger(__name__)

COMPARED = 1000
"""Positions on which an export is compared with its checkpoint."""
CALIBRATED = 256
"""Positions on which the layers of a network in integers are scaled."""


def export_checkpoint(
    checkpoint: Path,
    out: Path | None = None,
    *,
    positions: Path | None = None,
    int8: bool = False,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Export a checkpoint to `out`, or to model.onnx beside its card; return the result.

    It is compared on a dataset's test positions (train's where it has none), and scaled on those of
    train; without a dataset, both are positions of random games. Raises ExportError,
    CheckpointError, DatasetError.
    """
    from model.data.playouts import playout_rows
    from model.inference.export import export

    if positions is None:
        rows, calibration = playout_rows(COMPARED), playout_rows(CALIBRATED, seed=1)
    else:
        dataset = Dataset.open(positions)
        split = "test" if dataset.has("test") else "train"
        rows = next(_batches(dataset, split, COMPARED).sample(COMPARED))
        # from the first row group of the shuffle: sampling from all would read all
        calibration = next(_batches(dataset, "train", CALIBRATED).from_step(0)) if int8 else {}
    calibrated = calibration if int8 else None
    return export(checkpoint, out, rows, calibration=calibrated, progress=progress)


def export_once(checkpoint: Path, human: Sequence[Path], progress: Progress) -> None:
    """Export a checkpoint unless it has an export; raises what `export_checkpoint` raises.

    The export is in 8-bit integers, or in float32 if integers change the network's answers too
    much.
    """
    from model.inference.export import ExportError
    from model.inference.onnx_evaluator import find_export

    if find_export(checkpoint) is not None:
        return
    positions = human[0] if human else None
    try:
        export_checkpoint(checkpoint, positions=positions, int8=True, progress=progress)
    except ExportError as error:
        LOG.warning("%s; it is exported in float32", error)
        export_checkpoint(checkpoint, positions=positions, progress=progress)


def _batches(dataset: Dataset, split: str, count: int) -> Batches:
    """Return a split's batches with all columns that a network may read."""
    columns = (*HUMAN_COLUMNS, *EARLIER_MOVES)
    return Batches([dataset], split, batch_size=count, columns=columns, block_rows=1)
