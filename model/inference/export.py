"""Export a checkpoint to ONNX, to run it without torch.

The graph is the whole evaluator in float32, from packed planes to logits by label and to win, draw
and loss. Its inputs depend on the preset (`blank_rows`); the numbers of rows and of legal moves are
dynamic axes. The file is published only if onnxruntime and torch agree on given positions: up to
rounding in float32, and within larger bounds if layers are quantized to 8-bit integers
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
from model.card import ONNX
from model.checkpoint import load, save_export, write_atomically
from model.data.rows import Batch, blank_rows, column_defaults
from model.inference.evaluator import NetworkEvaluator
from model.inference.onnx_evaluator import METADATA, OnnxEvaluator
from model.inference.quantization import quantize, quiet
from model.network.blocks import Float32
from model.network.decoder import merge_promotions
from model.network.network import Network

OPSET = 18
UINT64 = 13  # onnx.TensorProto.UINT64
TOLERANCE = 1e-3
"""Maximum difference in float32: of log-probabilities in nats, and of win, draw or loss."""
INT8_DIVERGENCE, INT8_VALUE = 0.02, 0.03
"""Bounds for 8-bit exports: mean KL divergence of the policies in nats, and root mean square
difference of the expected scores."""


class ExportError(UserError):
    """A package is missing, or the exported network differs from the checkpoint."""


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


def _shifts() -> dict[Any, Any]:
    """Return translations of bit shifts, which torch's exporter lacks.

    ONNX shifts only unsigned integers.
    """
    import onnxscript

    op: Any = onnxscript.opset18

    def make_shift(direction: str) -> Any:
        def translate(word: Any, by: Any) -> Any:
            words, bits = (op.Cast(it, to=UINT64) for it in (word, by))
            return op.CastLike(op.BitShift(words, bits, direction=direction), word)

        return translate

    aten = torch.ops.aten
    return {
        aten.__rshift__.Tensor: make_shift("RIGHT"),
        aten.bitwise_right_shift.Tensor: make_shift("RIGHT"),
        aten.bitwise_left_shift.Tensor: make_shift("LEFT"),
    }


def _write_graph(network: Network, card: Mapping[str, Any], path: Path) -> None:
    import onnx

    # two rows, because the exporter treats sizes of 1 as constants
    examples = blank_rows(network.preset, 2, moves=5)
    whole = _ExportedNetwork(network, tuple(examples)).eval()
    # fill the caches with real tensors: tracing would fill them with its fake tensors
    whole(*examples.values())
    batch, moves = torch.export.Dim("batch", min=1), torch.export.Dim("moves", min=1)
    sizes = tuple({0: moves if name in ("moves", "move_features") else batch} for name in examples)
    with quiet(), torch.inference_mode(False):
        program = torch.onnx.export(
            whole,
            tuple(examples.values()),
            dynamo=True,
            dynamic_shapes={"inputs": sizes},
            input_names=list(examples),
            output_names=["logits", "wdl"],
            opset_version=OPSET,
            verbose=False,
            custom_translation_table=_shifts(),
        )
    assert program is not None
    model = program.model_proto
    for part in (model.graph, *model.graph.node, *model.graph.value_info):
        part.ClearField("metadata_props")  # stack traces with this machine's paths
    onnx.helper.set_model_props(model, {METADATA: json.dumps(card)})
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

    Return the file's size and its differences from torch on `rows`: `planes`, and the columns that
    the network reads. With `calibration`, which has the same columns, layers are quantized to 8-bit
    integers, with scales from these rows. Raises CheckpointError, and ExportError if a
    package is missing or the outputs differ by more than TOLERANCE, or in integers INT8_DIVERGENCE
    and INT8_VALUE. On an error nothing is written.
    """
    for package in ("onnx", "onnxscript"):
        if importlib.util.find_spec(package) is None:
            raise ExportError(f"{package} is not installed: pip install 'fianchetto[onnx]'")
    network, found = load(directory)
    card = {
        "preset": found["preset"],
        "step": found["step"],
        "encoding_version": ENCODING_VERSION,
        "moves_hash": moves_hash(),
        "weights_sha256": found["files"]["weights"]["sha256"],
        "columns": column_defaults(network.preset),
        "move_features_version": MOVE_FEATURES_VERSION if network.preset.move_features_width else 0,
        "arithmetic": "float32" if calibration is None else "int8",
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ONNX
        progress(Tick(0, 1, "graph traced"))  # takes most of the time; torch reports no progress
        _write_graph(network, card, path)
        if calibration is not None:
            progress(Tick(0, 1, "layers scaled"))
            path = _quantize_graph(network, path, calibration)
        count = len(rows["planes"])
        progress(Tick(0, count, "positions compared"))
        reference = NetworkEvaluator(network, device="cpu", amp="off")
        differences = _differences(OnnxEvaluator(path), reference, rows)
        progress(Tick(count, count, "positions compared"))
        _check(differences, directory, integers=calibration is not None)
        data = path.read_bytes()
    if out is None or out.absolute() == (directory / ONNX).absolute():
        out = directory / ONNX
        save_export(directory, card["weights_sha256"], data)
    else:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, data)
    written = {"out": str(out), "bytes": len(data), "arithmetic": card["arithmetic"]}
    return {**written, "positions": count, **differences}


def _quantize_graph(network: Network, path: Path, calibration: Batch) -> Path:
    """Write a copy of the network in `path` with 8-bit layers, and return its path.

    Float32 layers and the first convolution stay in float32. Quantizing the first convolution
    caused half of the error of the expected score.
    """
    evaluator, out = OnnxEvaluator(path), path.with_suffix(".int8.onnx")
    exact = {
        f"network.{name}.layer.weight"
        for name, layer in network.named_modules()
        if isinstance(layer, Float32)
    }
    exact |= {f"network.{name}.0.weight" for name in ("stem", "value_stem")}
    try:
        quantize(path, out, evaluator.inputs, calibration, exact)
    # a full disk or memory is not a failure of quantization
    except (UserError, OSError, MemoryError):
        raise
    except Exception as error:  # onnxruntime and onnx raise many kinds
        raise ExportError(
            f"onnxruntime cannot quantize this network to 8-bit integers ({type(error).__name__}: "
            f"{error}): export it without --int8"
        ) from error
    return out


def _differences(one: OnnxEvaluator, other: NetworkEvaluator, rows: Batch) -> dict[str, float]:
    """Return the differences between the outputs of `one` and `other`.

    Policies are compared by log-probabilities of legal moves and by the mean KL divergence, values
    by their probabilities and by the root mean square difference of the expected scores.
    """
    legal_BL = legal_mask(rows["planes"])
    answers = [evaluate(rows["planes"], rows) for evaluate in (one, other)]
    # -1e30 instead of -inf keeps rows without a legal move finite
    masked = [np.where(legal_BL, logits_BL.astype(np.float64), -1e30) for logits_BL, _ in answers]
    mine_BL, wanted_BL = (
        torch.from_numpy(masked_BL).log_softmax(1).numpy() for masked_BL in masked
    )
    apart_BL = np.where(legal_BL, wanted_BL - mine_BL, 0.0)
    score_B, wanted_B = ((wdl_B3[:, 0] - wdl_B3[:, 2]) / 2 for _, wdl_B3 in answers)
    rows_count = max(len(score_B), 1)
    return {
        "largest_policy_difference": float(np.abs(apart_BL).max(initial=0.0)),
        "largest_value_difference": float(np.abs(answers[0][1] - answers[1][1]).max(initial=0.0)),
        "policy_divergence": float((np.exp(wanted_BL) * apart_BL).sum() / rows_count),
        "score_difference": float(np.sqrt(np.square(score_B - wanted_B).sum() / rows_count)),
    }


def _check(found: Mapping[str, float], directory: Path, *, integers: bool) -> None:
    policy, value = found["largest_policy_difference"], found["largest_value_difference"]
    # not written with `>`, which would let NaN pass
    if not integers and not (policy <= TOLERANCE and value <= TOLERANCE):
        raise ExportError(
            f"the exported network differs from {directory} by {max(policy, value):.2g}, more than "
            f"{TOLERANCE}"
        )
    policy, score = found["policy_divergence"], found["score_difference"]
    if integers and not (policy <= INT8_DIVERGENCE and score <= INT8_VALUE):
        raise ExportError(
            f"{directory} loses too much accuracy in 8-bit integers: its policy differs by "
            f"{policy:.2g} nats (maximum {INT8_DIVERGENCE}) and its expected score by {score:.2g} "
            f"(maximum {INT8_VALUE}); export it without --int8, or try other --positions"
        )
