"""Calibration: the factor of the value's logits, and the weights that a run saves."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from engine.progress import never, silent
from model.calibration import fit_factor, scale_value, scale_wdl
from model.checkpoint import load
from model.inference.evaluator import NetworkEvaluator
from model.metrics import average_metrics, output_metrics
from model.network.network import Network
from model.network.preset import Preset
from model.training.config import TrainConfig
from model.training.loop import train
from tests.model.synthetic import TINY, TINY_SEED, batch, stream

pytestmark = pytest.mark.usefixtures("poll_stop_before_steps_only")

UNSEEN = batch(512, 9) | {"result": np.random.default_rng(0).integers(-1, 2, 512).astype(np.int8)}


def games_of(
    games: int, seed: int, *, sureness: float, draws: bool = True
) -> tuple[torch.Tensor, torch.Tensor, NDArray[np.integer]]:
    """Return a network's win, draw, loss in games of 4 positions, their results, and games'
    numbers.

    Positions of a game share its result and much of their value. Logits are `sureness` times those
    that would be calibrated.
    """
    random = np.random.default_rng(seed)
    true_G3 = random.normal(size=(games, 3)) + np.log([1, 1 if draws else 1e-30, 1])
    chances_G3 = np.exp(true_G3) / np.exp(true_G3).sum(1, keepdims=True)
    result_G = (random.random((games, 1)) > chances_G3.cumsum(1)).sum(1).clip(max=2)
    game_N = np.repeat(np.arange(games), 4)
    logits_N3 = sureness * true_G3[game_N]
    wdl_N3 = np.exp(logits_N3 - logits_N3.max(1, keepdims=True))
    wdl_N3 /= wdl_N3.sum(1, keepdims=True)
    return torch.from_numpy(wdl_N3), torch.eye(3)[result_G][game_N], game_N


@pytest.mark.parametrize("draws", [True, False])
@pytest.mark.parametrize("sureness", [3.0, 0.5])
def test_many_games_reveal_the_factor(sureness: float, draws: bool) -> None:
    found = fit_factor(*games_of(3000, 1, sureness=sureness, draws=draws))
    assert found == pytest.approx(1 / sureness, rel=0.1)


def test_few_or_calibrated_games_leave_the_factor_at_one() -> None:
    for games in (1, 12):
        assert fit_factor(*games_of(games, 1, sureness=6.0)) == 1.0
    factors = [fit_factor(*games_of(71, seed, sureness=1.0)) for seed in range(40)]
    assert factors.count(1.0) >= 36


@pytest.mark.parametrize("games", [20, 71])
def test_factors_of_small_samples_do_not_hurt_unseen_games(games: int) -> None:
    """Without any overconfidence nearly nothing is lost on average; with some, something is won."""
    gains = {}
    for sureness in (1.0, 1.3, 2.5):
        wdl_N3, target_N3, _ = games_of(5000, 10**6, sureness=sureness)
        factors = [fit_factor(*games_of(games, seed, sureness=sureness)) for seed in range(20)]
        losses = {
            factor: -float((target_N3 * scale_wdl(wdl_N3, factor).log())[::4].sum(1).mean())
            for factor in {1.0, *factors}
        }
        gains[sureness] = [losses[1.0] - losses[factor] for factor in factors]
    means = {sureness: float(np.mean(gain)) for sureness, gain in gains.items()}
    assert means[1.0] > -0.001
    assert means[1.3] > -0.001
    assert means[2.5] > (0.01 if games > 20 else -0.001)
    assert min(map(min, gains.values())) > -0.06


def trained(out: Path, preset: Preset, config: TrainConfig, *, validates: bool = True) -> Any:
    options: dict[str, Any] = {"data": {}, "progress": silent, "stop": never}
    options["validation"] = (lambda: iter([UNSEEN])) if validates else None
    return train(config, preset, stream(16, distinct=2), out, **options)


def brier_of(network: Network) -> float:
    answer = NetworkEvaluator(network, device="cpu", amp="off")(UNSEEN["planes"], UNSEEN)
    return average_metrics(output_metrics(*answer, UNSEEN))["value_brier"]


CONFIG = TrainConfig(
    steps=40,
    batch_size=16,
    threads=1,
    amp="off",
    device="cpu",
    learning_rate=0.02,
    value_weight=1.0,
    ema=0.9,
)


@pytest.mark.parametrize("preset", [TINY, TINY_SEED], ids=lambda row: row.name)
def test_a_run_saves_a_calibrated_value_and_warns_of_memorizing(
    tmp_path: Path, preset: Preset
) -> None:
    """It is trained on results that no position explains, and validated on others."""
    card = trained(tmp_path, replace(preset, width=16), CONFIG)
    calibration, network = card["calibration"], load(tmp_path)[0]
    assert calibration["factor"] < 0.5
    assert card["metrics"]["validation_value_brier"] == calibration["value_brier"]
    assert calibration["value_brier"] == pytest.approx(brier_of(network), abs=1e-5)
    scale_value(network, 1 / calibration["factor"])
    assert calibration["value_brier_before"] == pytest.approx(brier_of(network), abs=1e-4)
    assert calibration["value_brier"] < calibration["value_brier_before"] - 0.01
    assert "the value head has memorized results" in card["message"]


def test_a_value_that_does_not_learn_results_is_not_calibrated(tmp_path: Path) -> None:
    card = trained(tmp_path, TINY, replace(CONFIG, steps=9, results=False))
    assert card["calibration"] is None
    brier = brier_of(load(tmp_path)[0])
    assert card["metrics"]["validation_value_brier"] == pytest.approx(brier, abs=1e-5)
    assert not any("calibrated" in name or "factor" in name for name in card["metrics"])
    unmeasured = trained(tmp_path / "other", TINY, replace(CONFIG, steps=2), validates=False)
    assert unmeasured["calibration"] is None
