"""Calibration: the factor of the value's logits, the weights that a run saves, and early stopping by both heads."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.progress import never, silent
from model.card import CARD
from model.checkpoint import CardError, load, read_card
from model.inference.evaluator import NetworkEvaluator
from model.metrics import rows, summary
from model.network.preset import Preset
from model.training.calibration import fit_factor, scale_value, scale_wdl
from model.training.config import TrainConfig
from model.training.loop import train
from model.training.monitor import RunMonitor
from tests.model.synthetic import TINY, TINY_SEED, Batch, batch, stream

pytestmark = pytest.mark.usefixtures("asked_before_steps_only")


def outcomes(count: int, seed: int, *, draws: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return true chances of win, draw, loss and results drawn by them, as distributions; both `[N, 3]`."""
    random = np.random.default_rng(seed)
    logits = random.normal(size=(count, 3))
    chances = np.exp(logits) * [1, draws, 1]
    chances /= chances.sum(1, keepdims=True)
    drawn = (random.random((count, 1)) > chances.cumsum(1)).sum(1).clip(max=2)
    return torch.from_numpy(chances), torch.eye(3)[drawn]


@pytest.mark.parametrize("factor", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("draws", [True, False])
def test_a_value_that_is_too_sure_or_too_modest_gets_its_factor_back(factor: float, draws: bool) -> None:
    chances, results = outcomes(60_000, 1, draws=draws)
    assert fit_factor(scale_wdl(chances, 1 / factor), results) == pytest.approx(factor, rel=0.04)


def test_the_factor_is_the_best_of_a_grid() -> None:
    """The grid minimizes the log loss with the prior, written out without torch."""
    chances, results = outcomes(3000, 2, draws=True)
    sure = scale_wdl(chances, 3.0)
    logits, hits = np.log(sure.numpy()), results.numpy() > 0

    def loss(factor: float) -> float:
        powers = np.exp(factor * logits)
        return float(
            -np.log((powers / powers.sum(1, keepdims=True))[hits]).mean() * 3000 / 64 + math.log(factor) ** 2 / 2
        )

    grid = np.geomspace(0.05, 4.0, 2000)
    assert fit_factor(sure, results) == pytest.approx(min(grid, key=loss), rel=0.004)


def test_one_game_changes_a_value_less_than_many() -> None:
    chances, results = outcomes(64, 3, draws=True)
    sure = scale_wdl(chances, 4.0)
    one, many = fit_factor(sure, results), fit_factor(sure.repeat(100, 1), results.repeat(100, 1))
    assert many < 0.35
    assert 0.45 < one < 1.0


def memorizing(out: Path, preset: Preset) -> tuple[dict[str, Any], Batch]:
    """Train on results that no position explains, validate on others; return the card and the validation rows."""
    random, unseen = np.random.default_rng(0), batch(512, 9)
    unseen["result"] = random.integers(-1, 2, 512).astype(np.int8)
    config = TrainConfig(
        steps=60, batch_size=16, threads=1, amp="off", device="cpu", learning_rate=0.02, value_weight=1.0, ema=0.9
    )
    card = train(
        config,
        preset,
        stream(16, distinct=2),
        out,
        validation=lambda: iter([unseen]),
        data={},
        progress=silent,
        stop=never,
    )
    return card, unseen


@pytest.mark.parametrize("preset", [TINY, TINY_SEED], ids=lambda row: row.name)
def test_a_run_saves_a_calibrated_value_and_warns_that_it_memorizes(tmp_path: Path, preset: Preset) -> None:
    card, unseen = memorizing(tmp_path, replace(preset, width=16))
    calibration, network = card["calibration"], load(tmp_path)[0]

    def brier() -> float:
        answer = NetworkEvaluator(network, device="cpu", amp="off")(unseen["planes"], unseen)
        return summary(rows(*answer, unseen))["value_brier"]

    assert calibration["factor"] < 0.5
    assert card["metrics"]["validation_value_brier"] == calibration["value_brier"] == pytest.approx(brier(), abs=1e-5)
    scale_value(network, 1 / calibration["factor"])
    assert calibration["value_brier_before"] == pytest.approx(brier(), abs=1e-4)
    assert calibration["value_brier"] < calibration["value_brier_before"] - 0.01
    assert "the value memorizes results" in card["message"]


def test_a_value_that_does_not_learn_results_is_not_fitted_to_them(tmp_path: Path) -> None:
    unseen = batch(512, 9)
    config = TrainConfig(steps=9, batch_size=16, threads=1, amp="off", device="cpu", results=False)
    options: dict[str, Any] = {"validation": lambda: iter([unseen]), "data": {}, "progress": silent, "stop": never}
    card = train(config, TINY, stream(), tmp_path, **options)
    assert card["calibration"] is None
    network, _ = load(tmp_path)
    answer = NetworkEvaluator(network, device="cpu", amp="off")(unseen["planes"], unseen)
    brier = summary(rows(*answer, unseen))["value_brier"]
    assert card["metrics"]["validation_value_brier"] == pytest.approx(brier, abs=1e-5)
    assert not any("calibrated" in name or "factor" in name for name in card["metrics"])


def test_a_run_without_validation_is_not_calibrated(tmp_path: Path) -> None:
    config = TrainConfig(steps=2, batch_size=16, threads=1, amp="off", device="cpu")
    card = train(config, TINY, stream(), tmp_path, validation=None, data={}, progress=silent, stop=never)
    assert card["calibration"] is None
    assert "warning" not in card["message"]


@pytest.mark.parametrize("factor", [0.0, -1.0, 1e9, "0.3", True, None, [1.0]])
def test_a_factor_that_no_run_writes_is_refused(tmp_path: Path, factor: object) -> None:
    config = TrainConfig(steps=2, batch_size=16, threads=1, amp="off", device="cpu")
    train(config, TINY, stream(), tmp_path, validation=None, data={}, progress=silent, stop=never)
    card = json.loads((tmp_path / CARD).read_bytes())
    card["calibration"] = {"factor": 0.3, "value_brier_before": 0.25, "value_brier": 0.21}
    (tmp_path / CARD).write_text(json.dumps(card))
    read_card(tmp_path)
    card["calibration"]["factor"] = factor
    (tmp_path / CARD).write_text(json.dumps(card))
    with pytest.raises(CardError, match="factor"):
        read_card(tmp_path)


def test_early_stopping_sees_the_value_as_well_as_the_policy() -> None:
    monitor, config = RunMonitor(), TrainConfig(steps=9, validation_every_steps=1, patience=2)
    course = [(2.00, 0.20), (1.99, 0.25), (1.985, 0.23)]  # the policy still gains, the value loses more
    better = [
        monitor.add_validation({"cross_entropy": policy, "calibrated_value_brier": value}, step)
        for step, (policy, value) in enumerate(course)
    ]
    assert better == [True, False, False]
    assert monitor.best_step == 0
    assert monitor.is_exhausted(config)
