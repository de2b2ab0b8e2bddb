"""The training loop: steps, and when to report, validate, save and stop.

It reads no dataset files: the caller passes a function that opens batches at a step. Under
torchrun, each process is passed its share of each batch.
"""

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from engine.errors import UserError
from engine.progress import Progress, Stop, Tick
from model.calibration import describe_memorization, scale_value
from model.checkpoint import delete_superseded, lock_directory
from model.data.prefetch import Prefetcher, count_threads
from model.data.rows import Batch
from model.network.device import (
    convert_memory_errors,
    keep_freed_memory,
    select_device,
    torch_threads,
)
from model.network.preset import Preset
from model.training.config import (
    TrainConfig,
    TrainConfigError,
    fraction_done,
    learning_rate,
    resolve_optimizer,
    total_steps,
)
from model.training.distributed import process_group, read_world, run_on_first_process
from model.training.monitor import (
    CALIBRATED_PREFIX,
    MetricsLog,
    RunMonitor,
    mean_metrics,
    require_tracker,
    validate,
)
from model.training.save import find_run_card, is_finished, open_run, save_run
from model.training.step import (
    SUMMED_METRICS,
    DivergedError,
    Run,
    check_finite,
    prepare_parts,
    take_step,
)

LOG = logging.getLogger(__name__)

OpenBatches = Callable[[int], Iterator[Batch]]
"""Opens a stream of batches at a step."""
OpenValidation = Callable[[], Iterator[Batch]]
"""Opens the batches of a validation."""

TICK_SECONDS = 0.5
"""Minimum number of seconds between two progress reports."""
POLL_SECONDS = 0.5
"""Seconds between two polls of `stop` during a validation; it is also polled before each step."""
REPORT_STEPS = 50
"""Maximum number of steps averaged in one line of metrics.jsonl."""
MIN_METRICS_LINES = 20
"""Minimum number of metrics lines in a run of at least that many steps, so short runs get a
curve."""
VALIDATION_POSITIONS = 16384
"""Maximum number of held-out positions per validation."""
MIN_VALIDATIONS, VALIDATION_POSITIONS_PER_MINUTE = 5, 1024
"""For runs with a length in minutes: the minimum number of validations, and the maximum number of
positions per validation for each minute."""
VALIDATION_SHARE = 0.02
"""Maximum share of the training time spent on validations, except the last one."""

Decision = Literal["continue", "finished", "stopped", "out of patience"]
"""The decision that process 0 makes before each step, for all processes."""


class StoppedError(Exception):
    """`stop` returned True during a validation."""


class TrainingDataError(UserError):
    """The batches ended before the run did."""


def train(
    config: TrainConfig,
    preset: Preset,
    open_batches: OpenBatches,
    out: Path,
    *,
    validation: OpenValidation | None,
    data: Mapping[str, Any],
    progress: Progress,
    stop: Stop,
    epoch_rows: int | None = None,
    start: Path | None = None,
    check_output: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Train a preset for the configured length and return its card with a `message`.

    If `out` holds an unfinished run, it continues from its last save; the card of a finished run is
    returned unchanged. A run's length may be changed, but not below what is already done. `stop` is
    polled before each step and during validations; once it returns True, the run is saved and its
    unfinished card returned. Minutes exclude the first step, which compiles kernels. `epoch_rows`
    is the number of training rows per epoch over all processes. A new run begins with the weights
    of the checkpoint `start`, if given. `check_output` is called before anything is written, and
    raises if `out` is in use.

    Raises TrainConfigError (the data do not allow a setting), TrainingMismatchError (`out` holds
    another run, or `start` has another preset), DivergedError (the loss is not finite or spikes;
    the last save is kept), TrainingDataError (the batches end too soon) and CheckpointError.
    """
    if config.epochs is not None and not epoch_rows:
        raise TrainConfigError("epochs needs epoch_rows, the number of rows in an epoch")
    if config.patience and validation is None:
        raise TrainConfigError("patience needs validations, but there are no validation positions")
    require_tracker(config.log)
    config = resolve_optimizer(config, preset.name)
    world = read_world()
    device = select_device(config.device, world.gpu)
    memory = convert_memory_errors(
        f"training {preset.name}", "choose a smaller norm_rows or batch_size, or free some memory"
    )

    def acquire_lock() -> None:
        check_output()
        lock.enter_context(lock_directory(out))

    with memory, process_group(world, device), ExitStack() as lock:
        run_on_first_process(world, acquire_lock)
        steps = total_steps(config, epoch_rows)
        card = run_on_first_process(world, lambda: find_run_card(config, preset, out, data, steps))
        if card is not None and is_finished(config, card, steps):
            run_on_first_process(world, partial(delete_superseded, out, card))
            done = f"{card['step']} steps, {card['positions']} positions"
            return {**card, "message": f"{out} is finished already: {done}"}
        if device.type == "cpu":
            keep_freed_memory()
        with torch_threads(config.threads):
            run = open_run(config, preset, world, out, card, start)
            try:
                if card is not None and world.is_first:
                    LOG.info("continuing from step %d", run.step)
                # wait until all processes have read the files that process 0 will replace
                run_on_first_process(world, lambda: None)
                loop = Loop(run, out, card, validation, data, progress, stop, steps)
                return loop.train(open_batches)
            finally:
                # release DistributedDataParallel before its process group (see `process_group`),
                # and the memory of captured steps
                run.model, run.graphs = run.network, None


class Loop:
    """The training loop of one run. Process 0 decides and saves; its errors stop all processes."""

    metrics_log: MetricsLog
    """Open in process 0 during `train`."""

    def __init__(
        self,
        run: Run,
        out: Path,
        card: dict[str, Any] | None,
        validation: OpenValidation | None,
        data: Mapping[str, Any],
        progress: Progress,
        stop: Stop,
        steps: int | None,
    ) -> None:
        self.run, self.out, self.data, self.progress = run, out, dict(data), progress
        self.validation, self.stop, self.steps = validation, stop, steps
        self.is_resumed = card is not None
        self.metrics: dict[str, float] = dict(card["metrics"]) if card else {}
        self.monitor = RunMonitor(**((card or {}).get("monitor") or {}))
        self.card: dict[str, Any] | None = None
        """The card of the last save."""
        self.calibration: dict[str, float] | None = None
        self.warning = ""
        self.has_changed = True  # since the last save
        self.began = time.perf_counter() - run.seconds
        self.sums = torch.zeros(len(SUMMED_METRICS), device=run.device)
        # step, positions and seconds at the start of the current line of metrics
        self.line_start = (run.step, run.positions, run.seconds)
        # positions of the first step, which is not timed, if it belongs to the current line
        self.untimed = 0
        self.waited = 0.0  # seconds that the device waited for batches, since the last line
        self.validated_fraction = self._fraction()
        self.total_validation_seconds = float((card or {}).get("validation_seconds", 0.0))
        self.last_validation_seconds = 1.0
        self.saved_at = self.ticked_at = time.perf_counter()

    def train(self, open_batches: OpenBatches) -> dict[str, Any]:
        """Train until the run is finished or stopped, and return its card with a message."""
        run = self.run
        with ExitStack() as opened:
            try:
                run_on_first_process(run.world, lambda: self._begin(opened))
                threads = count_threads(run.device, run.config.threads, run.world.size)
                batches = open_batches(run.step)
                prepare = partial(prepare_parts, run)
                with Prefetcher(batches, prepare, run.device, threads) as prefetcher:
                    reason = self._take_steps(prefetcher)
                    # save before the prefetcher's exit, which may wait for its thread
                    reason, card = run_on_first_process(run.world, lambda: self._end(reason))
            except DivergedError as error:
                kept = f"{self.out} keeps the state of its last save"
                raise DivergedError(f"{error}; {kept}") from None
        if reason == "stopped":
            message = f"stopped at step {run.step} and saved; train again to continue"
        else:
            is_early = reason == "out of patience"
            early = f" early, best at step {self.monitor.best_step}" if is_early else ""
            done = f"{run.step} steps, {run.positions} positions in {run.seconds:.0f} s"
            message = f"finished{early}: {done}{self.warning}"
        return {**card, "message": message}

    def _begin(self, opened: ExitStack) -> None:
        """Open the metrics, save a new run to find write errors early, and validate `start`."""
        run, validated_step = self.run, self.monitor.validated_step
        log = MetricsLog(self.out, run.step, validated_step, run.config.log)
        self.metrics_log = opened.enter_context(closing(log))
        if not self.is_resumed:
            self._save(finished=False)
        # the starting weights may remain the best
        if run.best and not run.step and self.data.get("start"):
            self._validate()

    def _take_steps(self, prefetcher: Prefetcher) -> Decision:
        run, fraction, is_first = self.run, 0.0, True
        while True:
            before = None if is_first else fraction
            fraction, decision = run_on_first_process(run.world, partial(self._decide, before))
            if decision != "continue":
                return decision
            waited = prefetcher.waited
            parts = prefetcher.take_parts()
            self.waited += prefetcher.waited - waited
            if parts is None:
                run_on_first_process(run.world, lambda: self._save(finished=False))
                raise TrainingDataError(
                    f"the batches ran out at step {run.step}, before the end of the run: is the "
                    "training split empty?"
                )
            self.sums += take_step(run, parts, fraction)
            self.has_changed = True
            if is_first:  # exclude compilation time
                now, self.untimed = time.perf_counter(), run.positions - self.line_start[1]
                self.began, self.saved_at, self.ticked_at = now - run.seconds, now, now
                is_first = False

    def _decide(self, before: float | None) -> tuple[float, Decision]:
        """Do the work due after a step; return the fraction of the run done, and the decision.

        `before` is the fraction before that step, or None before the first step. Time before the
        first step is not counted, so that even a slow machine takes a step.
        """
        if before is not None:
            self._after_step(before)
            self.run.seconds = time.perf_counter() - self.began
        fraction = self._fraction()
        if fraction >= 1:
            return fraction, "finished"
        if self.monitor.is_exhausted(self.run.config):
            return fraction, "out of patience"
        return fraction, "stopped" if self.stop() else "continue"

    def _fraction(self) -> float:
        return fraction_done(self.run.config, self.steps, self.run.step, self.run.seconds)

    def _after_step(self, fraction: float) -> None:
        """Report, validate and save, if it is time to; `fraction` was done before the step."""
        run, config, now = self.run, self.run.config, time.perf_counter()
        run.seconds = now - self.began
        step, _, seconds = self.line_start
        since = self._fraction() - fraction_done(config, self.steps, step, seconds)
        if run.step - step >= REPORT_STEPS or since >= 1 / MIN_METRICS_LINES - 1e-9:
            self._end_line(learning_rate(config, fraction))
        if now - self.ticked_at >= TICK_SECONDS:
            self._report_progress()
        if self._is_validation_due():
            self._validate()
        if now - self.saved_at >= config.save_seconds:
            self._save(finished=False)

    def _end(self, reason: Decision) -> tuple[Decision, dict[str, Any]]:
        """Validate, calibrate and save the run; return why it ended, and its card."""
        run = self.run
        if reason != "stopped" and not self._validate():
            reason = "stopped"  # the resumed run repeats the validation
        if reason != "stopped":
            if run.best and self.monitor.best:
                run.ema.load_state_dict(run.best)
                best = self.monitor.best
                self.metrics |= {f"validation_{name}": value for name, value in best.items()}
            self._calibrate()
        return reason, self._save(finished=reason != "stopped")

    def _calibrate(self) -> None:
        """Calibrate a finished run's value with the last validation's factor; update the metrics.

        A value that is not trained on results keeps the scale of its targets, an engine's or a
        search's. Human players convert fewer advantages than an engine expects: calibrating the
        value on human results lost 60 Elo (docs/log/2026-11-25.md).
        """
        factor = self.metrics.pop("validation_value_factor", None)
        if factor is None:  # no validation, no value, or no positions of games
            return
        calibrated = {
            name: self.metrics.pop(name.replace("_", f"_{CALIBRATED_PREFIX}", 1))
            for name in ("validation_value_brier", "validation_wdl_brier")
        }
        if not self.run.config.results:
            return
        scale_value(self.run.ema, factor)
        before = self.metrics["validation_value_brier"]
        self.metrics |= calibrated
        after = self.metrics["validation_value_brier"]
        self.calibration = {
            "factor": factor,
            "value_brier_before": round(before, 6),
            "value_brier": round(after, 6),
        }
        self.warning = describe_memorization(before, after, factor)

    def _is_validation_due(self) -> bool:
        config = self.run.config
        if config.validation_every_steps:
            return self.run.step % config.validation_every_steps == 0
        since = self._fraction() - self.validated_fraction
        if config.minutes is not None and since >= 1 / MIN_VALIDATIONS:
            return True
        expected = self.total_validation_seconds + self.last_validation_seconds
        return expected <= VALIDATION_SHARE * self.run.seconds

    def _validate(self) -> bool:
        """Validate the averaged weights, at most once per step; return False if stopped."""
        run = self.run
        if self.validation is None or self.monitor.validated_step == run.step:
            return True
        self._report_progress(validating=1.0)
        began = time.perf_counter()
        affordable = max(1.0, run.config.minutes or math.inf) * VALIDATION_POSITIONS_PER_MINUTE
        limit = int(min(VALIDATION_POSITIONS, affordable))
        try:
            metrics = validate(run, self._poll(self.validation()), limit)
        except StoppedError:
            return False
        if not metrics["positions"]:
            if run.config.patience:
                raise TrainConfigError(
                    "patience needs validations, but none of the validation positions has a "
                    "known move: set patience to 0"
                )
            self.validation = None
            return True
        self.has_changed = True
        if self.monitor.add_validation(metrics, run.step):
            with torch.no_grad():
                for name, tensor in run.best.items():
                    tensor.copy_(run.ema.state_dict()[name])
        metrics = {f"validation_{name}": value for name, value in metrics.items()}
        self.last_validation_seconds = time.perf_counter() - began
        self.total_validation_seconds += self.last_validation_seconds
        self.validated_fraction = self._fraction()
        self.metrics |= metrics
        self._write_line(metrics)
        return True

    def _poll(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield the batches of a validation; raise StoppedError if `stop` returns True."""
        polled = time.perf_counter()
        for batch in batches:
            if time.perf_counter() - polled >= POLL_SECONDS:
                polled = time.perf_counter()
                if self.stop():
                    raise StoppedError
            yield batch

    def _mean_metrics(self) -> dict[str, float]:
        """Return the means over the positions of the current line; {} if it has none."""
        run, (_, positions, seconds) = self.run, self.line_start
        rows = run.positions - positions
        if rows == 0:
            return {}
        metrics, timed_rows = mean_metrics(self.sums, rows), rows - self.untimed
        if timed_rows:
            elapsed = max(1e-9, run.seconds - seconds)
            metrics["positions_per_second"] = timed_rows / elapsed
            metrics["data_wait"] = min(1.0, self.waited / elapsed)
        return metrics

    def _end_line(self, rate: float) -> None:
        """Write a line of metrics and begin the next; raise DivergedError if the loss spikes."""
        if metrics := self._mean_metrics():
            if problem := self.monitor.describe_spike(metrics["loss"]):
                raise DivergedError(
                    f"{problem} in steps {self.line_start[0]} to {self.run.step}; train again with "
                    "a lower learning rate"
                )
            self.metrics |= metrics
            self._write_line({**metrics, "learning_rate": rate})
            self.sums.zero_()
        self.untimed, self.waited = 0, 0.0
        self.line_start = (self.run.step, self.run.positions, self.run.seconds)

    def _write_line(self, metrics: Mapping[str, float]) -> None:
        run = self.run
        line = {"step": run.step, "positions": run.positions, "seconds": round(run.seconds, 3)}
        self.metrics_log.write(line | {name: round(value, 6) for name, value in metrics.items()})

    def _report_progress(self, **state: float) -> None:
        run, config = self.run, self.run.config
        metrics = dict(self._mean_metrics() or self.metrics)
        metrics["learning_rate"] = learning_rate(config, self._fraction())
        names = ("loss", "top1", "learning_rate", "positions_per_second", "data_wait")
        values = {name: metrics[name] for name in names if name in metrics} | state
        if self.steps is not None:
            self.progress(Tick(run.step, self.steps, "steps", values))
        else:
            total = round(60 * (config.minutes or 0.0))
            done = min(total, int(run.seconds))
            self.progress(Tick(done, total, "s", {"step": run.step, **values}))
        self.ticked_at = time.perf_counter()

    def _save(self, *, finished: bool) -> dict[str, Any]:
        """Write a line of metrics and save the run, unless nothing has changed; return the card."""
        run = self.run
        if self.card is not None and not finished and not self.has_changed:
            return self.card
        check_finite(run)
        self._end_line(learning_rate(run.config, self._fraction()))
        entries = {
            "validation_seconds": round(self.total_validation_seconds, 3),
            "metrics": {name: round(value, 6) for name, value in self.metrics.items()},
            "monitor": self.monitor.model_dump(),
            "calibration": self.calibration,
            "data": self.data,
        }
        self.card = save_run(run, self.out, entries, finished=finished)
        self.saved_at, self.has_changed = time.perf_counter(), False
        return self.card
