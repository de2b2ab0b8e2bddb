"""The trainer: batches in, a checkpoint out, resumable at any moment.

It knows nothing of files of positions: whoever calls it hands it a function that opens batches at a step.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from engine.errors import UserError
from engine.progress import Progress, Tick
from model.checkpoint import CARD, CheckpointError, read_card, read_tensors, save
from model.config import TrainConfig, changed_settings, config_row, learning_rate, progressed
from model.curves import draw
from model.inputs import Batch
from model.journal import Journal
from model.network import parameters
from model.precision import keep_freed_memory
from model.presets import Preset, preset_row
from model.provenance import commit, dtype_name
from model.run import COLUMNS, DivergedError, Run, begin, check_finite, measure, restore, take_step, tensors_of

__all__ = [
    "Batch",
    "DivergedError",
    "TrainConfig",
    "TrainingBusyError",
    "TrainingDataError",
    "TrainingMismatchError",
    "train",
]

Batches = Callable[[int], Iterator[Batch]]
Validation = Callable[[], Iterator[Batch]]

TICK_SECONDS = 0.5


class TrainingMismatchError(UserError):
    """The directory holds a run of another preset, configuration or data."""


class TrainingBusyError(UserError):
    """Another trainer is at work in the directory."""


class TrainingDataError(UserError):
    """The batches ended before the run did."""


def train(
    config: TrainConfig,
    preset: Preset,
    open_batches: Batches,
    out: Path,
    *,
    validation: Validation | None,
    data: Mapping[str, Any],
    progress: Progress,
    stop: Callable[[], bool],
) -> dict[str, Any]:
    """Train a preset until its minutes or steps are over and give the checkpoint's card, with a `message` for people.

    A run found in `out` is continued from its last save, and a finished one is given back as it is. `stop` is asked
    before each step; when it says True, the run is saved and given back unfinished. Raises TrainingMismatchError for a
    run that is not this one, TrainingBusyError while another trainer is at it, DivergedError when the loss is not
    finite (the last save stays), TrainingDataError when the batches end too soon, CheckpointError.
    """
    with _alone(out):
        card = _found(config, preset, out, data)
        if card is not None and card["finished"]:
            did = f"{card['step']} steps, {card['positions']} positions"
            return {**card, "message": f"{out} is finished already: {did}"}
        threads = torch.get_num_threads()
        try:
            if config.threads:
                torch.set_num_threads(config.threads)
            run = begin(config, preset)
            if run.device.type == "cpu":
                keep_freed_memory()
            if card is not None:
                tensors = {kind: read_tensors(out, card, kind) for kind in ("weights", "training")}
                restore(run, card, tensors, str(out))
            return _Trainer(run, out, card, validation, data, progress).go(open_batches, stop)
        finally:
            torch.set_num_threads(threads)


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Make the directory of a run, and keep other trainers out of it meanwhile."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"{out} cannot be made into a directory: {error.strerror}") from error
    lock = FileLock(out / ".lock", timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise TrainingBusyError(f"another trainer is writing {out}: wait for it, or choose a new directory") from error
    except OSError as error:
        raise CheckpointError(f"{out} cannot be written: {error.strerror}") from error
    try:
        yield
    finally:
        lock.release()


def _found(config: TrainConfig, preset: Preset, out: Path, data: Mapping[str, Any]) -> dict[str, Any] | None:
    """Find the run to continue: None when the directory is free, TrainingMismatchError when another's run is in it."""
    if not (out / CARD).exists():
        return None
    card = read_card(out)
    changes = [
        f"preset field {name} differs"
        for name, value in preset_row(preset).items()
        if card["preset"].get(name) != value
    ]
    changes += changed_settings(config, card["config"])
    changes += [] if card["data"] == dict(data) else ["the data are others"]
    if changes:
        raise TrainingMismatchError(
            f"{out} holds another run ({'; '.join(changes[:4])}): choose a new directory, or remove it"
        )
    return card


class _Trainer:
    """One call of `train`: the loop, and when to report, measure and save."""

    def __init__(
        self,
        run: Run,
        out: Path,
        card: dict[str, Any] | None,
        validation: Validation | None,
        data: Mapping[str, Any],
        progress: Progress,
    ) -> None:
        self.run, self.out, self.validation, self.data, self.progress = run, out, validation, dict(data), progress
        self.journal = Journal(out, run.step)
        self.resumed = card is not None
        self.metrics: dict[str, float] = dict(card["metrics"]) if card else {}
        self.begun = time.perf_counter() - run.seconds
        self.sums = torch.zeros(len(COLUMNS), device=run.device)
        self.mark = (run.step, run.positions, run.seconds)  # where the line of metrics being averaged began
        self.measured = float(card.get("validation_seconds", 0.0)) if card else 0.0
        self.cost = 1.0
        self.saved = self.ticked = time.perf_counter()

    def go(self, open_batches: Batches, stop: Callable[[], bool]) -> dict[str, Any]:
        """Step until the run is over or stopped."""
        run = self.run
        if not self.resumed:
            self._save(finished=False)  # a directory that cannot be written is found out now, not after an hour
        try:
            done = self._steps(open_batches, stop)
        except DivergedError as error:
            raise DivergedError(f"{error}; {self.out} keeps the state of its last save") from None
        if done == "ended":
            self._save(finished=False)
            raise TrainingDataError(
                f"the batches ended at step {run.step}, before the run did; is the training split empty?"
            )
        if done == "stopped":
            card = self._save(finished=False)
            message = f"stopped at step {run.step} and saved; train again with the same settings to continue"
        else:
            self._measure()
            card = self._save(finished=True)
            message = f"finished: {run.step} steps, {run.positions} positions in {run.seconds:.0f} s"
        draw(self.out)
        return {**card, "message": message}

    def _steps(self, open_batches: Batches, stop: Callable[[], bool]) -> str:
        """Take steps and tell why they ceased: `done`, `stopped` or `ended`."""
        run, config = self.run, self.run.config
        batches = open_batches(run.step)
        while True:
            run.seconds = time.perf_counter() - self.begun
            fraction = progressed(config, run.step, run.seconds)
            if fraction >= 1:
                return "done"
            if stop():
                return "stopped"
            batch = next(batches, None)
            if batch is None:
                return "ended"
            self.sums += take_step(run, batch, fraction)
            self._after_step(fraction)

    def _after_step(self, fraction: float) -> None:
        run, config, now = self.run, self.run.config, time.perf_counter()
        run.seconds = now - self.begun
        if run.step - self.mark[0] >= config.report_every_steps:
            self._report(learning_rate(config, fraction))
        if now - self.ticked >= TICK_SECONDS:
            self._tick()
        if self.validation is not None and self.measured + self.cost <= config.validation_share * run.seconds:
            self._measure()
        if now - self.saved >= config.save_every_seconds:
            self._save(finished=False)

    def _figures(self) -> dict[str, float]:
        """Average the training figures since the last line."""
        _, positions, seconds = self.mark
        run = self.run
        rows = run.positions - positions
        if rows == 0:
            return {}
        means = dict(zip(COLUMNS, (self.sums / rows).tolist(), strict=True))
        return means | {"positions_per_second": rows / max(1e-9, run.seconds - seconds)}

    def _report(self, rate: float) -> None:
        """Write a line of metrics and begin the next."""
        if figures := self._figures():
            self.metrics |= figures
            self._write({**figures, "learning_rate": rate})
            self.sums.zero_()
        self.mark = (self.run.step, self.run.positions, self.run.seconds)

    def _write(self, figures: Mapping[str, float]) -> None:
        run = self.run
        line = {"step": run.step, "positions": run.positions, "seconds": round(run.seconds, 3)}
        self.journal.write(line | {name: round(value, 6) for name, value in figures.items()})

    def _tick(self) -> None:
        run, config = self.run, self.run.config
        figures = self._figures() or self.metrics
        shown: dict[str, float] = {
            name: figures[name] for name in ("loss", "top1", "positions_per_second") if name in figures
        }
        if config.steps is not None:
            self.progress(Tick(run.step, config.steps, "steps", shown))
        elif config.minutes is not None:
            total = round(60 * config.minutes)
            self.progress(Tick(min(total, int(run.seconds)), total, "s", shown))
        self.ticked = time.perf_counter()

    def _measure(self) -> None:
        """Measure the averaged weights on unseen positions."""
        if self.validation is None:
            return
        before = time.perf_counter()
        figures = measure(self.run, self.validation(), self.run.config.validation_positions)
        figures = {f"validation_{name}": value for name, value in figures.items()}
        self.cost = time.perf_counter() - before
        self.measured += self.cost
        self.metrics |= figures
        self._write(figures)

    def _save(self, *, finished: bool) -> dict[str, Any]:
        """Save the run; its averages since the last line are written first, so that lines and saves agree."""
        run = self.run
        check_finite(run)
        self._report(learning_rate(run.config, progressed(run.config, run.step, run.seconds)))
        self.journal.sync()
        card = {
            "preset": preset_row(run.preset),
            "parameters": parameters(run.network),
            "step": run.step,
            "positions": run.positions,
            "seconds": round(run.seconds, 3),
            "validation_seconds": round(self.measured, 3),
            "finished": finished,
            "metrics": {name: round(value, 6) for name, value in self.metrics.items()},
            "config": config_row(run.config),
            "data": self.data,
            "device": run.device.type,
            "dtype": dtype_name(run.dtype, run.config.amp),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "commit": commit(),
        }
        card = save(self.out, card, tensors_of(run, resumable=not finished))
        self.saved = time.perf_counter()
        return card
