"""Evaluate positions with a checkpoint, for search, matches and reports, using torch.

On a GPU, batches are padded to one of PADDED_SIZES, and each is evaluated as a CUDA graph.

Axes: B batch, P plane (77).
"""

from bisect import bisect_left
from pathlib import Path
from threading import Lock

import chess
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.card import read_book
from model.checkpoint import CARD_FILE, CardError, load
from model.data.rows import Batch, column_defaults, copy_to, load_rows, pad_rows
from model.inference.columns import (
    MAX_BATCH_ROWS,
    Columns,
    Corrections,
    Outputs,
    evaluate_in_batches,
    fill_columns,
    read_corrections,
)
from model.network.decoder import merge_promotions
from model.network.device import autocast, convert_memory_errors, select_device, select_dtype
from model.network.graphs import Graphs, Inputs
from model.network.network import Network

PADDED_SIZES = (1, 8, 32, 64, 128, 256, 384, 512, 768, 1024, 1536, MAX_BATCH_ROWS)
"""Numbers of rows that batches are padded to on a GPU."""
CPU = torch.device("cpu")


class NetworkEvaluator:
    """An `engine.evaluation.evaluator.Evaluator` that runs a network on packed planes."""

    def __init__(self, network: Network, *, device: str = "auto", amp: str = "auto") -> None:
        self.device = select_device(device)
        self.dtype = select_dtype(amp, self.device)
        self.network = network.to(self.device).eval()
        self.preset = network.preset
        self.columns = column_defaults(self.preset)
        """Default value of each column that the network reads."""
        self.corrections: Corrections = {}
        """Search corrections of the policy (engine/search/human.py)."""
        self.book: dict[str, chess.Move] = {}
        """Openings that the imitated player always plays, by EPD."""
        self.graphs = Graphs(self._forward, self.device) if self.device.type == "cuda" else None
        self.lock = Lock()  # all calls of a graph share its inputs and outputs

    def __call__(self, planes_BP: NDArray[np.uint64], columns: Batch | None = None) -> Outputs:
        """Return policy logits, float32 `[B, 4096]`, and win, draw, loss, float32 `[B, 3]`.

        Both are for the side to move. `columns` may have more columns than the network reads. The
        logits of illegal moves have no meaning, and some are minus infinity. A scalar value v in
        -1..1 becomes (1 + v) / 2, 0, (1 - v) / 2; without a value head each is 1/3. Raises
        NetworkOutputError if any other output is not finite, and OutOfMemoryError.
        """
        rows = fill_columns(planes_BP, columns or {}, self.columns)
        return evaluate_in_batches(self._evaluate, rows, f"the network {self.preset.name}")

    @torch.inference_mode()
    def _evaluate(self, rows: Columns) -> Outputs:
        work = f"evaluating {len(rows['planes']):,} positions with the network {self.preset.name}"
        with convert_memory_errors(work, "free some memory, or evaluate fewer positions at once"):
            if self.graphs is None:
                outputs = self._forward([load_rows(self.preset, rows, self.device)])
                return outputs[0].cpu().numpy(), outputs[1].cpu().numpy()
            count = len(rows["planes"])
            size = PADDED_SIZES[bisect_left(PADDED_SIZES, count)]
            padded = pad_rows(load_rows(self.preset, rows, CPU), size)
            with self.lock:
                columns = {name: copy_to(column, self.device) for name, column in padded.items()}
                padded_outputs = self.graphs([columns])
                logits_BL, wdl_B3 = (_copy_to_host(output[:count]) for output in padded_outputs)
                if self.device.type == "cuda":
                    torch.cuda.current_stream(self.device).synchronize()
            return logits_BL.numpy(), wdl_B3.numpy()

    def _forward(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """Return logits `[B, 4096]` and win, draw, loss `[B, 3]` on the device."""
        columns = inputs[0]
        with autocast(self.device, self.dtype):
            prediction = self.network(columns)
        return merge_promotions(prediction.logits, columns["planes"]), prediction.wdl.exp()


def _copy_to_host(column: Tensor) -> Tensor:
    """Start copying a column to pinned memory, which is several times as fast as other memory."""
    if column.device.type == "cpu":
        return column.clone()
    copied = torch.empty(column.shape, dtype=column.dtype, pin_memory=True)
    return copied.copy_(column, non_blocking=True)


def evaluator(directory: Path, *, device: str = "auto", amp: str = "auto") -> NetworkEvaluator:
    """Load a checkpoint as an evaluator. Raises CheckpointError and DeviceError."""
    network, card = load(directory)
    loaded = NetworkEvaluator(network, device=device, amp=amp)
    loaded.corrections = read_corrections(directory / CARD_FILE, card, CardError)
    loaded.book = read_book(card)
    return loaded
