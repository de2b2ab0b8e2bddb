"""The trainer: it learns, and it can be stopped, killed and misled without losing anything."""

import itertools
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from engine.progress import Stop, Tick, never, silent
from model.checkpoint import CheckpointBusyError, CheckpointError, load, read_card
from model.network.preset import Preset
from model.training.config import TrainConfig, TrainConfigError
from model.training.loop import TrainingDataError, train
from model.training.metrics_log import draw, read_metrics
from model.training.save import TrainingMismatchError
from model.training.schedules import learning_rate
from model.training.step import DivergedError
from model.training.targets import IllegalTargetError
from tests.model.synthetic import TINY, TINY_SEED, Batch, FakeClock, batch, stream

pytestmark = pytest.mark.usefixtures("asked_before_steps_only")

CONFIG = TrainConfig(steps=12, batch_size=16, threads=1, amp="off", device="cpu")
REPORT_STEPS = 4


def after(calls: int) -> Callable[[], bool]:
    counter = itertools.count()
    return lambda: next(counter) >= calls


def run(
    out: Path,
    config: TrainConfig = CONFIG,
    preset: Preset = TINY,
    *,
    batches: Callable[[int], Iterator[Batch]] | None = None,
    stop: Stop = never,
    progress: Callable[[Tick], None] = silent,
    data: dict[str, Any] | None = None,
) -> dict[str, Any]:
    return train(
        config,
        preset,
        batches or stream(),
        out,
        validation=lambda: iter([batch(16, 0), batch(16, 1)]),
        data=data or {"manifest": "abc"},
        progress=progress,
        stop=stop,
    )


@pytest.mark.parametrize("preset", [TINY, TINY_SEED], ids=lambda row: row.name)
def test_a_tiny_network_learns_a_few_batches_by_heart(tmp_path: Path, preset: Preset) -> None:
    config = replace(
        CONFIG, steps=150, learning_rate=0.02, weight_decay=0.0, ema=0.9, value_weight=1.0
    )
    card = run(
        tmp_path, config, replace(preset, width=16, policy_width=8), batches=stream(16, distinct=2)
    )
    metrics = card["metrics"]
    assert metrics["validation_positions"] == 32
    assert metrics["validation_top1"] > 0.9
    assert metrics["validation_value_brier"] < 0.05
    assert metrics["validation_cross_entropy"] < read_metrics(tmp_path)[0]["policy_loss"] / 2


@pytest.mark.parametrize("moment", [1, 5, 8, 11])
def test_stopped_and_continued_equals_never_stopped(tmp_path: Path, moment: int) -> None:
    whole = run(tmp_path / "whole")
    card = run(tmp_path / "parts", stop=after(moment))
    assert (card["finished"], card["step"]) == (False, moment)
    assert "stopped" in card["message"]
    assert (tmp_path / "parts" / card["files"]["training"]["name"]).exists()
    card = run(tmp_path / "parts")
    assert card["finished"]
    assert card["files"]["weights"]["sha256"] == whole["files"]["weights"]["sha256"]
    assert card["positions"] == whole["positions"] == 12 * 16


def test_killed_between_saves_continues_from_the_last_save(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole")

    def killed(step: int) -> Iterator[Batch]:
        yield from itertools.islice(stream()(step), 9)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "killed", batches=killed)
    assert [line["step"] for line in read_metrics(tmp_path / "killed")] == [4, 8]
    with (tmp_path / "killed" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 9, "loss": 1')
    card = run(tmp_path / "killed")
    assert card["files"]["weights"]["sha256"] == whole["files"]["weights"]["sha256"]
    text = (tmp_path / "killed" / "metrics.jsonl").read_text().splitlines()
    losses = [line["step"] for line in map(json.loads, text) if "loss" in line]
    assert losses == sorted(set(losses)) == [4, 8, 12]


def test_a_finished_run_is_given_back_untouched(tmp_path: Path) -> None:
    first = run(tmp_path)
    before = {
        path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir() if path.name != ".lock"
    }
    again = run(tmp_path, batches=lambda step: pytest.fail("opened batches"))
    assert again["files"] == first["files"]
    assert "finished already" in again["message"]
    assert {
        path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir() if path.name != ".lock"
    } == before


def test_two_at_once_refuse_each_other(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("model.training.loop.TICK_SECONDS", 0.0)
    refused = []

    def again(tick: Tick) -> None:
        with pytest.raises(CheckpointBusyError, match=re.escape(str(tmp_path))):
            run(tmp_path, batches=lambda step: pytest.fail("opened batches"))
        refused.append(tick.done)

    assert run(tmp_path, progress=again)["finished"]
    assert refused == [*range(1, 13), 12], "after each step, and while it is measured"
    assert run(tmp_path)["finished"]


def growing(monkeypatch: pytest.MonkeyPatch, unit: str) -> dict[str, Any]:
    """Give lengths of 5, 8 and 12 steps, or in minutes by a clock that a step advances."""
    if unit == "steps":
        return {"short": replace(CONFIG, steps=8), "long": CONFIG, "less": replace(CONFIG, steps=5)}
    FakeClock(monkeypatch, seconds_per_step=0.5)
    lengths = {"short": 3.5, "long": 5.5, "less": 1.5}  # seconds: the first step is not counted
    return {
        name: replace(CONFIG, steps=None, minutes=seconds / 60) for name, seconds in lengths.items()
    }


@pytest.mark.parametrize(("unit", "share"), [("steps", 7 / 12), ("minutes", 2.5 / 5.5)])
def test_a_run_continues_with_another_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unit: str, share: float
) -> None:
    monkeypatch.setattr("model.training.loop.TICK_SECONDS", 0.0)
    lengths, ticks = growing(monkeypatch, unit), list[Tick]()
    assert run(tmp_path, lengths["short"], stop=after(6))["step"] == 6
    with pytest.raises(TrainingMismatchError, match=f"{unit}, more than"):
        run(tmp_path, lengths["less"])
    card = run(tmp_path, lengths["long"], progress=ticks.append)
    assert card["finished"]
    rates = [tick.values["learning_rate"] for tick in ticks]
    assert rates[0] == pytest.approx(learning_rate(lengths["long"], share)), (
        "by the share of the new length"
    )
    assert rates[-1] == pytest.approx(learning_rate(lengths["long"], 1.0))
    assert "finished already" in run(tmp_path, lengths["long"])["message"]
    with pytest.raises(TrainingMismatchError, match=f"{unit}, more than"):
        run(tmp_path, lengths["short"])


def test_a_finished_run_continues_from_its_uncalibrated_weights(tmp_path: Path) -> None:
    short = replace(CONFIG, steps=8)
    finished = run(tmp_path, short)
    before = load(tmp_path)[0].state_dict()
    card = run(tmp_path, stop=after(0))
    assert (card["step"], card["finished"], card["calibration"]) == (8, False, None)
    factor = finished["calibration"]["factor"]
    for name, tensor in load(tmp_path)[0].state_dict().items():
        wanted = before[name] / factor if name.startswith("value.6.") else before[name]
        assert torch.allclose(tensor, wanted, atol=1e-6), name
    card = run(tmp_path)
    assert (card["step"], card["finished"]) == (12, True)
    assert card["calibration"] is not None
    steps = [line["step"] for line in read_metrics(tmp_path)]
    assert steps == sorted(steps)
    with pytest.raises(TrainingMismatchError, match="steps was 12, is None"):
        run(tmp_path, replace(CONFIG, steps=None, minutes=5.0))


def test_positions_without_moves_are_no_validation(tmp_path: Path) -> None:
    def nothing() -> Iterator[Batch]:
        return iter([])

    def train_with(out: Path, config: TrainConfig) -> dict[str, Any]:
        return train(
            config, TINY, stream(), out, validation=nothing, data={}, progress=silent, stop=never
        )

    card = train_with(tmp_path / "net", CONFIG)
    assert card["finished"]
    assert not [name for name in card["metrics"] if name.startswith("validation")]
    with pytest.raises(TrainConfigError, match="none of their positions has a known move"):
        train_with(tmp_path / "other", replace(CONFIG, validation_every_steps=2, patience=2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"config": replace(CONFIG, seed=5)}, "seed was 0, is 5"),
        ({"preset": replace(TINY, width=16)}, "preset field width differs"),
        ({"data": {"manifest": "xyz"}}, "the data are others"),
    ],
)
def test_another_run_is_refused_by_name(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    run(tmp_path, stop=after(2))
    with pytest.raises(TrainingMismatchError, match=message):
        run(tmp_path, **change)
    assert read_card(tmp_path)["step"] == 2


def test_threads_may_change_in_a_resumed_run_and_are_put_back(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    run(tmp_path, stop=after(2))
    assert run(tmp_path, replace(CONFIG, threads=2))["finished"]
    assert torch.get_num_threads() == before


def poisoned(at: int, spoil: Callable[[Batch], None]) -> Callable[[int], Iterator[Batch]]:
    def open_batches(step: int) -> Iterator[Batch]:
        for rows in stream()(step):
            if step == at:
                spoil(rows)
            yield rows
            step += 1

    return open_batches


def test_an_illegal_label_stops_the_run_and_keeps_the_last_save(tmp_path: Path) -> None:

    def spoil(rows: Batch) -> None:
        rows["planes"][0, 13:] = 0
        rows["planes"][0, 13] = 1
        rows["label"][0] = 4095

    with pytest.raises(IllegalTargetError, match="1 of 16 labels are no legal move"):
        run(tmp_path, replace(CONFIG, save_seconds=0.0), batches=poisoned(6, spoil))
    network, card = load(tmp_path)
    assert card["step"] == 6
    assert all(tensor.isfinite().all() for tensor in network.state_dict().values())
    assert run(tmp_path)["finished"]


def test_a_rate_that_is_too_high_stops_with_advice(tmp_path: Path) -> None:
    config = replace(CONFIG, steps=200, learning_rate=10.0, weight_decay=10.0, warmup=0.0)
    with pytest.raises(
        DivergedError, match=r"lower learning rate; .* keeps the state of its last save"
    ):
        run(tmp_path, config, batches=poisoned(3, lambda rows: None))
    load(tmp_path)


def test_batches_that_end_too_soon_are_named(tmp_path: Path) -> None:
    with pytest.raises(TrainingDataError, match="ended at step 3"):
        run(tmp_path, batches=lambda step: itertools.islice(stream()(step), 3))
    assert read_card(tmp_path)["step"] == 3


def test_a_directory_that_is_a_file_is_found_out_before_the_first_step(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot be made into a directory"):
        run(tmp_path / "file", batches=lambda step: pytest.fail("opened batches"))


def test_ticks_count_up_to_the_whole(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("model.training.loop.TICK_SECONDS", 0.0)
    ticks: list[Tick] = []
    run(tmp_path, progress=ticks.append)
    measuring = [tick for tick in ticks if "validating" in tick.values]
    assert [tick.done for tick in measuring] == [12]
    ticks = [tick for tick in ticks if tick not in measuring]
    assert [tick.done for tick in ticks] == list(range(1, 13))
    assert {tick.total for tick in ticks} == {12}
    figures = {"loss", "top1", "learning_rate"}
    assert set(ticks[0].values) == figures, "the first step compiles: its time is no speed"
    assert all(set(tick.values) == figures | {"positions_per_second"} for tick in ticks[1:])
    rates = [tick.values["learning_rate"] for tick in ticks]
    assert 0 < min(rates) == rates[-1] < max(rates) <= CONFIG.learning_rate, (
        "the schedule has come to its end"
    )


def test_minutes_end_a_run_and_resumes_add_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeClock(monkeypatch, seconds_per_step=0.25)
    config = replace(CONFIG, steps=None, minutes=0.025)
    half = run(tmp_path, config, stop=after(3))
    assert (half["finished"], half["step"], half["seconds"]) == (False, 3, 0.5), (
        "the first step compiles, and is not counted"
    )
    card = run(tmp_path, config)
    assert (card["finished"], card["step"], card["seconds"]) == (True, 8, 1.5)


def test_the_card_explains_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("model.training.loop.draw", draw)
    card = run(tmp_path)
    for name in (
        "preset",
        "parameters",
        "encoding_version",
        "moves_hash",
        "config",
        "torch",
        "commit",
        "device",
        "dtype",
    ):
        assert name in card, name
    assert card["dtype"] == "float32"
    assert card["data"] == {"manifest": "abc"}
    assert set(card["files"]) == {"weights"}
    picture = (tmp_path / "curves.png").read_bytes()
    assert picture.startswith(b"\x89PNG")


def test_kept_weights_are_the_average_of_the_steps(tmp_path: Path) -> None:
    """Replay three steps' averages by hand from runs that keep the raw weights (ema 0)."""
    raw = []
    for step in (0, 1, 2, 3):
        run(tmp_path / str(step), replace(CONFIG, ema=0.0), stop=after(step))
        raw.append(
            safetensors.torch.load_file(next((tmp_path / str(step)).glob(f"weights-{step}-*")))
        )
    run(tmp_path / "ema", replace(CONFIG, ema=0.2), stop=after(3))
    kept = safetensors.torch.load_file(next((tmp_path / "ema").glob("weights-3-*")))
    for name in ("stem.0.weight", "stem.1.running_mean"):
        average = raw[0][name]
        for step in (1, 2, 3):
            decay = min(0.2, (1 + step) / (10 + step))
            average = decay * average + (1 - decay) * raw[step][name]
        assert np.allclose(kept[name], average, atol=1e-6), name
    assert kept["stem.1.num_batches_tracked"] == 3


def test_bf16_learns_too(tmp_path: Path) -> None:
    card = run(tmp_path, replace(CONFIG, amp="bf16"))
    assert card["dtype"] == "bfloat16"
    assert np.isfinite(card["metrics"]["validation_cross_entropy"])


def test_a_run_that_continues_says_from_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(
        "model.training.loop.LOG.info", lambda text, *values: lines.append(text % values)
    )
    assert run(tmp_path, stop=after(5))["step"] == 5
    assert lines == []
    run(tmp_path)
    assert lines == ["continuing from step 5"]
