"""Average training figures, validate, detect spikes of the loss, and stop early."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.card import Monitor
from model.data.rows import Batch
from model.metrics import Totals, row_metrics, value_metrics
from model.network.decoder import legal_labels
from model.network.encoder import to_tensor
from model.training.calibration import fit_factor, scale_wdl
from model.training.config import TrainConfig
from model.training.precision import autocast
from model.training.step import COLUMNS, Run
from model.training.targets import load_training_rows

CALIBRATED = "calibrated_"
"""Prefix of a validation's Brier scores with the value's logits times `value_factor`."""
WATCHED_METRICS = ("cross_entropy", f"{CALIBRATED}value_brier")
"""Validation metrics whose sum `patience` watches; lower is better. The value is calibrated first,
as it will be in the final checkpoint."""
SPIKE_NATS = 3.0
"""A run stops if the mean loss of a metrics line is this many nats above the lowest so far."""


def mean_figures(sums: Tensor, rows: int) -> dict[str, float]:
    """Return the means of COLUMNS over rows; `top1` and `legal_mass` over those with a move."""
    means: dict[str, float] = dict(zip(COLUMNS, (sums / rows).tolist(), strict=True))
    known = means.pop("known")
    for name in ("top1", "legal_mass"):
        mean = means.pop(name)
        if known:
            means[name] = mean / known
    return means


class RunMonitor(Monitor):
    """Spike detection and early stopping, updated by each metrics line and each validation."""

    def find_spike(self, loss: float) -> str | None:
        """Describe what is wrong with a line's mean loss, or return None; update the lowest."""
        if not math.isfinite(loss):
            return "the loss is not finite"
        if self.lowest is not None and loss > self.lowest + SPIKE_NATS:
            return f"the loss rose from {self.lowest:.3f} to {loss:.3f}"
        self.lowest = loss if self.lowest is None else min(self.lowest, loss)
        return None

    def add_validation(self, figures: Mapping[str, float], step: int) -> bool:
        """Record a validation and return whether it is the best so far."""
        self.validated_step = step
        if self.best and not _total(figures) < _total(self.best):
            self.without += 1
            return False
        self.best, self.best_step, self.without = dict(figures), step, 0
        return True

    def is_exhausted(self, config: TrainConfig) -> bool:
        """Return whether `patience` validations have passed without a better one."""
        return bool(config.patience) and self.without >= config.patience


def _total(figures: Mapping[str, float]) -> float:
    # the Brier score is missing without a value head or without games
    return sum(figures.get(name, 0.0) for name in WATCHED_METRICS)


@torch.inference_mode()
def validate(run: Run, batches: Iterable[Batch], limit: int) -> dict[str, float]:
    """Return the metrics of the averaged weights on the first `limit` positions.

    Added to the metrics of `model.metrics` are `value_factor`, the calibration factor fitted to
    these positions' evaluations and results, and the Brier scores after calibration. Without rows,
    `positions` is 0.
    """
    totals, values, games = Totals(), [], []
    config = replace(
        run.config, eval_blend=1.0, teach="policy", search_value_share=1.0, results=True
    )
    for batch in batches:
        if totals.count >= limit:
            break
        batch = {name: column[: limit - totals.count] for name, column in batch.items()}
        rows = load_training_rows(config, run.preset, batch, run.device)
        with autocast(run.device, run.dtype):
            prediction = run.ema(rows)
        wdl_B3, results_B = prediction.wdl.exp(), to_tensor(batch["result"].astype(np.int64))
        results_B = results_B.to(run.device)
        figures = row_metrics(
            prediction.logits,
            wdl_B3,
            legal_labels(rows["planes"], prediction.logits.shape[1]),
            rows["label"],
            results_B,
            to_tensor(batch["plies"] > 0).to(run.device) if "plies" in batch else None,
        )
        totals.add({name: column.cpu() for name, column in figures.items()})
        known_B = ~figures["brier"].isnan()
        columns = (wdl_B3, rows["value_target"], results_B)
        values.append([column[known_B].cpu() for column in columns])
        games.append(batch["game"][known_B.cpu().numpy()])
    has_value = run.preset.value != "none"
    return totals.summary() | (_fit_calibration(values, games) if has_value else {})


def _fit_calibration(
    values: list[list[Tensor]], games: list[NDArray[np.integer]]
) -> dict[str, float]:
    """Return the value's factor and the Brier scores after it; {} without positions of games."""
    if not any(len(wdl_B3) for wdl_B3, _, _ in values):
        return {}
    wdl_N3, target_N3, results_N = (torch.cat(column) for column in zip(*values, strict=True))
    factor = fit_factor(wdl_N3, target_N3, np.concatenate(games))
    before, figures = (
        value_metrics(scale_wdl(wdl_N3, scale), results_N) for scale in (1.0, factor)
    )
    # a factor fitted to evaluations may not suit human results
    if figures["brier"].mean() > before["brier"].mean():
        factor, figures = 1.0, before
    return {
        "value_factor": factor,
        f"{CALIBRATED}value_brier": float(figures["brier"].mean()),
        f"{CALIBRATED}wdl_brier": float(figures["wdl_brier"].mean()),
    }
