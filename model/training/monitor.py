"""Measurements of a run: metrics.jsonl, validations, spikes of the loss, and early stopping.

metrics.jsonl has one JSON object per line. A resumed run first drops the lines after its last save.
The lines can also be sent to TensorBoard, Weights & Biases or MLflow.
"""

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.json_files import parse_json
from model.calibration import fit_factor, scale_wdl
from model.card import MonitorState
from model.checkpoint import CheckpointError, write_atomically
from model.data.rows import Batch
from model.metrics import Totals, row_metrics, value_metrics
from model.network.decoder import legal_labels
from model.network.device import autocast
from model.network.encoder import to_tensor
from model.training.config import TrainConfig, TrainConfigError
from model.training.step import SUMMED_METRICS, Run
from model.training.targets import load_training_rows

METRICS_FILE = "metrics.jsonl"
CALIBRATED_PREFIX = "calibrated_"
"""Prefix of a validation's Brier scores after calibration, which multiplies the value's logits by
`value_factor`."""
WATCHED_METRICS = ("cross_entropy", f"{CALIBRATED_PREFIX}value_brier")
"""Validation metrics whose sum `patience` watches; lower is better. The Brier score is that of the
calibrated value, as in the final checkpoint."""
SPIKE_NATS = 3.0
"""A run stops if the mean loss of a metrics line is this many nats above the lowest so far."""


def mean_metrics(sums: Tensor, rows: int) -> dict[str, float]:
    """Return the means over `rows` of sums in the order of SUMMED_METRICS.

    `top1` and `legal_mass` are means over the rows with a target move, and left out if none has it.
    """
    means: dict[str, float] = dict(zip(SUMMED_METRICS, (sums / rows).tolist(), strict=True))
    share_with_move = means.pop("known")
    for name in ("top1", "legal_mass"):
        mean = means.pop(name)
        if share_with_move:
            means[name] = mean / share_with_move
    return means


class RunMonitor(MonitorState):
    """Spike detection and early stopping, updated by each metrics line and each validation."""

    def describe_spike(self, loss: float) -> str | None:
        """Describe what is wrong with a line's mean loss, or return None and update the lowest."""
        if not math.isfinite(loss):
            return "the loss is not finite"
        if self.lowest is not None and loss > self.lowest + SPIKE_NATS:
            return f"the loss rose from {self.lowest:.3f} to {loss:.3f}"
        self.lowest = loss if self.lowest is None else min(self.lowest, loss)
        return None

    def add_validation(self, metrics: Mapping[str, float], step: int) -> bool:
        """Record a validation and return whether it is the best so far."""
        self.validated_step = step
        if self.best and not _sum_watched(metrics) < _sum_watched(self.best):
            self.without += 1
            return False
        self.best, self.best_step, self.without = dict(metrics), step, 0
        return True

    def is_exhausted(self, config: TrainConfig) -> bool:
        """Return whether `patience` validations have passed without a better one."""
        return bool(config.patience) and self.without >= config.patience


def _sum_watched(metrics: Mapping[str, float]) -> float:
    # the Brier score is missing without a value head or without games
    return sum(metrics.get(name, 0.0) for name in WATCHED_METRICS)


@torch.inference_mode()
def validate(run: Run, batches: Iterable[Batch], limit: int) -> dict[str, float]:
    """Return the metrics of the averaged weights on the first `limit` positions.

    They are the means of `model.metrics`; `value_factor`, the calibration factor fitted to these
    positions' evaluations and results; and the Brier scores after calibration. Without rows,
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
        metrics = row_metrics(
            prediction.logits,
            wdl_B3,
            legal_labels(rows["planes"], prediction.logits.shape[1]),
            rows["label"],
            results_B,
            to_tensor(batch["plies"] > 0).to(run.device) if "plies" in batch else None,
        )
        totals.add({name: column.cpu() for name, column in metrics.items()})
        has_game_B = ~metrics["brier"].isnan()
        columns = (wdl_B3, rows["value_target"], results_B)
        values.append([column[has_game_B].cpu() for column in columns])
        games.append(batch["game"][has_game_B.cpu().numpy()])
    has_value = run.preset.value != "none"
    return totals.summary() | (_fit_calibration(values, games) if has_value else {})


def _fit_calibration(
    values: list[list[Tensor]], games: list[NDArray[np.integer]]
) -> dict[str, float]:
    """Return the value's factor and the calibrated Brier scores; {} without positions of games.

    An item of `values` has win, draw, loss, their targets, and the results of a batch's positions.
    """
    if not any(len(wdl_B3) for wdl_B3, _, _ in values):
        return {}
    wdl_N3, target_N3, results_N = (torch.cat(column) for column in zip(*values, strict=True))
    factor = fit_factor(wdl_N3, target_N3, np.concatenate(games))
    before, after = (value_metrics(scale_wdl(wdl_N3, scale), results_N) for scale in (1.0, factor))
    # a factor fitted to evaluations may not suit human results
    if after["brier"].mean() > before["brier"].mean():
        factor, after = 1.0, before
    return {
        "value_factor": factor,
        f"{CALIBRATED_PREFIX}value_brier": float(after["brier"].mean()),
        f"{CALIBRATED_PREFIX}wdl_brier": float(after["wdl_brier"].mean()),
    }


def read_metrics(directory: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's metrics.jsonl; skip truncated and invalid lines."""
    try:
        text = (directory / METRICS_FILE).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(
            f"{directory / METRICS_FILE} cannot be read: {error.strerror}"
        ) from error
    entries = []
    for line in text.splitlines():
        with suppress(ValueError):
            if _is_metrics_line(entry := parse_json(line)):
                entries.append(entry)
    return entries


def _is_metrics_line(entry: object) -> bool:
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("step"), int)
        and all(type(value) in (int, float) for value in entry.values())
    )


class MetricsLog:
    """The metrics file of a run; opening it at `step` drops the lines after the last save."""

    def __init__(self, directory: Path, step: int, validated_step: int, log: str) -> None:
        self.path = directory / METRICS_FILE
        self.tracker = None if log == "none" else open_tracker(log, directory, step)
        kept = [
            entry
            for entry in (read_metrics(directory) if step else [])
            if entry["step"] <= (validated_step if "validation_top1" in entry else step)
        ]
        write_atomically(self.path, "".join(json.dumps(entry) + "\n" for entry in kept).encode())

    def write(self, entry: Mapping[str, Any]) -> None:
        """Append one line, and send it to the tracker, if any."""
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
                file.flush()
                os.fsync(file.fileno())  # a save that follows must not be on disk without it
        except OSError as error:
            raise CheckpointError(f"{self.path} cannot be written: {error.strerror}") from error
        if self.tracker is not None:
            metrics = {name: value for name, value in entry.items() if name != "step"}
            self.tracker.write(metrics, entry["step"])

    def close(self) -> None:
        """End the tracker's run."""
        if self.tracker is not None:
            self.tracker.close()


class Tracker(NamedTuple):
    """An experiment tracker that receives the lines of metrics."""

    write: Callable[[Mapping[str, float], int], object]
    """Send the metrics of a step."""
    close: Callable[[], object]
    """End the tracker's run."""


def require_tracker(log: str) -> None:
    """Raise TrainConfigError if the package of a tracker is not installed."""
    if log != "none" and find_spec(log) is None:
        raise TrainConfigError(f"log={log} needs the package {log}: pip install {log}")


def open_tracker(log: str, directory: Path, step: int) -> Tracker:
    """Begin a run named after the checkpoint's directory, or continue it after `step`."""
    name = directory.resolve().name
    if log == "tensorboard":
        from torch.utils.tensorboard import SummaryWriter

        writer: Any = SummaryWriter(str(directory / "tensorboard"), purge_step=step + 1)

        def add_scalars(metrics: Mapping[str, float], step: int) -> None:
            for metric, value in metrics.items():
                writer.add_scalar(metric, value, step)

        return Tracker(add_scalars, writer.close)
    package: Any = import_module(log)
    if log == "wandb":
        run = package.init(project="fianchetto", name=name, dir=str(directory))
        return Tracker(lambda metrics, step: run.log(dict(metrics), step=step), run.finish)
    package.set_experiment("fianchetto")
    package.start_run(run_name=name)
    return Tracker(
        lambda metrics, step: package.log_metrics(dict(metrics), step=step), package.end_run
    )
