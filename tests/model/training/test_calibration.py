"""Calibration: the fitted factor, and the calibrated weights that a run saves."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from model.calibration import fit_factor, scale_value, scale_wdl
from model.checkpoint import load
from model.inference.evaluator import NetworkEvaluator
from model.metrics import average_metrics, output_metrics
from model.network.network import Network
from model.network.preset import Preset
from tests.model.synthetic import TINY, TINY_TANH, batch, stream
from tests.model.training.test_loop import CONFIG as LOOP_CONFIG
from tests.model.training.test_loop import run

pytestmark = pytest.mark.usefixtures("poll_stop_before_steps_only")

UNSEEN = batch(512, 9) | {"result": np.random.default_rng(0).integers(-1, 2, 512).astype(np.int8)}


def simulate_games(
    games: int, seed: int, *, overconfidence: float, draws: bool = True
) -> tuple[torch.Tensor, torch.Tensor, NDArray[np.integer]]:
    """Return win, draw, loss, results and game numbers of positions, four in each game.

    The value's logits are `overconfidence` times the calibrated ones.
    """
    random = np.random.default_rng(seed)
    true_G3 = random.normal(size=(games, 3)) + np.log([1, 1 if draws else 1e-30, 1])
    chances_G3 = np.exp(true_G3) / np.exp(true_G3).sum(1, keepdims=True)
    result_G = (random.random((games, 1)) > chances_G3.cumsum(1)).sum(1).clip(max=2)
    game_N = np.repeat(np.arange(games), 4)
    logits_N3 = overconfidence * true_G3[game_N]
    wdl_N3 = np.exp(logits_N3 - logits_N3.max(1, keepdims=True))
    wdl_N3 /= wdl_N3.sum(1, keepdims=True)
    return torch.from_numpy(wdl_N3), torch.eye(3)[result_G][game_N], game_N


@pytest.mark.parametrize("draws", [True, False])
@pytest.mark.parametrize("overconfidence", [3.0, 0.5])
def test_the_factor_is_found_from_many_games(overconfidence: float, draws: bool) -> None:
    factor = fit_factor(*simulate_games(3000, 1, overconfidence=overconfidence, draws=draws))
    assert factor == pytest.approx(1 / overconfidence, rel=0.1)


def test_few_or_calibrated_games_leave_the_factor_at_one() -> None:
    for games in (1, 12):
        assert fit_factor(*simulate_games(games, 1, overconfidence=6.0)) == 1.0
    factors = [fit_factor(*simulate_games(71, seed, overconfidence=1.0)) for seed in range(40)]
    assert factors.count(1.0) >= 36


@pytest.mark.parametrize("games", [20, 71])
def test_factors_of_small_samples_do_not_hurt_unseen_games(games: int) -> None:
    gains = {}
    for overconfidence in (1.0, 1.3, 2.5):
        wdl_N3, target_N3, _ = simulate_games(5000, 10**6, overconfidence=overconfidence)
        factors = [
            fit_factor(*simulate_games(games, seed, overconfidence=overconfidence))
            for seed in range(20)
        ]
        losses = {
            factor: -float((target_N3 * scale_wdl(wdl_N3, factor).log())[::4].sum(1).mean())
            for factor in {1.0, *factors}
        }
        gains[overconfidence] = [losses[1.0] - losses[factor] for factor in factors]
    means = {overconfidence: float(np.mean(gain)) for overconfidence, gain in gains.items()}
    assert means[1.0] > -0.001
    assert means[1.3] > -0.001
    assert means[2.5] > (0.01 if games > 20 else -0.001)
    assert min(map(min, gains.values())) > -0.06


CONFIG = replace(LOOP_CONFIG, steps=40, learning_rate=0.02, value_weight=1.0, ema=0.9)
OPTIONS: dict[str, Any] = {"batches": stream(distinct=2), "validation": lambda: iter([UNSEEN])}


def measure_brier(network: Network) -> float:
    outputs = NetworkEvaluator(network, device="cpu", amp="off")(UNSEEN["planes"], UNSEEN)
    return average_metrics(output_metrics(*outputs, UNSEEN))["value_brier"]


@pytest.mark.parametrize("preset", [TINY, TINY_TANH], ids=lambda row: row.name)
def test_a_run_saves_a_calibrated_value_and_warns_of_memorized_results(
    tmp_path: Path, preset: Preset
) -> None:
    """The results of the validation rows are random, so memorizing others does not help."""
    card = run(tmp_path, CONFIG, replace(preset, width=16), **OPTIONS)
    calibration, network = card["calibration"], load(tmp_path)[0]
    assert calibration["factor"] < 0.5
    assert card["metrics"]["validation_value_brier"] == calibration["value_brier"]
    assert calibration["value_brier"] == pytest.approx(measure_brier(network), abs=1e-5)
    scale_value(network, 1 / calibration["factor"])
    assert calibration["value_brier_before"] == pytest.approx(measure_brier(network), abs=1e-4)
    assert calibration["value_brier"] < calibration["value_brier_before"] - 0.01
    assert "the value head has memorized results" in card["message"]


def test_a_value_that_does_not_learn_results_is_not_calibrated(tmp_path: Path) -> None:
    card = run(tmp_path, replace(CONFIG, steps=9, results=False), **OPTIONS)
    assert card["calibration"] is None
    brier = measure_brier(load(tmp_path)[0])
    assert card["metrics"]["validation_value_brier"] == pytest.approx(brier, abs=1e-5)
    assert not any("calibrated" in name or "factor" in name for name in card["metrics"])
    not_validated = run(tmp_path / "other", replace(CONFIG, steps=2), validation=None)
    assert not_validated["calibration"] is None
