"""Training settings: errors name the setting, and rates are checked at their turning points."""

import shutil
import subprocess
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pytest

from model.training.config import (
    TrainConfig,
    TrainConfigError,
    ema_decay,
    fraction_done,
    learning_rate,
    list_changed_settings,
    resolve_optimizer,
    total_steps,
)
from model.training.save import _read_commit


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({}, "exactly one of"),
        ({"steps": 5, "minutes": 1.0}, "exactly one of"),
        ({"epochs": 0.0}, "epochs"),
        ({"minutes": float("nan")}, "minutes"),
        ({"steps": 5, "learning_rate": float("inf")}, "learning_rate"),
        ({"steps": 5, "optimizer": "adam"}, "optimizer"),
        ({"steps": 5, "patience": 1}, "set validation_every_steps"),
        ({"steps": 5, "search_value_share": 0.5}, "no effect with teach=policy"),
        ({"steps": 5, "search_value_share": 0.5, "teach": "auto"}, "no effect with teach=auto"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], word: str) -> None:
    with pytest.raises(TrainConfigError, match=word):
        TrainConfig(**settings)


def test_the_learning_rate_warms_up_and_decays() -> None:
    config = TrainConfig(steps=100, warmup=0.1, learning_rate=1.0, final_rate=0.01)
    rates = [learning_rate(config, step / 100) for step in range(101)]
    points = [rates[at] for at in (0, 5, 10, 55, 100)]
    assert points == pytest.approx([0.01, 0.5, 1.0, 0.505, 0.01])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    flat = TrainConfig(steps=100, warmup=0.0, learning_rate=1.0, decay="none")
    assert learning_rate(flat, 0.9) == pytest.approx(1.0)


def test_step_decay_reaches_the_final_rate() -> None:
    options: dict[str, Any] = {"steps": 100, "warmup": 0.0, "learning_rate": 1.0, "decay": "step"}
    config = TrainConfig(**options, final_rate=0.01)
    rates = [learning_rate(config, step / 100) for step in range(101)]
    assert sorted(set(rates), reverse=True) == pytest.approx([1.0, 0.1, 0.01])
    assert [rates.index(rate) for rate in sorted(set(rates), reverse=True)] == [0, 34, 67]
    nothing = TrainConfig(**options, drops=1, final_rate=0.0)
    assert learning_rate(nothing, 0.9) == pytest.approx(1e-3)


def test_epochs_are_rounded_up_to_steps() -> None:
    assert total_steps(TrainConfig(epochs=2.0, batch_size=10), 100) == 20
    assert total_steps(TrainConfig(epochs=1.0, batch_size=10), 101) == 11
    assert total_steps(TrainConfig(minutes=7.0), 100) is None
    assert fraction_done(TrainConfig(steps=10), 10, 5, 1e9) == 0.5
    assert fraction_done(TrainConfig(minutes=2.0), None, 10**9, 30) == 0.25


def test_the_average_soon_forgets_the_initial_weights() -> None:
    config = TrainConfig(steps=10, ema=0.99)
    assert ema_decay(config, 0) == pytest.approx(0.1)
    assert ema_decay(config, 10**6) == 0.99
    assert ema_decay(TrainConfig(steps=10, ema=0.0), 50) == 0


def test_changed_settings_are_named_except_lengths_and_threads() -> None:
    row = asdict(TrainConfig(minutes=2.0))
    assert list_changed_settings(TrainConfig(minutes=3.0, threads=3), row) == []
    assert list_changed_settings(TrainConfig(minutes=2.0, seed=1), row) == ["seed was 0, is 1"]
    assert len(list_changed_settings(TrainConfig(steps=3), row)) == 2
    for field in fields(TrainConfig):  # a setting that an older card lacks had its default
        older = {name: value for name, value in row.items() if name != field.name}
        changes = list_changed_settings(TrainConfig(minutes=2.0), older)
        assert len(changes) == (field.name == "minutes"), field.name


def test_optimizer_auto_depends_on_the_preset() -> None:
    auto, named = TrainConfig(steps=10), TrainConfig(steps=10, optimizer="sgd")
    assert resolve_optimizer(auto, "fianchetto-human").optimizer == "muon"
    assert resolve_optimizer(auto, "chessmarro").optimizer == "adamw"
    assert resolve_optimizer(named, "fianchetto-human") == named


@pytest.mark.parametrize(
    ("batch_size", "norm_rows", "count"),
    [(256, 128, 2), (2048, 4096, 1), (16, 128, 1), (384, 128, 3), (500, 128, 2), (500, 125, 4)],
)
def test_microbatches_are_equal_and_have_at_least_norm_rows(
    batch_size: int, norm_rows: int, count: int
) -> None:
    config = TrainConfig(steps=1, batch_size=batch_size, norm_rows=norm_rows)
    assert config.microbatches == count


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_the_commit_of_a_changed_tree_is_dirty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("model.training.save.CODE_ROOT", tmp_path)
    read_commit = _read_commit.__wrapped__  # without its cache

    def git(*words: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
        command = ["git", "-C", str(tmp_path), *identity, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init")
    assert read_commit() is None
    (tmp_path / "code.py").write_text("1")
    git("add", "code.py")
    git("commit", "-m", "one")
    head = git("rev-parse", "HEAD")
    (tmp_path / "untracked").touch()
    assert read_commit() == head
    (tmp_path / "code.py").write_text("22")
    assert read_commit() == f"{head}-dirty"
