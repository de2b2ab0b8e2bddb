"""Export a checkpoint to ONNX, to run it without torch.

The graph is the whole evaluator in float32, from packed planes to logits by label and to win, draw
and loss. Its inputs depend on the preset (`blank_rows`); the numbers of rows and of legal moves are
dynamic axes. The file is published only if onnxruntime and torch agree on given positions: up to
rounding in float32, or within wider bounds if layers are quantized to 8-bit integers
(model.inference.quantization).

Axes: B batch, L label (4096), M legal move, F feature.
"""

import importlib.util
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from engine.encoding.planes import ENCODING_VERSION, legal_mask, moves_hash
from engine.errors import UserError
from engine.evaluation.move_features import MOVE_FEATURES_VERSION
from engine.progress import Progress, Tick, silent
from engine.temporaries import add_path_to_errors
from model.card import ONNX_FILE
from model.checkpoint import load, save_export, write_atomically
from model.data.rows import Batch, blank_rows, column_defaults
from model.inference.evaluator import NetworkEvaluator
from model.inference.onnx_evaluator import METADATA_KEY, OnnxEvaluator
from model.inference.quantization import quantize, quiet
from model.network.blocks import Float32
from model.network.decoder import merge_promotions
from model.network.network import Network

OPSET = 18
ONNX_UINT64 = 13
"""onnx.TensorProto.UINT64"""
MAX_FLOAT32_DIFFERENCE = 1e-3
"""Bound for float32 exports: difference of log-probabilities in nats, and of win, draw or loss."""
MAX_DIVERGENCE, MAX_SCORE_DIFFERENCE = 0.02, 0.03
"""Bounds for exports in 8-bit integers: mean KL divergence of the policies in nats, and root mean
square difference of the expected scores."""


class ExportError(UserError):
    """The network cannot be exported, or its export differs too much from the checkpoint."""


class _ExportedNetwork(nn.Module):
    """A network with the inputs and outputs of an evaluator."""

    def __init__(self, network: Network, names: tuple[str, ...]) -> None:
        super().__init__()
        self.network, self.names = network, names

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits `[B, L]` and win, draw, loss `[B, 3]`, for inputs ordered as `names`."""
        rows = dict(zip(self.names, inputs, strict=True))
        prediction = self.network(rows)
        return merge_promotions(prediction.logits, rows["planes"]), prediction.wdl.exp()


def _make_shift_translations() -> dict[Any, Any]:
    """Return ONNX translations of bit shifts, which torch's exporter lacks."""
    import onnxscript

    op: Any = onnxscript.opset18

    def make_translation(direction: str) -> Any:
        def translate(word: Any, by: Any) -> Any:
            # ONNX shifts only unsigned integers
            words, bits = (op.Cast(operand, to=ONNX_UINT64) for operand in (word, by))
            return op.CastLike(op.BitShift(words, bits, direction=direction), word)

        return translate

    aten = torch.ops.aten
    return {
        aten.__rshift__.Tensor: make_translation("RIGHT"),
        aten.bitwise_right_shift.Tensor: make_translation("RIGHT"),
        aten.bitwise_left_shift.Tensor: make_translation("LEFT"),
    }


def _write_graph(network: Network, metadata: Mapping[str, Any], path: Path) -> None:
    import onnx

    # two rows, because the exporter treats sizes of 1 as constants
    examples = blank_rows(network.preset, 2, moves=5)
    exported = _ExportedNetwork(network, tuple(examples)).eval()
    # fill the network's caches with real tensors: tracing would fill them with its fake tensors
    exported(*examples.values())
    batch, moves = torch.export.Dim("batch", min=1), torch.export.Dim("moves", min=1)
    sizes = tuple({0: moves if name in ("moves", "move_features") else batch} for name in examples)
    with quiet(), torch.inference_mode(False):
        program = torch.onnx.export(
            exported,
            tuple(examples.values()),
            dynamo=True,
            dynamic_shapes={"inputs": sizes},
            input_names=list(examples),
            output_names=["logits", "wdl"],
            opset_version=OPSET,
            verbose=False,
            custom_translation_table=_make_shift_translations(),
        )
    assert program is not None
    model = program.model_proto
    for item in (model.graph, *model.graph.node, *model.graph.value_info):
        item.ClearField("metadata_props")  # stack traces with this machine's paths
    onnx.helper.set_model_props(model, {METADATA_KEY: json.dumps(metadata)})
    with add_path_to_errors(path):
        path.write_bytes(model.SerializeToString())


def export(
    directory: Path,
    out: Path | None,
    rows: Batch,
    *,
    calibration: Batch | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Export a checkpoint to `out`, by default model.onnx beside its card.

    Return the file's size and the differences of its outputs from torch's on `rows`: `planes`, and
    the columns that the network reads. With `calibration`, which are other rows, layers are
    quantized to 8-bit integers with scales from these rows. On an error, nothing is written. Raises
    CheckpointError, and ExportError if a package is missing or the outputs differ too much.
    """
    for package in ("onnx", "onnxscript"):
        if importlib.util.find_spec(package) is None:
            raise ExportError(f"{package} is not installed: pip install 'fianchetto[onnx]'")
    network, card = load(directory)
    metadata = {
        "preset": card["preset"],
        "step": card["step"],
        "encoding_version": ENCODING_VERSION,
        "moves_hash": moves_hash(),
        "weights_sha256": card["files"]["weights"]["sha256"],
        "columns": column_defaults(network.preset),
        "move_features_version": MOVE_FEATURES_VERSION if network.preset.move_features_width else 0,
        "arithmetic": "float32" if calibration is None else "int8",
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ONNX_FILE
        progress(Tick(0, 1, "graph traced"))  # takes most of the time; torch reports no progress
        _write_graph(network, metadata, path)
        if calibration is not None:
            progress(Tick(0, 1, "layers quantized"))
            path = _quantize_graph(network, path, calibration)
        count = len(rows["planes"])
        progress(Tick(0, count, "positions compared"))
        reference = NetworkEvaluator(network, device="cpu", amp="off")
        differences = _measure_differences(OnnxEvaluator(path), reference, rows)
        progress(Tick(count, count, "positions compared"))
        _check_differences(differences, directory, is_int8=calibration is not None)
        data = path.read_bytes()
    if out is None or out.absolute() == (directory / ONNX_FILE).absolute():
        out = directory / ONNX_FILE
        save_export(directory, metadata["weights_sha256"], data)
    else:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, data)
    written = {"out": str(out), "bytes": len(data), "arithmetic": metadata["arithmetic"]}
    return {**written, "positions": count, **differences}


def _quantize_graph(network: Network, path: Path, calibration: Batch) -> Path:
    """Write a copy of the network in `path` with 8-bit layers, and return its path.

    The network's Float32 layers and the first convolution are not quantized. Quantizing the first
    convolution caused half of the error of the expected score.
    """
    evaluator, out = OnnxEvaluator(path), path.with_suffix(".int8.onnx")
    unquantized = {
        f"network.{name}.layer.weight"
        for name, layer in network.named_modules()
        if isinstance(layer, Float32)
    }
    unquantized |= {f"network.{name}.0.weight" for name in ("stem", "value_stem")}
    try:
        quantize(path, out, evaluator.encode_inputs, calibration, unquantized)
    # a full disk or memory is not a failure of quantization
    except (UserError, OSError, MemoryError):
        raise
    except Exception as error:  # onnxruntime and onnx raise many types of errors
        raise ExportError(
            f"onnxruntime cannot quantize this network to 8-bit integers ({type(error).__name__}: "
            f"{error}): export it without --int8"
        ) from error
    return out


def _measure_differences(
    exported: OnnxEvaluator, reference: NetworkEvaluator, rows: Batch
) -> dict[str, float]:
    """Return the differences between the outputs of an exported network and the reference.

    Policies are compared by log-probabilities of legal moves and by the mean KL divergence, values
    by their probabilities and by the root mean square difference of the expected scores.
    """
    legal_BL = legal_mask(rows["planes"])
    outputs = [evaluate(rows["planes"], rows) for evaluate in (exported, reference)]
    # -1e30 instead of -inf keeps rows without a legal move finite
    masked = [np.where(legal_BL, logits_BL.astype(np.float64), -1e30) for logits_BL, _ in outputs]
    exported_BL, reference_BL = (
        torch.from_numpy(masked_BL).log_softmax(1).numpy() for masked_BL in masked
    )
    difference_BL = np.where(legal_BL, reference_BL - exported_BL, 0.0)
    exported_B, reference_B = ((wdl_B3[:, 0] - wdl_B3[:, 2]) / 2 for _, wdl_B3 in outputs)
    count = max(len(exported_B), 1)
    return {
        "largest_policy_difference": float(np.abs(difference_BL).max(initial=0.0)),
        "largest_value_difference": float(np.abs(outputs[0][1] - outputs[1][1]).max(initial=0.0)),
        "policy_divergence": float((np.exp(reference_BL) * difference_BL).sum() / count),
        "score_difference": float(np.sqrt(np.square(exported_B - reference_B).sum() / count)),
    }


def _check_differences(differences: Mapping[str, float], directory: Path, *, is_int8: bool) -> None:
    policy = differences["largest_policy_difference"]
    value = differences["largest_value_difference"]
    # not written with `>`, which would let NaN pass
    if not is_int8 and not (policy <= MAX_FLOAT32_DIFFERENCE and value <= MAX_FLOAT32_DIFFERENCE):
        raise ExportError(
            f"the exported network differs from {directory} by {max(policy, value):.2g}, more than "
            f"{MAX_FLOAT32_DIFFERENCE}"
        )
    policy, score = differences["policy_divergence"], differences["score_difference"]
    if is_int8 and not (policy <= MAX_DIVERGENCE and score <= MAX_SCORE_DIFFERENCE):
        raise ExportError(
            f"{directory} loses too much accuracy in 8-bit integers: its policy differs by "
            f"{policy:.2g} nats (maximum {MAX_DIVERGENCE}) and its expected score by {score:.2g} "
            f"(maximum {MAX_SCORE_DIFFERENCE}); export it without --int8, or try other --positions"
        )
