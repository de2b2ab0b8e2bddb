"""The training loop: it learns, resumes after stops and kills, and refuses wrong inputs."""

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine.progress import Stop, Tick, never, silent
from model.checkpoint import CheckpointBusyError, CheckpointError, load, lock_directory, read_card
from model.network.preset import Preset
from model.training.config import TrainConfig, TrainConfigError, learning_rate
from model.training.loop import TrainingDataError, train
from model.training.monitor import RunMonitor, read_metrics, validate
from model.training.save import TrainingMismatchError
from model.training.step import DivergedError, row_losses, take_step
from model.training.targets import IllegalTargetError
from pipeline.training.train import describe_start
from tests.model.synthetic import TINY, Batch, FakeClock, batch, stream

pytestmark = pytest.mark.usefixtures("poll_stop_before_steps_only")

REPORT_STEPS = 4
CONFIG = TrainConfig(steps=12, batch_size=16, threads=1, amp="off", device="cpu")
Batches = Callable[[int], Iterator[Batch]]
UNSEEN = (batch(16, 0), batch(16, 1))


def after(calls: int) -> Stop:
    """Return a `stop` that is True from the call with this number on, counted from 0."""
    counter = itertools.count()
    return lambda: next(counter) >= calls


def run(
    out: Path,
    config: TrainConfig = CONFIG,
    preset: Preset = TINY,
    *,
    batches: Batches | None = None,
    validation: Callable[[], Iterator[Batch]] | None = lambda: iter(UNSEEN),
    stop: Stop = never,
    progress: Callable[[Tick], None] = silent,
    data: dict[str, Any] | None = None,
    start: Path | None = None,
) -> dict[str, Any]:
    origin = {"manifest": "abc"} if start is None else {"start": describe_start(start)}
    options: dict[str, Any] = {"progress": progress, "stop": stop, "start": start}
    options |= {"validation": validation, "data": data or origin}
    return train(config, preset, batches or stream(), out, **options)


def weights(card: dict[str, Any]) -> str:
    """Return the hash of a card's weights."""
    return str(card["files"]["weights"]["sha256"])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the card of a run of CONFIG that was never stopped."""
    return run(tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize(
    ("settings", "stop_at"),
    [
        ({"steps": 12}, 1),
        ({"optimizer": "sgd", "validation_every_steps": 2}, 5),
        ({"optimizer": "muon", "norm_rows": 4}, 8),
        ({"patience": 3, "learning_rate": 0.05, "validation_every_steps": 2}, 5),
        ({"label_smoothing": 0.1, "value_loss": "huber", "decay": "step"}, 11),
    ],
    ids=str,
)
def test_a_stopped_and_continued_run_equals_an_uninterrupted_one(
    tmp_path: Path, settings: dict[str, Any], stop_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("model.training.loop.REPORT_STEPS", 1)
    config = replace(CONFIG, **settings)
    whole = run(tmp_path / "whole", config)
    card = run(tmp_path / "parts", config, stop=after(stop_at))
    assert (card["finished"], card["step"]) == (False, stop_at)
    assert "stopped" in card["message"]
    card = run(tmp_path / "parts", config)
    assert card["finished"]
    assert weights(card) == weights(whole)
    assert (card["positions"], card["monitor"]) == (whole["positions"], whole["monitor"])


def test_a_killed_run_continues_from_its_last_save(whole: dict[str, Any], tmp_path: Path) -> None:
    def open_batches(step: int) -> Iterator[Batch]:
        yield from itertools.islice(stream()(step), 9)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, batches=open_batches)
    assert [line["step"] for line in read_metrics(tmp_path)] == [4, 8]
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 9, "loss": 1')
    assert weights(run(tmp_path)) == weights(whole)
    lines = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert [line["step"] for line in lines if "loss" in line] == [4, 8, 12]


@pytest.mark.parametrize("every", [3, 0])
def test_a_run_stopped_during_a_validation_repeats_it(
    tmp_path: Path, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("model.training.loop.POLL_SECONDS", 0.0)
    config, has_begun = replace(CONFIG, validation_every_steps=every), threading.Event()

    def validation() -> Iterator[Batch]:
        has_begun.set()
        yield from itertools.islice(itertools.repeat(batch(16)), 1000)
        raise AssertionError("the validation was not stopped")

    card = run(tmp_path / "parts", config, validation=validation, stop=has_begun.is_set)
    assert (card["step"], card["finished"]) == (every or 12, False)
    assert not [name for name in card["metrics"] if name.startswith("validation")]
    resumed, whole = run(tmp_path / "parts", config), run(tmp_path / "whole", config)
    assert (resumed["finished"], weights(resumed)) == (True, weights(whole))
    assert resumed["metrics"]["validation_top1"] == whole["metrics"]["validation_top1"]


def test_a_finished_run_is_returned_unchanged(tmp_path: Path) -> None:
    first, files = run(tmp_path), [path for path in tmp_path.iterdir() if path.name != ".lock"]
    before = [path.stat().st_mtime_ns for path in files]
    again = run(tmp_path, batches=lambda step: pytest.fail("opened batches"))
    assert again["files"] == first["files"]
    assert "finished already" in again["message"]
    assert [path.stat().st_mtime_ns for path in files] == before


@pytest.mark.parametrize(("unit", "share"), [("steps", 7 / 12), ("minutes", 2.5 / 5.5)])
def test_a_run_continues_with_another_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unit: str, share: float
) -> None:
    monkeypatch.setattr("model.training.loop.TICK_SECONDS", 0.0)
    ticks = list[Tick]()
    too_short, short, long = (replace(CONFIG, steps=steps) for steps in (5, 8, 12))
    if unit == "minutes":  # the first step is not counted
        FakeClock(monkeypatch, seconds_per_step=0.5)
        too_short, short, long = (
            replace(CONFIG, steps=None, minutes=seconds / 60) for seconds in (1.5, 3.5, 5.5)
        )
    assert run(tmp_path, short, stop=after(6))["step"] == 6
    with pytest.raises(TrainingMismatchError, match=f"{unit}, more than"):
        run(tmp_path, too_short)
    assert run(tmp_path, long, progress=ticks.append)["finished"]
    rates = [tick.values["learning_rate"] for tick in ticks]
    assert rates[0] == pytest.approx(learning_rate(long, share))
    assert rates[-1] == pytest.approx(learning_rate(long, 1.0))
    assert "finished already" in run(tmp_path, long)["message"]


def test_a_finished_run_continues_from_its_uncalibrated_weights(tmp_path: Path) -> None:
    finished = run(tmp_path, replace(CONFIG, steps=8))
    before = load(tmp_path)[0].state_dict()
    card = run(tmp_path, stop=after(0))
    assert (card["step"], card["finished"], card["calibration"]) == (8, False, None)
    factor = finished["calibration"]["factor"]
    for name, tensor in load(tmp_path)[0].state_dict().items():
        expected = before[name] / factor if name.startswith("value.6.") else before[name]
        assert torch.allclose(tensor, expected, atol=1e-6), name
    card = run(tmp_path, replace(CONFIG, save_seconds=1.0))
    assert (card["step"], card["finished"]) == (12, True)
    assert card["calibration"] is not None


def test_a_short_run_has_many_lines_and_its_speed_excludes_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first step, which compiles, takes a minute; other steps and validations take a second."""
    clock, limits = [0.0], list[int]()

    def take_timed_step(*arguments: Any) -> torch.Tensor:
        clock[0] += 1.0 if clock[0] else 60.0
        return take_step(*arguments)

    def validate_timed(*arguments: Any) -> dict[str, float]:
        clock[0] += 1.0
        limits.append(arguments[2])
        return validate(*arguments)

    monkeypatch.setattr("model.training.loop.time", SimpleNamespace(perf_counter=lambda: clock[0]))
    monkeypatch.setattr("model.training.loop.take_step", take_timed_step)
    monkeypatch.setattr("model.training.loop.validate", validate_timed)
    monkeypatch.setattr("model.training.loop.REPORT_STEPS", 50)
    monkeypatch.setattr("model.training.loop.MIN_METRICS_LINES", 20)
    ticks: list[Tick] = []
    card = run(tmp_path, replace(CONFIG, steps=None, minutes=1.5), progress=ticks.append)
    assert card["seconds"] == pytest.approx(90.0, abs=2)
    lines, name = read_metrics(tmp_path), "positions_per_second"
    reports = (*lines, *(tick.values for tick in ticks))
    speeds = [report[name] for report in reports if name in report]
    assert max(speeds) == pytest.approx(16.0), "it would be higher with the first step's positions"
    assert min(speeds) >= 8.0, "a validation takes a second"
    assert 15 <= len([line for line in lines if "loss" in line]) <= 25
    assert 5 <= len([line for line in lines if "validation_top1" in line]) <= 8
    assert set(limits) == {1536}


def test_ticks_count_up_to_the_total(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("model.training.loop.TICK_SECONDS", 0.0)
    ticks: list[Tick] = []
    card = run(tmp_path, replace(CONFIG, amp="bf16"), progress=ticks.append)
    assert card["dtype"] == "bfloat16"
    assert [(tick.done, "validating" in tick.values) for tick in ticks] == [
        *((step, False) for step in range(1, 13)),
        (12, True),
    ]
    untimed = {"loss", "top1", "learning_rate"}
    assert set(ticks[0].values) == untimed, "the first step is not timed, because it compiles"
    timed = untimed | {"positions_per_second", "data_wait"}
    assert all(set(tick.values) == timed for tick in ticks[1:-1])
    rates = [tick.values["learning_rate"] for tick in ticks]
    assert 0 < min(rates) == rates[-1] < max(rates) <= CONFIG.learning_rate


def test_patience_ends_the_run_with_the_best_weights(tmp_path: Path) -> None:
    """The validation rows have nothing in common with the training rows, so learning harms them."""
    unseen = [batch(16, 99)]
    options = {"learning_rate": 0.05, "ema": 0.0, "validation_every_steps": 2}
    config = replace(CONFIG, steps=200, patience=3, **options)
    card = run(tmp_path, config, validation=lambda: iter(unseen))
    validations = [
        (line["validation_cross_entropy"] + line["validation_calibrated_value_brier"], line["step"])
        for line in read_metrics(tmp_path)
        if "validation_top1" in line
    ]
    best, step = min(validations)
    assert "finished early" in card["message"]
    assert card["monitor"]["best_step"] == step
    assert card["step"] == step + 3 * 2 < 200
    metrics = card["metrics"]
    watched = metrics["validation_cross_entropy"] + metrics["validation_value_brier"]
    assert watched == pytest.approx(best, abs=1e-5)
    run(tmp_path / "until", replace(config, patience=0), stop=after(step))
    kept, best_weights = (load(out)[0].state_dict() for out in (tmp_path, tmp_path / "until"))
    for name, tensor in best_weights.items():
        # the value's last layer was calibrated
        factor = card["calibration"]["factor"] if name.startswith("value.6.") else 1.0
        assert torch.equal(kept[name], factor * tensor), name


def test_with_patience_a_run_that_gets_worse_keeps_its_starting_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("model.training.monitor.SPIKE_NATS", float("inf"))
    unseen = [batch(16, 99)]
    config = replace(CONFIG, steps=40, learning_rate=0.05, ema=0.0, validation_every_steps=2)
    start, out = tmp_path / "start", tmp_path / "out"
    options: dict[str, Any] = {"validation": lambda: iter(unseen)}
    run(start, config, batches=lambda step: itertools.cycle(unseen), **options)
    card = run(out, replace(config, steps=6, patience=9), start=start, **options)
    steps = [line["step"] for line in read_metrics(out) if "validation_top1" in line]
    assert steps == [0, 2, 4, 6]
    assert card["monitor"]["best_step"] == 0
    kept, started = (load(folder)[0].state_dict() for folder in (out, start))
    for name, tensor in started.items():
        assert torch.equal(kept[name], tensor) or name.startswith("value.6."), name


def test_an_equal_validation_is_not_better() -> None:
    monitor = RunMonitor()
    losses = (2.0, 2.0, 1.0)
    better = [monitor.add_validation({"cross_entropy": loss}, 0) for loss in losses]
    assert better == [True, False, True]


def test_the_loss_is_compared_with_its_lowest_value() -> None:
    monitor = RunMonitor()
    assert [monitor.describe_spike(loss) for loss in (5.0, 3.0, 5.9)] == [None] * 3
    assert "rose from 3.000 to 6.100" in str(monitor.describe_spike(6.1))
    assert "not finite" in str(monitor.describe_spike(float("nan")))


def test_an_illegal_label_stops_the_run_and_keeps_the_last_save(tmp_path: Path) -> None:
    def open_batches(step: int) -> Iterator[Batch]:
        for rows in stream()(step):
            if step == 6:
                rows["planes"][0, 13:], rows["planes"][0, 13], rows["label"][0] = 0, 1, 4095
            yield rows
            step += 1

    with pytest.raises(IllegalTargetError, match="1 of 16 labels are not legal moves"):
        run(tmp_path, replace(CONFIG, save_seconds=0.0), batches=open_batches)
    assert load(tmp_path)[1]["step"] == 6
    assert run(tmp_path)["finished"]


def test_a_spike_stops_the_run_and_keeps_the_last_good_state(
    whole: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One step's loss is a thousand times too large, but finite."""
    calls = itertools.count()

    def compute_losses(*arguments: Any) -> dict[str, torch.Tensor]:
        losses = row_losses(*arguments)
        return losses | {"loss": losses["loss"] * (1000.0 if next(calls) == 5 else 1.0)}

    with monkeypatch.context() as patch:
        patch.setattr("model.training.step.row_losses", compute_losses)
        patch.setattr("model.training.loop.REPORT_STEPS", 1)
        with pytest.raises(DivergedError, match=r"in steps 5 to 6; .* last save"):
            run(tmp_path, replace(CONFIG, save_seconds=0.0))
    assert (read_card(tmp_path)["step"], read_card(tmp_path)["finished"]) == (5, False)
    assert weights(run(tmp_path)) == weights(whole)


def test_batches_that_end_too_soon_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(TrainingDataError, match="ran out at step 3"):
        run(tmp_path, batches=lambda step: itertools.islice(stream()(step), 3))
    assert read_card(tmp_path)["step"] == 3


def test_a_different_run_is_refused_by_name(tmp_path: Path) -> None:
    run(tmp_path, stop=after(2))
    changes: list[tuple[dict[str, Any], str]] = [
        ({"config": replace(CONFIG, seed=5)}, "seed was 0, is 5"),
        ({"config": replace(CONFIG, steps=None, minutes=5.0)}, "steps was 12, is None"),
        ({"preset": replace(TINY, width=16)}, "preset field width differs"),
        ({"data": {"manifest": "xyz"}}, "the data differ"),
    ]
    for change, message in changes:
        with pytest.raises(TrainingMismatchError, match=message):
            run(tmp_path, **change)
    assert read_card(tmp_path)["step"] == 2


def test_runs_that_cannot_begin_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    patient = replace(CONFIG, validation_every_steps=2, patience=2)
    epochs = replace(CONFIG, steps=None, epochs=1.5)
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"out": tmp_path / "file"}, CheckpointError, "cannot be created"),
        ({"config": epochs}, TrainConfigError, "number of rows in an epoch"),
        ({"config": patient, "validation": None}, TrainConfigError, "no validation positions"),
        ({"config": patient, "validation": lambda: iter([])}, TrainConfigError, "a known move"),
    ]
    for options, error, message in cases:
        with pytest.raises(error, match=message):
            run(**{"out": tmp_path / "net"} | options)
    with lock_directory(tmp_path / "net"), pytest.raises(CheckpointBusyError, match="net"):
        run(tmp_path / "net")
    card = run(tmp_path / "other", validation=lambda: iter([]))
    assert card["finished"]
    assert not [name for name in card["metrics"] if name.startswith("validation")]
