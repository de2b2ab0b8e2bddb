"""A checkpoint as an ONNX file: from packed planes to logits by the mover's labels, so that who runs it needs no torch.

The graph is the whole evaluator in float32: unpacking, the view, the network with its averaged weights, the labels, win,
draw and loss. Its batch is dynamic. A view of attacked squares has one more input, `attacks`. A network that reads move
features has two more, `moves` and `facts`, which `engine.evaluation.move_features.legal_move_features` counts; how many moves
there are is dynamic too. A file is published only when onnxruntime answers on given positions as torch does: to rounding in
float32, and nearly so where convolutions are in 8-bit integers (model.inference.quantization).

Axes: B batch, L label (4096).
"""

import importlib.util
import io
import json
import logging
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from engine.encoding.planes import ENCODING_VERSION, legal_mask, moves_hash
from engine.encoding.views import view
from engine.errors import UserError
from engine.evaluation.move_features import FEATURES, FEATURES_VERSION
from engine.progress import Progress, Tick, silent
from engine.temporaries import name_path
from model.card import ONNX
from model.checkpoint import load, save_export, write_atomically
from model.data.inputs import Batch, column_defaults, network_input
from model.data.outputs import marro_logits
from model.inference.evaluator import NetworkEvaluator
from model.inference.onnx_evaluator import METADATA, OnnxEvaluator
from model.inference.quantization import quantize
from model.network.blocks import Exact
from model.network.network import Network
from model.training.objective.losses import VALUE_FORMS

OPSET = 18
UINT64 = 13  # onnx.TensorProto.UINT64
TALKING = ("torch.onnx", "onnx_ir")
"""Loggers of the exporter: one misses torchvision, which nobody needs, the other guesses the type of an empty list."""
TOLERANCE = 1e-3
"""Largest difference that is published, of a legal move's log-probability in nats and of a chance of win, draw or loss."""
INT8_DIVERGENCE, INT8_VALUE = 0.02, 0.03
"""Of integers: largest mean divergence of the policies in nats, and root mean square of the expected scores' differences."""


class ExportError(UserError):
    """What exporting needs is not there, or the exported network answers otherwise than the checkpoint."""


class _Whole(nn.Module):
    """A network from bytes to what an evaluator gives."""

    def __init__(self, network: Network, names: tuple[str, ...]) -> None:
        super().__init__()
        self.network, self.names = network, names

    def forward(self, planes: Tensor, *columns: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits `[B, L]` and win, draw, loss `[B, 3]` for planes uint8 `[B, 77, 8]` and the columns in turn.

        Last are `moves` int64 `[M]` and `facts` uint8 `[M, F]`, where the network reads them.
        """
        preset = self.network.preset
        read = {"planes": planes, **dict(zip(self.names, columns, strict=True))}
        policy, value_BV, *_ = self.network(network_input(preset, read, torch.float32))
        return marro_logits(preset, policy, planes), VALUE_FORMS[preset.value].wdl(value_BV)


def _shifts() -> dict[Any, Any]:
    """Translate shifts, which torch's exporter does not know: ONNX has them for unsigned integers, as ours all are."""
    import onnxscript

    op: Any = onnxscript.opset18

    def shift(direction: str) -> Any:
        def translate(word: Any, by: Any) -> Any:
            unsigned = op.Cast(word, to=UINT64)
            return op.CastLike(op.BitShift(unsigned, op.Cast(by, to=UINT64), direction=direction), word)

        return translate

    return {
        torch.ops.aten.__rshift__.Tensor: shift("RIGHT"),
        torch.ops.aten.bitwise_right_shift.Tensor: shift("RIGHT"),
        torch.ops.aten.bitwise_left_shift.Tensor: shift("LEFT"),
    }


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep to itself what torch's exporter says of its own workings: nobody can act on it, and what it makes is compared."""
    loggers = [logging.getLogger(name) for name in TALKING]
    levels = [logger.level for logger in loggers]
    # onnxscript 0.6 prints how many of its rules applied, into what may be a command's JSON
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.filterwarnings("ignore", module=r"(torch|onnxscript|onnx_ir|copyreg)\b")
        try:
            for logger in loggers:
                logger.setLevel(logging.ERROR)
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def _graph(network: Network, names: tuple[str, ...], card: Mapping[str, Any], path: Path) -> None:
    """Write a network as an ONNX file."""
    import onnx

    rows = 2  # a batch of one would be taken for a constant
    shapes = {"attacks": (rows, 12, 8), "facts": (5, len(FEATURES)), "moves": (5,)}
    packed = ("attacks", "facts")
    examples = [torch.zeros(rows, 77, 8, dtype=torch.uint8)]
    examples += [torch.zeros(shapes.get(n, (rows,)), dtype=torch.uint8 if n in packed else torch.int64) for n in names]
    whole = _Whole(network, names).eval()
    whole(*examples)  # fills the caches of tables with real tensors, not with those of the tracing
    batch, moves = torch.export.Dim("batch", min=1), torch.export.Dim("moves", min=1)
    first = [{0: moves if name in ("moves", "facts") else batch} for name in names]
    with _quiet(), torch.inference_mode(False):
        program = torch.onnx.export(
            whole,
            tuple(examples),
            dynamo=True,
            dynamic_shapes={"planes": {0: batch}} | ({"columns": tuple(first)} if names else {}),
            input_names=["planes", *names],
            output_names=["logits", "wdl"],
            opset_version=OPSET,
            verbose=False,
            custom_translation_table=_shifts(),
        )
    assert program is not None
    model = program.model_proto
    onnx.helper.set_model_props(model, {METADATA: json.dumps(card)})
    with name_path(path):
        path.write_bytes(model.SerializeToString())


def export(
    directory: Path,
    out: Path | None,
    rows: Batch,
    *,
    calibration: Batch | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Export a checkpoint to `out` (or model.onnx beside its card) and return what was written and how far it differs.

    `rows` are the positions to compare on: `planes`, and columns for networks that read them. With `calibration`, rows of
    the same kind, convolutions are in 8-bit integers that are scaled on these. Raises ExportError when the answers differ by
    more than TOLERANCE, or those of integers by more than INT8_DIVERGENCE or INT8_VALUE (nothing is written then), or a
    package is missing; CheckpointError.
    """
    for package in ("onnx", "onnxscript", "onnxruntime"):
        if importlib.util.find_spec(package) is None:
            raise ExportError(f"{package} is not installed: pip install 'fianchetto[onnx]'")
    network, found = load(directory)
    names, facts = tuple(column_defaults(network.preset)), ("moves", "facts") if network.preset.facts_width else ()
    attacks = ("attacks",) if view(network.preset.view).attacks else ()
    card = {
        "preset": found["preset"],
        "step": found["step"],
        "encoding_version": ENCODING_VERSION,
        "moves_hash": moves_hash(),
        "weights_sha256": found["files"]["weights"]["sha256"],
        "columns": column_defaults(network.preset),
        "facts_version": FEATURES_VERSION if facts else 0,
        "arithmetic": "float32" if calibration is None else "int8",
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ONNX
        progress(Tick(0, 1, "graph traced"))  # most of the time, and torch says nothing of how far it is
        _graph(network, (*names, *attacks, *facts), card, path)
        progress(Tick(1, 1, "graph traced"))
        if calibration is not None:
            progress(Tick(0, 1, "layers scaled"))
            path = _in_integers(network, path, calibration)
            progress(Tick(1, 1, "layers scaled"))
        progress(Tick(0, len(rows["planes"]), "positions compared"))
        reference = NetworkEvaluator(network, device="cpu", amp="off")
        differences = _differences(OnnxEvaluator(path), reference, rows)
        progress(Tick(len(rows["planes"]), len(rows["planes"]), "positions compared"))
        _check(differences, directory, integers=calibration is not None)
        data = path.read_bytes()
    if out is None or out.absolute() == (directory / ONNX).absolute():
        out = directory / ONNX
        save_export(directory, card["weights_sha256"], data)
    else:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, data)
    said = {"out": str(out), "bytes": len(data), "arithmetic": card["arithmetic"], "positions": len(rows["planes"])}
    return said | differences


def _in_integers(network: Network, path: Path, calibration: Batch) -> Path:
    """Write the network in `path` with convolutions in integers beside it, and return where.

    Layers that are exact stay so, and the first convolution, whose integers made half of the expected score's error
    (docs/log.md, "The longest run").
    """
    evaluator, out = OnnxEvaluator(path), path.with_suffix(".int8.onnx")
    exact = {f"network.{name}.layer.weight" for name, layer in network.named_modules() if isinstance(layer, Exact)}
    exact |= {f"network.{name}.0.weight" for name in ("stem", "value_stem")}
    try:
        quantize(path, out, lambda rows: evaluator.inputs(rows["planes"], rows), calibration, exact)
    except (UserError, OSError, MemoryError):  # a full disk or memory is no fault of the integers
        raise
    except Exception as error:  # onnxruntime's and onnx's own are of many kinds
        raise ExportError(
            f"onnxruntime cannot write this network in 8-bit integers ({type(error).__name__}: {error}): export it without "
            "--int8"
        ) from error
    return out


def _differences(one: OnnxEvaluator, other: NetworkEvaluator, rows: Batch) -> dict[str, float]:
    """Return how far the answers of `one` are from those of `other`, the largest and in the mean.

    Policies are compared by legal moves' log-probabilities in nats and by the Kullback-Leibler divergence from `other`'s;
    values by the chances of win, draw and loss, and by the root mean square of the expected scores' differences.
    """
    legal_BL = legal_mask(rows["planes"])
    answers = [evaluate(rows["planes"], rows) for evaluate in (one, other)]
    mine_BL, wanted_BL = (_log_probabilities(logits_BL, legal_BL) for logits_BL, _ in answers)
    apart_BL = np.where(legal_BL, wanted_BL - mine_BL, 0.0)
    score_B, wanted_B = ((wdl_B3[:, 0] - wdl_B3[:, 2]) / 2 for _, wdl_B3 in answers)
    return {
        "largest_policy_difference": float(np.abs(apart_BL).max(initial=0.0)),
        "largest_value_difference": float(np.abs(answers[0][1] - answers[1][1]).max(initial=0.0)),
        "policy_divergence": float((np.exp(wanted_BL) * apart_BL).sum() / max(len(legal_BL), 1)),
        "score_difference": float(np.sqrt(np.square(score_B - wanted_B).sum() / max(len(score_B), 1))),
    }


def _check(differences: Mapping[str, float], directory: Path, *, integers: bool) -> None:
    """Raise ExportError for answers that are too far from the checkpoint's."""
    if not integers:
        worst = np.max([differences["largest_policy_difference"], differences["largest_value_difference"]])  # NaN stays
        if not worst <= TOLERANCE:
            raise ExportError(f"the exported network differs from {directory} by {worst:.2g}, more than {TOLERANCE}")
        return
    policy, score = differences["policy_divergence"], differences["score_difference"]
    if not (policy <= INT8_DIVERGENCE and score <= INT8_VALUE):
        raise ExportError(
            f"{directory} in 8-bit integers: the policy is off by {policy:.2g} nats (at most {INT8_DIVERGENCE}), the expected "
            f"score by {score:.2g} (at most {INT8_VALUE}): export it without --int8, or give other --positions"
        )


def _log_probabilities(logits_BL: NDArray[np.float32], legal_BL: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the log-probabilities of legal moves, `[B, L]`; of others, and where no move is legal, something."""
    masked_BL = np.where(legal_BL, logits_BL.astype(np.float64), -1e30)
    top_B1 = masked_BL.max(1, keepdims=True)
    logs_BL: NDArray[np.float64] = masked_BL - top_B1 - np.log(np.exp(masked_BL - top_B1).sum(1, keepdims=True))
    return logs_BL
