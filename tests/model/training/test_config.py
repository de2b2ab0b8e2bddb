"""Training settings: mistakes by name, and rates at their turning points."""

from dataclasses import asdict, fields
from typing import Any, get_type_hints

import pytest

from model.training.config import (
    DEFAULT_PRESET,
    TrainConfig,
    TrainConfigError,
    changed_settings,
    resolve_optimizer,
)
from model.training.schedules import ema_decay, fraction_done, learning_rate, total_steps

NUMBERS = [
    name for name, kind in get_type_hints(TrainConfig).items() if kind in (float, float | None)
]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"steps": 5, "minutes": 1.0},
        {"steps": 5, "epochs": 1.0},
        {"epochs": 0.0},
        {"steps": 5, "optimizer": "adam"},
        {"steps": 5, "amp": "fp8"},
        {"steps": 5, "value_loss": "l1"},
        {"steps": 5, "label_smoothing": 1.0},
        {"steps": 5, "visits_temperature": 0.0},
        {"steps": 5, "eval_blend": -0.1},
        {"steps": 5, "momentum": 1.0},
        {"steps": 5, "drops": 0},
        {"steps": 5, "norm_rows": 1},
        {"steps": 5, "patience": 1},
        {"steps": 5, "patience": -1, "validation_every_steps": 1},
        {"steps": 5, "validation_every_steps": -1},
        {"steps": 0},
        {"minutes": float("nan")},
        {"steps": 5, "decay": "sudden"},
        {"steps": 5, "learning_rate": -1.0},
        {"steps": 5, "ema": 1.0},
        {"steps": 5, "batch_size": 1},
        {"steps": 5, "save_seconds": -1.0},
        *({"steps": 5, name: float("inf")} for name in NUMBERS),
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


def test_steps_fall_by_the_same_factor_to_the_final_rate() -> None:
    config = TrainConfig(steps=100, warmup=0.0, learning_rate=1.0, decay="step", final_rate=0.01)
    rates = [learning_rate(config, step / 100) for step in range(101)]
    assert sorted(set(rates), reverse=True) == pytest.approx([1.0, 0.1, 0.01])
    assert [rates.index(rate) for rate in sorted(set(rates), reverse=True)] == [0, 34, 67]
    nothing = TrainConfig(
        steps=100, warmup=0.0, learning_rate=1.0, decay="step", drops=1, final_rate=0.0
    )
    assert learning_rate(nothing, 0.9) == pytest.approx(1e-3)
    zero = TrainConfig(steps=100, warmup=0.0, learning_rate=1.0, decay="linear", final_rate=0.0)
    assert learning_rate(zero, 1.0) == 0.0


def test_epochs_are_steps_and_a_part_of_one_is_a_step() -> None:
    assert total_steps(TrainConfig(epochs=2.0, batch_size=10), 100) == 20
    assert total_steps(TrainConfig(epochs=1.0, batch_size=10), 101) == 11
    assert total_steps(TrainConfig(steps=7), 100) == 7
    assert total_steps(TrainConfig(minutes=7.0), 100) is None


def test_progress_is_by_steps_or_by_time() -> None:
    assert fraction_done(TrainConfig(steps=10), 10, 5, 1e9) == 0.5
    assert fraction_done(TrainConfig(minutes=2.0), None, 10**9, 30) == 0.25
    assert fraction_done(TrainConfig(minutes=2.0), None, 0, 121) == 1.0


def test_average_forgets_the_fresh_weights_first() -> None:
    config = TrainConfig(steps=10, ema=0.99)
    assert ema_decay(config, 0) == pytest.approx(0.1)
    assert ema_decay(config, 10**6) == 0.99
    assert ema_decay(TrainConfig(steps=10, ema=0.0), 50) == 0


def test_changes_are_named_and_threads_are_free() -> None:
    row = asdict(TrainConfig(steps=10))
    assert changed_settings(TrainConfig(steps=10, threads=3), row) == []
    assert changed_settings(TrainConfig(steps=10, seed=1), row) == ["seed was 0, is 1"]


@pytest.mark.parametrize("name", [field.name for field in fields(TrainConfig)])
def test_a_card_without_a_setting_was_trained_with_its_default(name: str) -> None:
    row = asdict(TrainConfig(steps=10))
    del row[name]
    assert changed_settings(TrainConfig(steps=10), row) == (
        [] if name != "steps" else ["steps was None, is 10"]
    )


def test_a_length_may_change_within_its_unit() -> None:
    row = asdict(TrainConfig(minutes=2.0))
    assert changed_settings(TrainConfig(minutes=3.0), row) == []
    assert len(changed_settings(TrainConfig(steps=3), row)) == 2


def test_an_optimizer_that_nobody_names_is_the_presets_usual_one() -> None:
    auto, named = TrainConfig(steps=10), TrainConfig(steps=10, optimizer="sgd")
    by = {
        name: resolve_optimizer(auto, name).optimizer
        for name in ("fianchetto-human", "fianchetto-xs", "chessmarro")
    }
    assert by == {"fianchetto-human": "muon", "fianchetto-xs": "adamw", "chessmarro": "adamw"}
    assert DEFAULT_PRESET in by
    assert resolve_optimizer(named, DEFAULT_PRESET) == named


@pytest.mark.parametrize(
    ("batch_size", "norm_rows", "wanted"),
    [
        (256, 128, 2),
        (2048, 128, 16),
        (2048, 4096, 1),
        (16, 128, 1),
        (384, 128, 3),
        (500, 128, 2),
        (500, 125, 4),
    ],
)
def test_microbatches_are_equal_and_have_at_least_the_norms_rows(
    batch_size: int, norm_rows: int, wanted: int
) -> None:
    """Whatever the device: the statistics of batch norms, and so what is learned, follow from the
    configuration."""
    for device in ("cpu", "cuda"):
        config = TrainConfig(steps=1, batch_size=batch_size, norm_rows=norm_rows, device=device)
        assert config.microbatches == wanted


def test_every_setting_has_its_sentence() -> None:
    import inspect

    source = inspect.getsource(TrainConfig)
    for field in fields(TrainConfig):
        after = source.split(f"    {field.name}: ", 1)[1].split("\n")[1]
        assert after.strip().startswith('"""'), field.name
