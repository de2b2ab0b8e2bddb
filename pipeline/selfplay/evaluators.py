"""Evaluators of self-play: which one an explorer needs, how it is timed, and how a checkpoint is identified."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.evaluation.evaluator import Evaluator
from engine.evaluation.handwritten import evaluate
from pipeline.selfplay.config import ExploreConfig

COMPILED = "compiled"
"""The device of the hand-written evaluator."""

ONNX = "onnx"
"""The device of a network that onnxruntime runs, from the file beside the checkpoint's card."""


class TimedEvaluator:
    """An evaluator that counts its rows and batches, and the seconds that they take."""

    def __init__(self, evaluator: Evaluator) -> None:
        self.evaluator = evaluator
        self.seconds, self.rows, self.batches = 0.0, 0, 0

    def __call__(self, planes_BP: NDArray[np.uint64]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Evaluate a batch."""
        began = time.perf_counter()
        answers = self.evaluator(planes_BP)
        self.seconds += time.perf_counter() - began
        self.rows += len(planes_BP)
        self.batches += 1
        return answers


def open_evaluator(config: ExploreConfig, checkpoint: Path | None, owner: int | None) -> tuple[Evaluator, str]:
    """Return the evaluator of a configuration and its device, with its arithmetic, for a job of the process `owner`."""
    if not config.uses_network:
        return evaluate, COMPILED
    assert checkpoint is not None, "a network needs a checkpoint"
    if config.device == ONNX:
        from model.inference.onnx_evaluator import open_export

        graph = open_export(checkpoint)
        return graph, f"cpu onnxruntime {graph.card.get('arithmetic', 'float32')}"
    import torch

    from model.inference.evaluator import evaluator

    if os.getpid() != owner:
        torch.set_num_threads(1)
    network = evaluator(checkpoint, device=config.device)
    return network, f"{network.device} {str(network.dtype).removeprefix('torch.')}"


def checkpoint_identity(checkpoint: Path, card: Mapping[str, Any], device: str) -> dict[str, Any]:
    """Return what identifies a checkpoint; raises OnnxError where the device is ONNX and it has no valid export."""
    identity = {
        "weights_sha256": card["files"]["weights"]["sha256"],
        "preset": card["preset"]["name"],
        "step": card["step"],
    }
    if device == ONNX:
        from model.inference.onnx_evaluator import open_export

        # opened here, so that a damaged file is reported once, and not by every process
        identity["onnx_sha256"] = open_export(checkpoint).sha256
    return identity
