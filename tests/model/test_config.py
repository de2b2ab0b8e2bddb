"""Training settings: mistakes by name, and rates at their turning points."""

from dataclasses import fields
from typing import Any

import pytest

from model.config import (
    TrainConfig,
    TrainConfigError,
    changed_settings,
    config_row,
    ema_decay,
    learning_rate,
    progressed,
)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"steps": 5, "minutes": 1.0},
        {"steps": 0},
        {"minutes": float("nan")},
        {"steps": 5, "decay": "sudden"},
        {"steps": 5, "learning_rate": -1.0},
        {"steps": 5, "ema": 1.0},
        {"steps": 5, "batch_size": 1},
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any]) -> None:
    with pytest.raises(TrainConfigError):
        TrainConfig(**settings)


def test_rate_rises_holds_its_peak_once_and_falls() -> None:
    config = TrainConfig(steps=100, warmup=0.1, learning_rate=1.0, final_rate=0.01)
    rates = [learning_rate(config, step / 100) for step in range(101)]
    assert rates[0] == pytest.approx(0.01)
    assert rates[5] == pytest.approx(0.5)
    assert rates[10] == pytest.approx(1.0)
    assert rates[55] == pytest.approx(0.505)
    assert rates[100] == pytest.approx(0.01)
    assert rates[10:] == sorted(rates[10:], reverse=True)
    linear = TrainConfig(steps=100, warmup=0.0, learning_rate=1.0, final_rate=0.0, decay="linear")
    assert learning_rate(linear, 0.25) == pytest.approx(0.75)
    flat = TrainConfig(steps=100, warmup=0.0, learning_rate=1.0, decay="none")
    assert learning_rate(flat, 0.9) == pytest.approx(1.0)


def test_progress_is_by_steps_or_by_time() -> None:
    assert progressed(TrainConfig(steps=10), 5, 1e9) == 0.5
    assert progressed(TrainConfig(minutes=2.0), 10**9, 30) == 0.25
    assert progressed(TrainConfig(minutes=2.0), 0, 121) == 1.0


def test_average_forgets_the_fresh_weights_first() -> None:
    config = TrainConfig(steps=10, ema=0.99)
    assert ema_decay(config, 0) == pytest.approx(0.1)
    assert ema_decay(config, 10**6) == 0.99
    assert ema_decay(TrainConfig(steps=10, ema=0.0), 50) == 0


def test_changes_are_named_and_threads_are_free() -> None:
    row = config_row(TrainConfig(steps=10))
    assert changed_settings(TrainConfig(steps=10, threads=3), row) == []
    assert changed_settings(TrainConfig(steps=10, seed=1), row) == ["seed was 0, is 1"]


def test_every_setting_has_its_sentence() -> None:
    import inspect

    source = inspect.getsource(TrainConfig)
    for field in fields(TrainConfig):
        after = source.split(f"    {field.name}: ", 1)[1].split("\n")[1]
        assert after.strip().startswith('"""'), field.name
