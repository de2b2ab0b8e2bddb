"""The loop of one call of `train`: steps, and when to report, measure and save."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch

from engine.errors import UserError
from engine.progress import Progress, Stop, Tick
from model.checkpoint import save
from model.data.inputs import Batch
from model.data.prefetch import Prefetcher
from model.network.conditioning import HIDING_VERSION
from model.network.network import parameters
from model.network.preset import preset_row
from model.training.config import config_row
from model.training.distributed import broadcast, run_on_first
from model.training.divergence import RunMonitor
from model.training.microbatches import thread_pool
from model.training.records.curves import draw
from model.training.records.metrics_log import MetricsLog
from model.training.records.provenance import commit, dtype_name
from model.training.records.tensorboard import TensorBoardLog
from model.training.schedules import learning_rate, progressed, total_steps
from model.training.state import DivergedError, Run, check_finite, keep_best, measure, prepare, take_step, tensors_of
from model.training.stopping import NEVER_STOP, StopCheck, WorkInterrupted, check_in_layers
from model.training.warming import warm_up

Batches = Callable[[int], Iterator[Batch]]
Validation = Callable[[], Iterator[Batch]]

TICK_SECONDS = 0.5
GO, DONE, STOPPED, EXHAUSTED = range(4)
"""What process 0 says before each step."""
SLOW_SECONDS = 5.0
"""A step that takes longer is worth a warning."""
FEW_STEPS = 20
"""A run in minutes that has time for fewer steps is worth one too."""
LOG = logging.getLogger(__name__)


class TrainingDataError(UserError):
    """The batches ended before the run did."""


class Loop:
    """The run, its directory, and the clocks of what is done now and then. Process 0 alone reports, measures and saves."""

    def __init__(
        self,
        run: Run,
        out: Path,
        card: dict[str, Any] | None,
        validation: Validation | None,
        data: Mapping[str, Any],
        progress: Progress,
        epoch_rows: int | None,
    ) -> None:
        self.run, self.out, self.data, self.progress = run, out, dict(data), progress
        self.validation = validation if run.world.first else None
        self.resumed = card is not None
        self.steps = total_steps(run.config, epoch_rows)
        self.metrics: dict[str, float] = dict(card["metrics"]) if card else {}
        self.monitor = RunMonitor.from_row(card.get("watch") if card else None)
        self.hiding = _hiding(card)
        self.stop_check = NEVER_STOP
        self.card: dict[str, Any] | None = None
        """The last save's."""
        self.unsaved = True
        self.begun = time.perf_counter() - run.seconds
        self.sums = torch.zeros(len(run.columns), device=run.device)
        self.mark = (run.step, run.positions, run.seconds)  # where the line of metrics being averaged began
        self.measured = float(card.get("validation_seconds", 0.0)) if card else 0.0
        self.measured_at = -1
        self.cost = 1.0
        self.saved = self.ticked = time.perf_counter()
        self.metrics_log = MetricsLog(out, run.step) if run.world.first else None
        self.tensorboard = TensorBoardLog(out, run.step) if run.world.first and run.config.tensorboard else None

    def go(self, open_batches: Batches, stop: Stop) -> dict[str, Any]:
        """Step until the run is over or stopped."""
        run, world = self.run, self.run.world
        self.stop_check = StopCheck(stop, inside=world.size == 1)
        if not self.resumed:
            run_on_first(world, lambda: self._save(finished=False))  # an unwritable directory is found out now
        if not run.config.compile:
            run.replicas.check_in_layers(self.stop_check)
            check_in_layers(run.ema, self.stop_check.check)
        try:
            verdict, card = self._steps(open_batches)
        except DivergedError as error:
            raise DivergedError(f"{error}; {self.out} keeps the state of its last save") from None
        finally:
            if self.tensorboard is not None:
                self.tensorboard.close()
        if world.first:
            draw(self.out)
        if verdict == STOPPED:
            message = f"stopped at step {run.step} and saved; train again with the same settings to continue"
        else:
            why = "finished" if verdict == DONE else f"finished early, best at step {self.monitor.best_step}"
            message = f"{why}: {run.step} steps, {run.positions} positions in {run.seconds:.0f} s"
        return {**card, "message": message}

    def _steps(self, open_batches: Batches) -> tuple[int, dict[str, Any]]:
        """Take steps; return why they ceased, and the card of the save.

        It is saved before anything is waited for: threads that still read rows or work on a step that is abandoned.
        """
        run = self.run
        with (
            Prefetcher(open_batches(run.step), partial(prepare, run), run.device) as feed,
            thread_pool(run.replicas.parts, torch.get_num_threads(), run.device) as pool,
        ):
            try:
                verdict = self._go_on(feed, pool)
            except WorkInterrupted:
                verdict = STOPPED
            return run_on_first(run.world, lambda: self._end(verdict))

    def _end(self, verdict: int) -> tuple[int, dict[str, Any]]:
        """Measure and save a run that is over, or save one that is stopped; return which it is, and the card."""
        run = self.run
        if verdict != STOPPED:
            self._measure()
            if self.stop_check.stopped:  # while it was measured: that is done when the run is continued
                verdict = STOPPED
            elif run.best and self.monitor.best:
                run.ema.load_state_dict(run.best)
                self.metrics |= {f"validation_{name}": value for name, value in self.monitor.best.items()}
        return verdict, self._save(finished=verdict != STOPPED)

    def _go_on(self, feed: Prefetcher, pool: ThreadPoolExecutor | None) -> int:
        run, config = self.run, self.run.config
        warm = False
        while True:
            if warm:  # what it takes to begin is not of a run's minutes: a slow machine takes a first step too
                run.seconds = time.perf_counter() - self.begun
            fraction = progressed(config, self.steps, run.step, run.seconds)
            verdict = DONE if fraction >= 1 else GO
            if verdict == GO and self.monitor.exhausted(config):
                verdict = EXHAUSTED
            if verdict == GO and self.stop_check():
                verdict = STOPPED
            fraction, said = broadcast(run.world, [fraction, verdict])
            if said != GO:
                return int(said)
            wait = self.stop_check.result
            if not warm and (first := feed.peek(wait)) is not None:
                self._warm_up(first, pool)
                warm = True
            if (parts := feed.take(wait)) is None:
                run_on_first(run.world, lambda: self._save(finished=False))
                raise TrainingDataError(
                    f"the batches ended at step {run.step}, before the run did; is the training split empty?"
                )
            self.sums += take_step(run, parts, fraction, pool, self.stop_check)
            self.unsaved = True
            if run.world.first:
                self._after_step(fraction)

    def _warm_up(self, batch: Batch, pool: ThreadPoolExecutor | None) -> None:
        """Compile and measure what a step takes, say it, and begin to count the run's time."""
        run, config = self.run, self.run.config
        if config.compile and run.world.first:
            LOG.warning("compiling the network (torch.compile, once a run): this takes a minute or so")
        cost = warm_up(run, batch, pool, self.stop_check)
        left = None if config.minutes is None else 60 * config.minutes - run.seconds
        few = left is not None and cost.seconds > left / FEW_STEPS
        if run.world.first:
            fits = f"; {60 * (config.minutes or 0):,.0f} s are fewer than {FEW_STEPS} of them" if few else ""
            LOG.log(logging.WARNING if few or cost.seconds > SLOW_SECONDS else logging.INFO, f"{cost}{fits}")
        broadcast(run.world, [0.0])  # the processes begin together
        now = time.perf_counter()
        self.begun, self.saved, self.ticked = now - run.seconds, now, now

    def _after_step(self, fraction: float) -> None:
        run, config, now = self.run, self.run.config, time.perf_counter()
        run.seconds = now - self.begun
        if run.step - self.mark[0] >= config.report_every_steps:
            self._report(learning_rate(config, fraction))
        if now - self.ticked >= TICK_SECONDS:
            self._tick()
        if self._due():
            self._measure()
        if now - self.saved >= config.save_every_seconds:
            self._save(finished=False)

    def _due(self) -> bool:
        """Return whether it is time to measure."""
        config = self.run.config
        if config.validation_every_steps:
            return self.run.step % config.validation_every_steps == 0
        return self.measured + self.cost <= config.validation_share * self.run.seconds

    def _figures(self) -> dict[str, float]:
        """Average the training figures since the last line."""
        _, positions, seconds = self.mark
        run = self.run
        rows = run.positions - positions
        if rows == 0:
            return {}
        means = dict(zip(run.columns, (self.sums / rows).tolist(), strict=True))
        return means | {"positions_per_second": rows / max(1e-9, run.seconds - seconds)}

    def _report(self, rate: float) -> None:
        """Write a line of metrics and begin the next; DivergedError when its loss is a spike."""
        if figures := self._figures():
            if trouble := self.monitor.spiked(self.run.config, figures["loss"]):
                raise DivergedError(
                    f"{trouble} in steps {self.mark[0]} to {self.run.step}; train again with a lower learning rate"
                )
            self.metrics |= figures
            self._write({**figures, "learning_rate": rate})
            self.sums.zero_()
        self.mark = (self.run.step, self.run.positions, self.run.seconds)

    def _write(self, figures: Mapping[str, float]) -> None:
        run = self.run
        line = {"step": run.step, "positions": run.positions, "seconds": round(run.seconds, 3)}
        line |= {name: round(value, 6) for name, value in figures.items()}
        assert self.metrics_log is not None
        self.metrics_log.write(line)
        if self.tensorboard is not None:
            self.tensorboard.write(line)

    def _tick(self, **state: float) -> None:
        """Report progress; `validating=1` says that the time goes into a measurement."""
        run, config = self.run, self.run.config
        figures = self._figures() or self.metrics
        shown: dict[str, float] = {name: figures[name] for name in ("loss", "top1") if name in figures}
        shown["learning_rate"] = learning_rate(config, progressed(config, self.steps, run.step, run.seconds))
        if "positions_per_second" in figures:
            shown["positions_per_second"] = figures["positions_per_second"]
        shown |= state
        if self.steps is not None:
            self.progress(Tick(run.step, self.steps, "steps", shown))
        elif config.minutes is not None:
            total = round(60 * config.minutes)
            self.progress(Tick(min(total, int(run.seconds)), total, "s", {"step": run.step, **shown}))
        self.ticked = time.perf_counter()

    def _measure(self) -> None:
        """Measure the averaged weights on unseen positions, once a step; not when the run is told to stop meanwhile."""
        if self.validation is None or self.measured_at == self.run.step:
            return
        self._tick(validating=1.0)
        before = time.perf_counter()
        try:
            figures = measure(self.run, self.validation(), self.run.config.validation_positions, self.stop_check)
        except WorkInterrupted:  # who waits for this process hears it before the next step
            return
        self.unsaved = True
        if self.monitor.measured(figures, self.run.step) and self.run.best:
            keep_best(self.run)
        figures = {f"validation_{name}": value for name, value in figures.items()}
        self.cost = time.perf_counter() - before
        self.measured += self.cost
        self.measured_at = self.run.step
        self.metrics |= figures
        self._write(figures)

    def _save(self, *, finished: bool) -> dict[str, Any]:
        """Save the run; its averages since the last line are written first, so that lines and saves agree."""
        run, config = self.run, self.run.config
        if self.card is not None and not finished and not self.unsaved:
            return self.card
        check_finite(run)
        self._report(learning_rate(config, progressed(config, self.steps, run.step, run.seconds)))
        assert self.metrics_log is not None
        self.metrics_log.sync()
        card = {
            "preset": preset_row(run.preset),
            "parameters": parameters(run.network),
            "step": run.step,
            "positions": run.positions,
            "seconds": round(run.seconds, 3),
            "validation_seconds": round(self.measured, 3),
            "finished": finished,
            "metrics": {name: round(value, 6) for name, value in self.metrics.items()},
            "watch": self.monitor.row(),
            "hiding": self.hiding,
            "config": config_row(config),
            "teacher": run.reference.row() if run.reference is not None else None,
            "data": self.data,
            "device": run.device.type,
            "dtype": dtype_name(run.dtype, config.amp),
            "threads": torch.get_num_threads(),
            "processes": run.world.size,
            "parts": run.replicas.parts * run.world.size,
            "torch": torch.__version__,
            "commit": commit(),
        }
        self.card = save(self.out, card, tensors_of(run, resumable=not finished))
        self.saved, self.unsaved = time.perf_counter(), False
        return self.card


def _hiding(card: Mapping[str, Any] | None) -> dict[str, int]:
    """Return how rows are drawn that are shown without ratings (`model.network.conditioning.hide`), and since which step.

    A run that began with an older draw goes on with this one, and its card says from where.
    """
    found = card.get("hiding", {"version": 1}) if card is not None else {"version": HIDING_VERSION, "since_step": 0}
    if isinstance(found, dict) and found.get("version") == HIDING_VERSION:
        return found
    assert card is not None
    return {"version": HIDING_VERSION, "since_step": card["step"]}
