"""A checkpoint as the evaluator that search, arena and reports call.

Axes: B batch, P plane (77), A label (4096).
"""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from engine.views import view
from model.checkpoint import load
from model.inputs import black, bytes_of, logits_from_view, to_view, unpacked
from model.losses import VALUE_FORMS
from model.network import Network
from model.precision import autocast, device_for, dtype_for

LARGEST_BATCH = 2048
"""Rows that go through the network at once; more are taken in turns, so memory is bounded."""


class NetworkEvaluator:
    """A network called on packed planes."""

    def __init__(self, network: Network, *, device: str = "auto", amp: str = "auto") -> None:
        self.device = device_for(device)
        self.dtype = dtype_for(amp, self.device)
        self.network = network.to(self.device).eval()
        self.view = view(network.preset.view)
        self.form = VALUE_FORMS[network.preset.value]

    def __call__(self, planes_BP: NDArray[np.uint64]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Give logits float32 `[B, 4096]` by the labels of the mover's view, and float32 `[B, 3]` win, draw, loss.

        Illegal labels have logits too. A network whose value is one number v in -1..1 says (1 + v) / 2, 0, (1 - v) / 2.
        """
        parts = [
            self._evaluate(planes_BP[start : start + LARGEST_BATCH])
            for start in range(0, len(planes_BP), LARGEST_BATCH)
        ]
        if not parts:
            return np.empty((0, self.view.labels), np.float32), np.empty((0, 3), np.float32)
        return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])

    @torch.inference_mode()
    def _evaluate(self, planes_BP: NDArray[np.uint64]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        mover_BPY = bytes_of(planes_BP).to(self.device)
        with autocast(self.device, self.dtype):
            logits_BA, value_BV = self.network(unpacked(to_view(self.view, mover_BPY), self.dtype))
        logits_BA = logits_from_view(self.view, black(mover_BPY), logits_BA.float())
        return logits_BA.cpu().numpy(), self.form.wdl(value_BV).cpu().numpy()


def evaluator(directory: Path, *, device: str = "auto", amp: str = "auto") -> NetworkEvaluator:
    """Load a checkpoint as an evaluator, or raise a CheckpointError by name."""
    network, _ = load(directory)
    return NetworkEvaluator(network, device=device, amp=amp)
