"""Evaluate positions with a checkpoint, for search, matches and reports, using torch.

Axes: B batch, P plane (77).
"""

from pathlib import Path

import chess
import numpy as np
import torch
from numpy.typing import NDArray

from model.card import read_book
from model.checkpoint import CARD, CardError, load
from model.data.rows import Batch, column_defaults, load_rows
from model.inference.columns import (
    Answer,
    Corrections,
    Rows,
    evaluate_in_batches,
    fill_columns,
    read_corrections,
)
from model.network.decoder import merge_promotions
from model.network.memory import memory_errors
from model.network.network import Network
from model.training.precision import autocast, device_for, dtype_for


class NetworkEvaluator:
    """An `engine.evaluation.evaluator.Evaluator` that runs a network on packed planes."""

    def __init__(self, network: Network, *, device: str = "auto", amp: str = "auto") -> None:
        self.device = device_for(device)
        self.dtype = dtype_for(amp, self.device)
        self.network = network.to(self.device).eval()
        self.preset = network.preset
        self.columns = column_defaults(self.preset)
        """Default value of each column that the network reads."""
        self.corrections: Corrections = {}
        """Search corrections of the policy (engine/search/human.py)."""
        self.book: dict[str, chess.Move] = {}
        """Openings that the imitated player always plays, by EPD."""

    def __call__(self, planes_BP: NDArray[np.uint64], columns: Batch | None = None) -> Answer:
        """Return policy logits, float32 `[B, 4096]`, and win, draw, loss, float32 `[B, 3]`.

        Both are for the side to move. `columns` may have more columns than the network reads.
        Illegal moves have logits too, and some are minus infinity. A scalar value v in -1..1
        becomes (1 + v) / 2, 0, (1 - v) / 2; without a value head each is 1/3. Raises AnswerError
        for outputs that are not finite, and OutOfMemoryError.
        """
        rows = fill_columns(planes_BP, columns or {}, self.columns)
        return evaluate_in_batches(self._evaluate, rows, f"the network {self.preset.name}")

    @torch.inference_mode()
    def _evaluate(self, rows: Rows) -> Answer:
        work = f"evaluating {len(rows['planes']):,} positions with the network {self.preset.name}"
        with memory_errors(work, "free some memory, or evaluate fewer positions at once"):
            columns = load_rows(self.preset, rows, self.device)
            with autocast(self.device, self.dtype):
                prediction = self.network(columns)
            logits_BL = merge_promotions(prediction.logits, columns["planes"])
            return logits_BL.cpu().numpy(), prediction.wdl.exp().cpu().numpy()


def evaluator(directory: Path, *, device: str = "auto", amp: str = "auto") -> NetworkEvaluator:
    """Load a checkpoint as an evaluator. Raises CheckpointError as `model.checkpoint.load` does."""
    network, card = load(directory)
    found = NetworkEvaluator(network, device=device, amp=amp)
    found.corrections = read_corrections(directory / CARD, card, CardError)
    found.book = read_book(card)
    return found
