"""Calibration: the factor of the value's logits, the weights that a run saves, and early stopping
by both heads."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

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
def test_many_games_give_a_value_that_is_too_sure_or_too_modest_its_factor(
    sureness: float, draws: bool
) -> None:
    assert fit_factor(*games_of(3000, 1, sureness=sureness, draws=draws)) == pytest.approx(
        1 / sureness, rel=0.1
    )


def test_few_games_and_games_that_show_nothing_keep_the_value() -> None:
    assert fit_factor(*games_of(12, 1, sureness=6.0)) == 1.0
    one = games_of(1, 1, sureness=6.0)
    assert fit_factor(*one) == 1.0
    factors = [fit_factor(*games_of(71, seed, sureness=1.0)) for seed in range(40)]
    assert factors.count(1.0) >= 36


def log_loss(factor: float, wdl_N3: torch.Tensor, target_N3: torch.Tensor) -> float:
    return float(-(target_N3 * scale_wdl(wdl_N3, factor).log()).sum(1).mean())


@pytest.mark.parametrize("games", [20, 71])
def test_over_many_small_samples_unseen_games_lose_nothing(games: int) -> None:
    """Without any overconfidence nearly nothing is lost on average; with some, something is won."""
    gains = {}
    for sureness in (1.0, 1.3, 2.5):
        wdl_N3, target_N3, _ = games_of(5000, 10**6, sureness=sureness)
        before = log_loss(1.0, wdl_N3[::4], target_N3[::4])
        gains[sureness] = [
            before
            - log_loss(
                fit_factor(*games_of(games, seed, sureness=sureness)), wdl_N3[::4], target_N3[::4]
            )
            for seed in range(40)
        ]
    means = {sureness: float(np.mean(gain)) for sureness, gain in gains.items()}
    assert means[1.0] > -0.001
    assert means[1.3] > -0.001
    assert means[2.5] > (0.01 if games > 20 else -0.001)
    assert min(map(min, gains.values())) > -0.06


def memorizing(out: Path, preset: Preset) -> tuple[dict[str, Any], Batch]:
    """Train on results that no position explains, validate on others; return the card and the
    validation rows."""
    random, unseen = np.random.default_rng(0), batch(512, 9)
    unseen["result"] = random.integers(-1, 2, 512).astype(np.int8)
    config = TrainConfig(
        steps=60,
        batch_size=16,
        threads=1,
        amp="off",
        device="cpu",
        learning_rate=0.02,
        value_weight=1.0,
        ema=0.9,
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
def test_a_run_saves_a_calibrated_value_and_warns_that_it_memorizes(
    tmp_path: Path, preset: Preset
) -> None:
    card, unseen = memorizing(tmp_path, replace(preset, width=16))
    calibration, network = card["calibration"], load(tmp_path)[0]

    def brier() -> float:
        answer = NetworkEvaluator(network, device="cpu", amp="off")(unseen["planes"], unseen)
        return summary(rows(*answer, unseen))["value_brier"]

    assert calibration["factor"] < 0.5
    assert (
        card["metrics"]["validation_value_brier"]
        == calibration["value_brier"]
        == pytest.approx(brier(), abs=1e-5)
    )
    scale_value(network, 1 / calibration["factor"])
    assert calibration["value_brier_before"] == pytest.approx(brier(), abs=1e-4)
    assert calibration["value_brier"] < calibration["value_brier_before"] - 0.01
    assert "the value memorizes results" in card["message"]


def test_a_value_that_does_not_learn_results_is_not_fitted_to_them(tmp_path: Path) -> None:
    unseen = batch(512, 9)
    config = TrainConfig(steps=9, batch_size=16, threads=1, amp="off", device="cpu", results=False)
    options: dict[str, Any] = {
        "validation": lambda: iter([unseen]),
        "data": {},
        "progress": silent,
        "stop": never,
    }
    card = train(config, TINY, stream(), tmp_path, **options)
    assert card["calibration"] is None
    network, _ = load(tmp_path)
    answer = NetworkEvaluator(network, device="cpu", amp="off")(unseen["planes"], unseen)
    brier = summary(rows(*answer, unseen))["value_brier"]
    assert card["metrics"]["validation_value_brier"] == pytest.approx(brier, abs=1e-5)
    assert not any("calibrated" in name or "factor" in name for name in card["metrics"])


def test_a_run_without_validation_is_not_calibrated(tmp_path: Path) -> None:
    config = TrainConfig(steps=2, batch_size=16, threads=1, amp="off", device="cpu")
    card = train(
        config, TINY, stream(), tmp_path, validation=None, data={}, progress=silent, stop=never
    )
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
    # the policy still gains, the value loses more
    course = [(2.00, 0.20), (1.99, 0.25), (1.985, 0.23)]
    better = [
        monitor.add_validation({"cross_entropy": policy, "calibrated_value_brier": value}, step)
        for step, (policy, value) in enumerate(course)
    ]
    assert better == [True, False, False]
    assert monitor.best_step == 0
    assert monitor.is_exhausted(config)
