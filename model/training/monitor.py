"""Validation, and the memory of a run: its lowest loss, to find a spike, and its best validation, to stop early."""

import math
from collections.abc import Iterable, Mapping

import torch

from model.card import Monitor
from model.data.inputs import Batch
from model.data.outputs import flatten_policy
from model.metrics import Totals, row_figures
from model.training.config import TrainConfig
from model.training.objective import VALUE_FORMS
from model.training.precision import autocast
from model.training.step import Run
from model.training.stopping import NEVER_STOP, StopCheck
from model.training.targets import inputs_and_targets, step_columns

BEST_BY = "cross_entropy"
"""The validation figure that `patience` watches; lower is better."""
SPIKE = 3.0
"""A run stops when the mean loss of a line of metrics is this many nats above the lowest one."""


class RunMonitor(Monitor):
    """The course of a run, updated by each line of metrics and each validation."""

    def find_spike(self, loss: float) -> str | None:
        """Return what is wrong with a line's mean loss, None when it is fine; update the lowest."""
        if not math.isfinite(loss):
            return "the loss is not finite"
        if self.lowest is not None and loss > self.lowest + SPIKE:
            return f"the loss rose from {self.lowest:.3f} to {loss:.3f}"
        self.lowest = loss if self.lowest is None else min(self.lowest, loss)
        return None

    def add_validation(self, figures: Mapping[str, float], step: int) -> bool:
        """Return whether a validation is the best so far, and count those that were not."""
        self.validated_step = step
        if self.best and not figures[BEST_BY] < self.best[BEST_BY]:
            self.without += 1
            return False
        self.best, self.best_step, self.without = dict(figures), step, 0
        return True

    def is_exhausted(self, config: TrainConfig) -> bool:
        """Return whether `patience` validations have passed without a better one."""
        return bool(config.patience) and self.without >= config.patience


@torch.inference_mode()
def validate(run: Run, batches: Iterable[Batch], limit: int, stop_check: StopCheck = NEVER_STOP) -> dict[str, float]:
    """Return the figures of the averaged weights on the first `limit` positions; WorkInterrupted as in `take_step`."""
    totals = Totals()
    form = VALUE_FORMS[run.preset.value]
    for batch in batches:
        if totals.count >= limit:
            break
        stop_check.check()
        rows = {name: column[: limit - totals.count] for name, column in batch.items()}
        columns = step_columns(run.config, run.preset, rows, run.device)
        read, targets = inputs_and_targets(run.preset, columns, run.dtype, draw=None)
        with autocast(run.device, run.dtype):
            policy, value_BV, *_ = run.ema(read)
        figures = row_figures(
            flatten_policy(policy), form.wdl(value_BV), targets.legal, targets.labels, targets.results, targets.has_game
        )
        totals.add({name: column.cpu() for name, column in figures.items()})
    return totals.summary()
