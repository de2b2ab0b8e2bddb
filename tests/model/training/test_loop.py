"""What a run may be told beside its length: each setting does what its sentence says, and resumes
to the bit."""

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from engine.progress import Tick, silent
from model.checkpoint import load, read_card
from model.network.preset import Preset
from model.training.config import TrainConfig, TrainConfigError
from model.training.loop import train
from model.training.loss import row_losses
from model.training.metrics_log import read_metrics
from model.training.monitor import RunMonitor, validate
from model.training.step import DivergedError, new_run, prepare, take_step
from pipeline.training.train import describe_start
from tests.model.synthetic import TINY, Batch, batch, stream

pytestmark = pytest.mark.usefixtures("asked_before_steps_only")

REPORT_STEPS = 1
CONFIG = TrainConfig(
    steps=8, batch_size=16, threads=1, amp="off", device="cpu", validation_every_steps=2
)


def run(
    out: Path,
    config: TrainConfig = CONFIG,
    preset: Preset = TINY,
    *,
    batches: Callable[[int], Iterator[Batch]] | None = None,
    stop_after: int = 10**9,
    validation: Callable[[], Iterator[Batch]] | None = lambda: iter([batch(16, 0)]),
    progress: Callable[[Tick], None] = silent,
    epoch_rows: int | None = None,
    start: Path | None = None,
) -> dict[str, Any]:
    calls = itertools.count()
    return train(
        config,
        preset,
        batches or stream(),
        out,
        validation=validation,
        data={} if start is None else {"start": describe_start(start)},
        progress=progress,
        stop=lambda: next(calls) >= stop_after,
        epoch_rows=epoch_rows,
        start=start,
    )


def one_step(config: TrainConfig, rows: Batch, preset: Preset = TINY) -> dict[str, torch.Tensor]:
    """Give the raw weights after one step on a batch."""
    started = new_run(config, preset)
    take_step(started, prepare(started, rows), 0.5)
    return {name: tensor.clone() for name, tensor in started.network.state_dict().items()}


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "sgd"},
        {"optimizer": "muon"},
        {"norm_rows": 4},
        {"patience": 3, "learning_rate": 0.05},
        {"label_smoothing": 0.1, "value_loss": "huber", "decay": "step"},
    ],
    ids=str,
)
def test_stopped_and_continued_equals_never_stopped(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    config = replace(CONFIG, **settings)
    whole = run(tmp_path / "whole", config)
    assert run(tmp_path / "parts", config, stop_after=5)["step"] == 5
    parts = run(tmp_path / "parts", config)
    assert parts["files"]["weights"]["sha256"] == whole["files"]["weights"]["sha256"]
    assert parts["monitor"] == whole["monitor"]


def test_epochs_are_counted_in_rows(tmp_path: Path) -> None:
    ticks: list[Tick] = []
    card = run(
        tmp_path, replace(CONFIG, steps=None, epochs=1.5), epoch_rows=70, progress=ticks.append
    )
    assert card["step"] == 7  # 105 rows, 16 a step
    with pytest.raises(TrainConfigError, match="how many rows"):
        run(tmp_path / "other", replace(CONFIG, steps=None, epochs=1.5))


def test_a_batch_in_parts_has_the_gradient_of_their_mean(tmp_path: Path) -> None:
    """Two parts that are equal rows: norms see the same in each, so the step is that of the half
    alone."""
    half = batch(8)
    twice = {name: np.repeat(column, 2, axis=0) for name, column in half.items()}
    config = replace(CONFIG, optimizer="sgd", momentum=0.0, learning_rate=0.1)
    parts = one_step(replace(config, norm_rows=8), twice)
    for name, tensor in one_step(replace(config, batch_size=8), half).items():
        if "running" not in name and "tracked" not in name:
            assert torch.allclose(parts[name], tensor, atol=1e-6), name


def test_a_short_run_has_curves_and_its_speed_excludes_compiling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock of the test's: the first step, which compiles, takes a minute, each other step a
    second."""
    clock, limits = [0.0], list[int]()

    def step(*arguments: Any) -> torch.Tensor:
        clock[0] += 1.0 if clock[0] else 60.0
        return take_step(*arguments)

    def measure(*arguments: Any) -> dict[str, float]:
        clock[0] += 1.0
        limits.append(arguments[2])
        return validate(*arguments)

    monkeypatch.setattr("model.training.loop.time", SimpleNamespace(perf_counter=lambda: clock[0]))
    monkeypatch.setattr("model.training.loop.take_step", step)
    monkeypatch.setattr("model.training.loop.validate", measure)
    monkeypatch.setattr("model.training.loop.REPORT_STEPS", 50)
    monkeypatch.setattr("model.training.loop.REPORT_LINES", 20)
    ticks: list[Tick] = []
    config = replace(CONFIG, steps=None, minutes=1.5, validation_every_steps=0)
    card = run(tmp_path, config, progress=ticks.append)
    assert card["seconds"] == pytest.approx(90.0, abs=2)
    lines = read_metrics(tmp_path)
    speeds = [line["positions_per_second"] for line in lines if "positions_per_second" in line]
    speeds += [
        tick.values["positions_per_second"]
        for tick in ticks
        if "positions_per_second" in tick.values
    ]
    assert max(speeds) == pytest.approx(16.0), (
        "16 positions a second; 17 and more would count the first step"
    )
    assert min(speeds) >= 8.0, "a validation takes a second"
    assert 15 <= len([line for line in lines if "loss" in line]) <= 25
    assert 5 <= len([line for line in lines if "validation_top1" in line]) <= 8
    assert set(limits) == {1536}


def visited(rows: Batch, share: float) -> Batch:
    """Give every second row a search that puts `share` on its highest legal label and the rest on
    its lowest."""
    legal = np.unpackbits(
        rows["planes"][:, 13:].astype("<u8").view(np.uint8), axis=1, bitorder="little"
    )
    column = np.empty(len(legal), dtype=object)
    for row in range(0, len(legal), 2):
        labels = np.flatnonzero(legal[row])
        column[row] = np.array(
            [(labels[-1], share), (labels[0], 1 - share)], [("label", "u2"), ("share", "f4")]
        )
    return {**rows, "visits": column}


def test_a_network_learns_the_visits_of_a_search(tmp_path: Path) -> None:
    rows = visited(batch(16), 0.9)
    config = replace(CONFIG, steps=120, learning_rate=0.02, ema=0.9, weight_decay=0.0)
    run(
        tmp_path,
        config,
        replace(TINY, width=16),
        batches=lambda step: itertools.repeat(rows),
        validation=None,
    )
    network, _ = load(tmp_path)
    from model.inference.evaluator import NetworkEvaluator

    logits, _ = NetworkEvaluator(network, device="cpu", amp="off")(rows["planes"])
    for row in range(16):
        legal = np.flatnonzero(
            np.unpackbits(rows["planes"][row, 13:].astype("<u8").view(np.uint8), bitorder="little")
        )
        share = np.exp(logits[row, legal] - logits[row, legal].max())
        share /= share.sum()
        assert share[-1 if row % 2 == 0 else 0] == pytest.approx(
            0.9 if row % 2 == 0 else 1.0, abs=0.12
        ), row


def test_patience_ends_the_run_with_the_best_weights(tmp_path: Path) -> None:
    """Labels of the validation rows are others than those trained on, so that learning makes them
    worse."""
    other = batch(16, 99)
    config = replace(CONFIG, steps=200, learning_rate=0.05, ema=0.0, patience=3)
    card = run(tmp_path, config, validation=lambda: iter([other]))
    measured = [
        (line["validation_cross_entropy"] + line["validation_calibrated_value_brier"], line["step"])
        for line in read_metrics(tmp_path)
        if "validation_top1" in line
    ]
    assert card["finished"]
    assert card["step"] < 200
    assert "finished early" in card["message"]
    best, step = min(measured)
    assert card["monitor"]["best_step"] == step
    assert [loss for loss, _ in measured[-3:]] >= [best] * 3
    assert card["step"] == step + 3 * 2
    figures = card["metrics"]
    assert figures["validation_cross_entropy"] + figures["validation_value_brier"] == pytest.approx(
        best, abs=1e-5
    )
    run(tmp_path / "until", replace(config, patience=0), stop_after=step)
    then = safetensors.torch.load_file(next((tmp_path / "until").glob(f"weights-{step}-*")))
    kept = safetensors.torch.load_file(tmp_path / card["files"]["weights"]["name"])
    for name, tensor in then.items():  # the value's last layer was calibrated
        factor = card["calibration"]["factor"] if name.startswith("value.6.") else 1.0
        assert torch.equal(kept[name], factor * tensor), name


def test_with_patience_a_run_that_only_gets_worse_keeps_what_it_started_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("model.training.monitor.SPIKE", float("inf"))
    other = batch(16, 99)
    config = replace(CONFIG, steps=40, learning_rate=0.05, ema=0.0)
    run(
        tmp_path / "before",
        config,
        batches=lambda step: itertools.repeat(other),
        validation=lambda: iter([other]),
    )
    config = replace(config, steps=6, patience=9)
    card = run(
        tmp_path / "after", config, validation=lambda: iter([other]), start=tmp_path / "before"
    )
    assert [
        line["step"] for line in read_metrics(tmp_path / "after") if "validation_top1" in line
    ] == [0, 2, 4, 6]
    assert card["monitor"]["best_step"] == 0
    before, after = (load(tmp_path / name)[0].state_dict() for name in ("before", "after"))
    assert all(
        torch.equal(after[name], before[name]) for name in before if not name.startswith("value.6.")
    )


def test_patience_needs_something_to_measure_on(tmp_path: Path) -> None:
    with pytest.raises(TrainConfigError, match="set validation_every_steps"):
        TrainConfig(steps=1, patience=2)
    with pytest.raises(TrainConfigError, match="no validation positions"):
        run(tmp_path, replace(CONFIG, patience=2), validation=None)
    assert not list(tmp_path.iterdir())


def spoiled(at: int) -> Callable[..., dict[str, torch.Tensor]]:
    """Return losses that are a thousand times too large in one step: a spike, and nothing
    infinite."""
    calls = itertools.count()

    def spoil(*arguments: Any) -> dict[str, torch.Tensor]:
        losses = row_losses(*arguments)
        return losses | {"loss": losses["loss"] * (1000.0 if next(calls) == at else 1.0)}

    return spoil


def test_a_spike_stops_the_run_and_keeps_the_last_good_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(CONFIG, save_seconds=0.0)
    with monkeypatch.context() as patch:
        patch.setattr("model.training.step.row_losses", spoiled(5))
        message = r"the loss rose from \d\.\d+ to \d{3,}\.\d+ in steps 5 to 6; .* last save"
        with pytest.raises(DivergedError, match=message):
            run(tmp_path, config)
    _, card = load(tmp_path)
    assert (card["step"], card["finished"]) == (5, False)
    assert run(tmp_path)["step"] == 8, "without the fault it goes on, saving less often"
    whole = run(tmp_path / "whole")
    assert whole["files"]["weights"]["sha256"] == read_card(tmp_path)["files"]["weights"]["sha256"]
    monkeypatch.setattr("model.training.monitor.SPIKE", float("inf"))
    monkeypatch.setattr("model.training.step.row_losses", spoiled(5))
    assert run(tmp_path / "bold")["finished"]


def test_a_monitor_remembers_the_lowest_and_the_best() -> None:
    config, monitor = TrainConfig(steps=1, validation_every_steps=1, patience=2), RunMonitor()
    assert monitor.find_spike(5.0) is None
    assert monitor.find_spike(3.0) is None
    assert monitor.find_spike(5.9) is None
    assert "rose from 3.000 to 6.100" in str(monitor.find_spike(6.1))
    assert "not finite" in str(monitor.find_spike(float("nan")))
    best = [
        monitor.add_validation({"cross_entropy": value}, step)
        for step, value in enumerate((2.0, 1.5, 1.6, 1.5))
    ]
    assert best == [True, True, False, False]
    assert (monitor.best_step, monitor.is_exhausted(config)) == (1, True)
    assert RunMonitor(**json.loads(json.dumps(monitor.model_dump()))) == monitor
