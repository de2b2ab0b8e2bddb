"""A step in microbatches: gradients add up, and norms use the rows of one microbatch at a time."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from engine.encoding.views import NO_LABEL
from model.data.playouts import playout_rows
from model.network.device import select_dtype
from model.network.presets import presets
from model.training import step as stepping
from model.training.config import TrainConfig
from model.training.monitor import mean_metrics, validate
from model.training.step import (
    SUMMED_METRICS,
    DivergedError,
    Run,
    new_run,
    prepare_parts,
    take_step,
)
from tests.model.network.test_presets import small
from tests.model.synthetic import TINY, batch

CONFIG = TrainConfig(steps=8, batch_size=16, threads=1, amp="off", device="cpu")


def new_run_with_groups(config: TrainConfig, groups: int, patch: pytest.MonkeyPatch) -> Run:
    """Make a run whose parts have several microbatches, as on a GPU."""
    with patch.context() as patched:
        patched.setattr(stepping, "_count_groups", lambda *_: groups)
        return new_run(config, TINY)


@pytest.mark.parametrize(("count", "groups"), [(1, 1), (3, 1), (3, 3), (12, 4)])
def test_norms_normalize_a_microbatch_and_average_over_all(
    count: int, groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, config = batch(24), replace(CONFIG, batch_size=24, norm_rows=24 // count)
    together = new_run_with_groups(config, groups, monkeypatch)
    assert len(prepare_parts(together, rows)) == count // groups
    take_step(together, prepare_parts(together, rows), 0.5)
    alone = []
    for number in range(count):
        one = new_run(replace(CONFIG, batch_size=24 // count), TINY)
        part = {name: column[number::count] for name, column in rows.items()}
        take_step(one, prepare_parts(one, part), 0.5)
        alone.append(dict(one.network.named_buffers()))
    for name, buffer in together.network.named_buffers():
        if buffer.is_floating_point():
            mean = torch.stack([buffers[name] for buffers in alone]).mean(0)
            assert torch.allclose(buffer, mean, atol=1e-6), name
            assert count == 1 or not torch.equal(alone[0][name], alone[1][name]), name
    assert together.network.get_buffer("stem.1.num_batches_tracked") == 1, "a step counts once"


@pytest.mark.parametrize("groups", [1, 4])
def test_gradients_of_microbatches_add_up(groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each microbatch's gradients are also computed by a network of its own."""
    config, rows = replace(CONFIG, batch_size=24, norm_rows=2), batch(24)
    run = new_run_with_groups(config, groups, monkeypatch)
    parts = prepare_parts(new_run(config, TINY), rows)
    assert len(parts) == config.microbatches == 12
    expected = [torch.zeros_like(weight) for weight in run.network.parameters()]
    for part in parts:
        alone = new_run(config, TINY)
        stepping._backward(alone, part)
        for total, weight in zip(expected, alone.network.parameters(), strict=True):
            total += weight.grad if weight.grad is not None else 0.0
    stepping._add_gradients(run, prepare_parts(run, rows))
    for total, weight in zip(expected, run.network.parameters(), strict=True):
        assert weight.grad is not None
        assert torch.allclose(weight.grad, total, atol=1e-6)


def test_top1_and_legal_mass_are_means_over_rows_with_a_target_move() -> None:
    sums = dict.fromkeys(SUMMED_METRICS, 8.0) | {"top1": 3.0, "legal_mass": 2.0, "known": 4.0}
    means = mean_metrics(torch.tensor([sums[name] for name in SUMMED_METRICS]), 16)
    losses = dict.fromkeys(("loss", "policy_loss", "value_loss"), 0.5)
    assert means == losses | {"legal_mass": 0.5, "top1": 0.75}
    assert mean_metrics(torch.zeros(len(SUMMED_METRICS)), 16).keys() == losses.keys()


@pytest.mark.parametrize("known", [0, 1])
@pytest.mark.parametrize("name", ["fianchetto-human", "chess-policy-only", "self-learning"])
def test_rows_without_a_move_can_train_every_kind_of_network(name: str, known: int) -> None:
    rows = playout_rows(16)
    rows["label"][known:], rows["promotion"][known:] = NO_LABEL, 0
    rows["eval"] = np.full(16, 50, np.int16)
    run = new_run(replace(CONFIG, steps=1), small(presets()[name]))
    means = mean_metrics(take_step(run, prepare_parts(run, rows), 0.5), 16)
    assert np.isfinite(list(means.values())).all()
    assert ("top1" in means) == bool(known)
    assert all(bool(weight.isfinite().all()) for weight in run.network.parameters())
    rows_with_move = [{column: values[:known] for column, values in rows.items()}][:known]
    assert validate(run, rows_with_move, 16)["positions"] == known


def test_a_loss_that_is_not_finite_is_reported_in_its_step() -> None:
    run, rows = new_run(CONFIG, TINY), batch(16)
    take_step(run, prepare_parts(run, rows), 0.5)
    with torch.no_grad():
        next(run.network.parameters()).fill_(float("nan"))
    with pytest.raises(DivergedError, match="not finite at step 1"):
        take_step(run, prepare_parts(run, rows), 0.5)


AMD = {"cpu_name": "AMD EPYC 9R45", "avx512_bf16": True}
INTEL = {"cpu_name": "Intel Xeon", "avx512_bf16": True}


@pytest.mark.parametrize(
    ("amp", "features", "is_bf16"),
    [
        ("auto", AMD, True),
        ("off", AMD, False),
        ("auto", INTEL | {"amx_bf16": True}, True),
        ("auto", INTEL, False),  # a virtual machine that hides AMX
        ("bf16", INTEL, True),
        ("auto", {"sve_bf16": True}, True),
        ("auto", {}, False),
    ],
)
def test_auto_is_bf16_only_where_it_is_faster(
    monkeypatch: pytest.MonkeyPatch, amp: str, features: dict[str, object], is_bf16: bool
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: features)
    assert (select_dtype(amp, torch.device("cpu")) == torch.bfloat16) == is_bf16
