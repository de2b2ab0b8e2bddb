"""An exported network with convolutions in 8-bit integers: more than twice the evaluations/s, nearly the same answers.

Post-training static quantization (Jacob et al. 2018, arXiv:1712.05877) by onnxruntime: each layer's activations are scaled by
what some positions show of them, weights channel by channel. Weights have 7 bits: a processor without VNNI adds two
products in 16 bits, which full weights would overflow.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.data.inputs import Batch

AT_ONCE = 64
"""Rows of one batch of those that layers are scaled on."""


def quantize(path: Path, out: Path, inputs: Callable[[Batch], dict[str, NDArray[Any]]], rows: Batch) -> None:
    """Write the network in `path` with its convolutions in integers to `out`, scaled on `rows`.

    `inputs` makes of rows what the graph is given. The metadata are kept.
    """
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        """What onnxruntime asks for batch after batch."""

        def __init__(self) -> None:
            self.batches = _batches(rows)

        def get_next(self) -> dict[str, NDArray[Any]] | None:
            """Return the inputs of the next batch, None behind the last."""
            batch = next(self.batches, None)
            return None if batch is None else inputs(batch)

    prepared = out.with_suffix(".prepared.onnx")
    with _quiet():
        quant_pre_process(str(path), str(prepared), skip_symbolic_shape=True)
        quantize_static(
            str(prepared),
            str(out),
            Reader(),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=["Conv"],
            per_channel=True,
            reduce_range=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )
    prepared.unlink()


def _batches(rows: Batch) -> Iterator[Batch]:
    for start in range(0, len(rows["planes"]), AT_ONCE):
        yield {name: np.asarray(column)[start : start + AT_ONCE] for name, column in rows.items()}


@contextmanager
def _quiet() -> Iterator[None]:
    """Leave out what onnxruntime recommends while it works: it is done here already."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
