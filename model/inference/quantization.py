"""Quantize convolutions and attention's matrices to 8-bit integers, for more speed.

This is post-training static quantization (Jacob et al. 2018, arXiv:1712.05877) by onnxruntime. The
scales of activations are calibrated on sample positions; weights are scaled per channel. Weights
have 7 bits, because processors without VNNI add two products in 16 bits, and 8-bit weights would
overflow.
"""

import io
import logging
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.data.rows import Batch

CALIBRATION_BATCH = 64
"""Rows per calibration batch."""


def quantize(
    path: Path,
    out: Path,
    encode_inputs: Callable[[Batch], dict[str, NDArray[Any]]],
    rows: Batch,
    unquantized: Collection[str],
) -> None:
    """Quantize the network in `path` and write the result to `out`.

    Convolutions are quantized, and products with constant matrices, which only attention has.
    `rows` calibrate the scales of activations; `encode_inputs` converts them to the graph's inputs.
    Layers with weights named in `unquantized` stay in float32.
    """
    import onnx
    from onnxruntime.quantization import (
        CalibrationDataReader,
        CalibrationMethod,
        QuantFormat,
        QuantType,
        quantize_static,
    )

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        """Feed calibration batches to onnxruntime."""

        def __init__(self) -> None:
            self.batches = _divide_rows(rows)

        def get_next(self) -> dict[str, NDArray[Any]] | None:
            """Return the inputs of the next batch, None after the last."""
            batch = next(self.batches, None)
            return None if batch is None else encode_inputs(batch)

    graph = onnx.load(path).graph
    weights = {tensor.name for tensor in graph.initializer} - set(unquantized)
    layers = [node for node in graph.node if node.op_type in ("Conv", "MatMul")]
    quantized = {node.name: node.op_type for node in layers if node.input[1] in weights}
    with quiet(), _calibrate_on_one_thread():
        quantize_static(
            str(path),
            str(out),
            Reader(),
            # with min-max scales, a few extreme rows would double the value's error
            calibrate_method=CalibrationMethod.Percentile,
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=sorted(set(quantized.values())),
            nodes_to_exclude=[node.name for node in layers if node.name not in quantized],
            per_channel=True,
            reduce_range=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )


def _divide_rows(rows: Batch) -> Iterator[Batch]:
    """Yield batches of equal size, which onnxruntime requires; drop the remainder."""
    count = len(rows["planes"])
    size = min(CALIBRATION_BATCH, count)
    for start in range(0, count - size + 1, size):
        yield {name: np.asarray(column)[start : start + size] for name, column in rows.items()}


@contextmanager
def quiet() -> Iterator[None]:
    """Silence torch's exporter and onnxruntime, which would corrupt a command's JSON output."""
    before = logging.root.manager.disable
    logging.disable(max(before, logging.WARNING))
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.filterwarnings("ignore", module=r"(torch|onnxscript|onnx_ir|copyreg)\b")
            yield
    finally:
        logging.disable(before)


@contextmanager
def _calibrate_on_one_thread() -> Iterator[None]:
    """Calibrate on one thread, because several threads race (microsoft/onnxruntime#18048)."""
    import onnxruntime
    from onnxruntime.quantization.calibrate import CalibraterBase

    def create_session(self: Any) -> None:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self.infer_session = onnxruntime.InferenceSession(
            self.augmented_model_path, options, providers=["CPUExecutionProvider"]
        )

    before = CalibraterBase.create_inference_session
    CalibraterBase.create_inference_session = create_session
    try:
        yield
    finally:
        CalibraterBase.create_inference_session = before
