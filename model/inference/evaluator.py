"""A checkpoint as the evaluator that search, arena and reports call.

An evaluator is given planes. What else a network reads is, from the first that knows: `columns` of the call; `known` of the
evaluator (a rating to play at, say); what planes tell (engine/encoding/inferred.py); and else unknown ratings, clocks and last
moves, an earlier history without pieces.

Axes: B batch, P plane (77), L label (4096).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from engine.encoding.inferred import SUPPOSED, inferred
from engine.encoding.planes import LABELS, PIECE_PLANES
from engine.encoding.views import view
from engine.errors import UserError
from model.checkpoint import load
from model.data.inputs import Batch, carry, inputs_of, reads
from model.data.outputs import marro_logits
from model.network.conditioning import CONDITIONS, UNKNOWN
from model.network.network import Network
from model.training.objective.losses import VALUE_FORMS
from model.training.precision import autocast, device_for, dtype_for

LARGEST_BATCH = 2048
"""Rows that go through the network at once; more are taken in turns, so memory is bounded."""


class KnownError(UserError):
    """Something said of the players that a network cannot be told."""


class NetworkEvaluator:
    """A network called on packed planes."""

    def __init__(
        self, network: Network, *, device: str = "auto", amp: str = "auto", known: Mapping[str, int] | None = None
    ) -> None:
        """Put a network on a device; `known` gives ratings or clocks (columns of a shard) for every row it is called on.

        Raises KnownError for a column that this network does not read as a condition.
        """
        self.device = device_for(device)
        self.dtype = dtype_for(amp, self.device)
        self.network = network.to(self.device).eval()
        self.preset = network.preset
        self.known = dict(known or {})
        told = CONDITIONS[self.preset.condition]
        for name in self.known:
            if name not in told:
                can = ", ".join(told) if told else "nothing of the players"
                raise KnownError(f"the network {self.preset.name} cannot be told {name!r}: it reads {can}")

    def __call__(
        self, planes_BP: NDArray[np.uint64], columns: Batch | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Give logits float32 `[B, 4096]` by the labels of the mover's view, and float32 `[B, 3]` win, draw, loss.

        `columns` may be a whole batch of a shard: what the network reads is taken from it. Illegal labels have logits too,
        some minus infinity. A value that is one number v in -1..1 says (1 + v) / 2, 0, (1 - v) / 2; none says a third each.
        """
        rows = self._rows(planes_BP, columns or {})
        parts = [
            self._evaluate({name: column[start : start + LARGEST_BATCH] for name, column in rows.items()})
            for start in range(0, len(planes_BP), LARGEST_BATCH)
        ]
        if not parts:
            return np.empty((0, LABELS), np.float32), np.empty((0, 3), np.float32)
        return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])

    def _rows(self, planes_BP: NDArray[np.uint64], columns: Batch) -> dict[str, NDArray[Any]]:
        """Put together the columns that the network reads."""
        names, rows = reads(self.preset), len(planes_BP)
        out: dict[str, NDArray[Any]] = {"planes": planes_BP}
        if any(name in SUPPOSED and name not in columns for name in names):
            out |= {name: column for name, column in inferred(planes_BP).items() if name in names}
        for name in names:
            if name in columns:
                out[name] = columns[name]
            elif name in UNKNOWN:
                out[name] = np.full(rows, self.known.get(name, UNKNOWN[name]), dtype=np.int64)
            elif name == "history":
                out[name] = np.zeros((rows, view(self.preset.view).history, PIECE_PLANES), dtype=np.uint64)
        return out

    @torch.inference_mode()
    def _evaluate(self, rows: Batch) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        carried = carry(rows, self.preset, self.device)
        with autocast(self.device, self.dtype):
            policy, value_BV, *_ = self.network(inputs_of(self.preset, carried, self.dtype))
        logits_BL = marro_logits(self.preset, policy, carried.columns["planes"])
        wdl_B3 = VALUE_FORMS[self.preset.value].wdl(value_BV)
        return logits_BL.cpu().numpy(), wdl_B3.cpu().numpy()


def evaluator(
    directory: Path, *, device: str = "auto", amp: str = "auto", known: Mapping[str, int] | None = None
) -> NetworkEvaluator:
    """Load a checkpoint as an evaluator, or raise a CheckpointError by name."""
    network, _ = load(directory)
    return NetworkEvaluator(network, device=device, amp=amp, known=known)
