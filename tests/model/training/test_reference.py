"""Runs near a reference policy: the divergence by its definition, its effect on a run, and which reference is used."""

import copy
import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.encoding.planes import legal_mask
from engine.progress import silent
from model.checkpoint import load
from model.data.outputs import flatten_policy
from model.data.playouts import playout_rows
from model.inference.evaluator import NetworkEvaluator
from model.network.conditioning import draw_of
from model.network.network import build
from model.network.preset import Preset
from model.training.config import TrainConfig, TrainConfigError
from model.training.loop import train
from model.training.metrics_log import read_metrics
from model.training.objective import divergence
from model.training.precision import autocast
from model.training.reference import ReferencePolicy, ReferencePolicyError
from model.training.save import TrainingMismatchError
from model.training.schedules import reference_kl_weight
from model.training.step import new_run, prepare, take_step
from model.training.targets import inputs_and_targets, step_columns
from tests.model.synthetic import TINY, TINY_SEED, Batch, batch, stream

pytestmark = pytest.mark.usefixtures("asked_before_steps_only")

CONFIG = TrainConfig(steps=8, batch_size=16, threads=1, amp="off", device="cpu", report_every_steps=1)
TINY_FACTORED = replace(TINY, name="tiny-factored", view="planes18", moves="factored", policy="factored")
TINY_AZ = replace(TINY, name="tiny-az", view="planes19", moves="az4672")
CPU = torch.device("cpu")


def run(out: Path, config: TrainConfig, reference: Path | None = None, **options: Any) -> dict[str, Any]:
    calls, stop_after = itertools.count(), options.pop("stop_after", 10**9)
    batches = options.pop("batches", stream())
    return train(
        config,
        options.pop("preset", TINY),
        batches,
        out,
        validation=None,
        data={},
        progress=silent,
        stop=lambda: next(calls) >= stop_after,
        reference=reference,
        **options,
    )


def by_definition(seed_BA: Tensor, logits_BA: Tensor, legal_BA: Tensor) -> list[float]:
    """Give each row's divergence by torch's own function, over its legal moves alone and in float64."""
    found = []
    for seed, logits, legal in zip(seed_BA.double(), logits_BA.double(), legal_BA, strict=True):
        p, q = seed[legal].log_softmax(0), logits[legal].log_softmax(0)
        found.append(float(torch.nn.functional.kl_div(q, p, reduction="sum", log_target=True)))
    return found


def test_the_divergence_is_the_textbooks() -> None:
    seed = torch.tensor([[math.log(0.5), math.log(0.25), 9.0, math.log(0.25)]])
    logits = torch.tensor([[math.log(0.125), math.log(0.75), -9.0, math.log(0.125)]])
    legal = torch.tensor([[True, True, False, True]])
    by_hand = 0.5 * math.log(4) + 0.25 * math.log(1 / 3) + 0.25 * math.log(2)
    assert float(divergence(seed, logits, legal)) == pytest.approx(by_hand, rel=1e-6)
    assert by_definition(seed, logits, legal) == pytest.approx([by_hand])
    assert float(divergence(seed, seed + 3, legal)) == pytest.approx(0, abs=1e-6)


def test_its_gradient_is_the_difference_of_the_policies_and_illegal_moves_have_none() -> None:
    chance = torch.Generator().manual_seed(4)
    seed, logits = (torch.randn(6, 4096, generator=chance) * 3 for _ in range(2))
    legal = torch.rand(6, 4096, generator=chance) < 0.01
    illegal = (~legal).nonzero()[0]
    seed[tuple(illegal)], logits[tuple(illegal)] = 60.0, -60.0
    logits.requires_grad_()
    found = divergence(seed, logits, legal)
    assert found.tolist() == pytest.approx(by_definition(seed, logits.detach(), legal), rel=1e-4)
    found.sum().backward()
    p, q = (it.detach().masked_fill(~legal, float("-inf")).softmax(1) for it in (seed, logits))
    assert logits.grad is not None
    assert torch.allclose(logits.grad, q - p, atol=1e-6)


@pytest.mark.parametrize(
    ("preset", "amp"),
    [(TINY, "off"), (TINY, "bf16"), (TINY_SEED, "off"), (TINY_FACTORED, "off"), (TINY_AZ, "off")],
    ids=lambda it: it.name if isinstance(it, Preset) else it,
)
def test_a_step_counts_it_in_the_presets_own_moves(preset: Preset, amp: Any) -> None:
    config = replace(CONFIG, amp=amp, reference_kl_weight=0.5, batch_size=12, norm_rows=6)
    rows: Batch = playout_rows(12)
    reference = ReferencePolicy(build(preset, 5).eval().requires_grad_(False), "seed", "0" * 64, CPU, torch.float32)
    started = new_run(config, preset, reference=reference)
    candidate = copy.deepcopy(started.network)
    wanted: list[float] = []
    for first in (0, 1):
        part = {name: column[first::2] for name, column in rows.items()}
        read, targets = inputs_and_targets(
            preset, step_columns(config, preset, part, CPU), started.dtype, draw=draw_of(config.seed, 0)
        )
        with torch.no_grad(), autocast(CPU, started.dtype):
            wanted += by_definition(
                flatten_policy(reference.network(read)[0]), flatten_policy(candidate(read)[0]), targets.legal
            )
    totals = dict(zip(started.columns, take_step(started, prepare(started, rows), 0.0).tolist(), strict=True))
    plain = new_run(replace(config, reference_kl_weight=0.0), preset)
    without = dict(zip(plain.columns, take_step(plain, prepare(plain, rows), 0.0).tolist(), strict=True))
    close = 1e-4 if amp == "off" else 0.02
    assert sum(wanted) > 0.5
    assert totals["reference_kl"] == pytest.approx(sum(wanted), rel=close)
    assert totals["loss"] == pytest.approx(without["loss"] + 0.5 * sum(wanted), rel=close)
    assert "reference_kl" not in without


def test_the_weight_goes_straight_from_its_first_to_its_last() -> None:
    config = TrainConfig(steps=1, reference_kl_weight=0.1, reference_kl_final=0.02)
    assert [reference_kl_weight(config, part) for part in (0, 0.25, 0.5, 1)] == pytest.approx([0.1, 0.08, 0.06, 0.02])


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Make two checkpoints that have learned a little, each something else."""
    folder = tmp_path_factory.mktemp("seeds")
    for number in range(2):
        run(folder / f"seed-{number}", replace(CONFIG, steps=30, learning_rate=0.02, ema=0.5, seed=number))
    return [folder / f"seed-{number}" for number in range(2)]


def test_without_weight_a_run_is_the_one_without_a_reference_to_the_bit(seeds: list[Path], tmp_path: Path) -> None:
    plain, named = run(tmp_path / "plain", CONFIG), run(tmp_path / "named", CONFIG, seeds[0])
    pulled = run(tmp_path / "pulled", replace(CONFIG, reference_kl_final=0.1), seeds[0])
    assert plain["files"]["weights"]["sha256"] == named["files"]["weights"]["sha256"]
    assert plain["files"]["weights"]["sha256"] != pulled["files"]["weights"]["sha256"]
    assert plain["reference"] is named["reference"] is None
    assert "reference_kl" not in named["metrics"]


def far_from(seed: Path, out: Path, rows: Batch) -> float:
    """Measure how far a checkpoint's policy is from the seed's on some rows: mean divergence in nats."""
    legal = torch.from_numpy(legal_mask(rows["planes"]))
    policies = [torch.from_numpy(NetworkEvaluator(load(it)[0], device="cpu")(rows["planes"])[0]) for it in (seed, out)]
    return float(np.mean(by_definition(*policies, legal)))


def test_a_heavy_weight_keeps_the_policy_and_says_how_near(seeds: list[Path], tmp_path: Path) -> None:
    rows = batch(16, 77)
    config = replace(CONFIG, steps=40, learning_rate=0.01, ema=0.5)
    options: dict[str, Any] = {"batches": lambda step: itertools.repeat(rows), "start": seeds[0]}
    run(tmp_path / "free", config, **options)
    card = run(
        tmp_path / "held", replace(config, reference_kl_weight=30.0, reference_kl_final=30.0), seeds[0], **options
    )
    free, held = (far_from(seeds[0], tmp_path / name, rows) for name in ("free", "held"))
    assert held < 0.2 * free
    assert card["reference"] == {"name": "seed-0", "weights_sha256": load(seeds[0])[1]["files"]["weights"]["sha256"]}
    logged = [line["reference_kl"] for line in read_metrics(tmp_path / "held")]
    assert len(logged) == 40
    assert all(0 <= value < free for value in logged)


def test_another_reference_does_not_continue_a_run(seeds: list[Path], tmp_path: Path) -> None:
    config = replace(CONFIG, reference_kl_weight=0.1)
    whole = run(tmp_path / "whole", config, seeds[0])
    run(tmp_path / "parts", config, seeds[0], stop_after=3)
    with pytest.raises(TrainingMismatchError, match="the reference policy is another"):
        run(tmp_path / "parts", config, seeds[1])
    parts = run(tmp_path / "parts", config, seeds[0])
    assert parts["files"]["weights"]["sha256"] == whole["files"]["weights"]["sha256"]


def test_a_reference_must_be_there_and_of_the_same_preset(seeds: list[Path], tmp_path: Path) -> None:
    config = replace(CONFIG, reference_kl_weight=0.1)
    with pytest.raises(TrainConfigError, match="keep a run near the checkpoint"):
        run(tmp_path / "out", config)
    with pytest.raises(
        ReferencePolicyError, match=r"seed-0 is of another preset \(name, view, .* cannot be the reference of tiny-seed"
    ):
        run(tmp_path / "out", config, seeds[0], preset=TINY_SEED)
    assert not (tmp_path / "out").exists()
