"""A step in microbatches: gradients add up, norms see a microbatch's rows alone, and an interrupted
step changes nothing."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from engine.encoding.views import NO_LABEL
from model.data.playouts import playout_rows
from model.network.preset import Preset
from model.network.presets import preset, presets
from model.training import step as stepping
from model.training.config import TrainConfig
from model.training.distributed import World, WorldError
from model.training.monitor import mean_figures, validate
from model.training.step import COLUMNS, DivergedError, Run, _backward, new_run, prepare, take_step
from model.training.stopping import StopCheck, WorkInterrupted
from tests.model.synthetic import TINY, batch
from tests.model.training.test_loop import CONFIG


def make_run(config: TrainConfig, groups: int, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Make a run whose parts have several microbatches, as on a GPU."""
    with monkeypatch.context() as patched:
        patched.setattr(stepping, "_count_groups", lambda *_: groups)
        return new_run(config, TINY)


@pytest.mark.parametrize(("count", "groups"), [(1, 1), (3, 1), (12, 1), (3, 3), (12, 4)])
def test_norms_see_a_microbatchs_own_rows_and_keep_the_mean_of_all(
    count: int, groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = batch(24)
    together = make_run(replace(CONFIG, batch_size=24, norm_rows=24 // count), groups, monkeypatch)
    assert len(prepare(together, rows)) == count // groups
    take_step(together, prepare(together, rows), 0.5)
    alone = []
    for number in range(count):
        one = new_run(replace(CONFIG, batch_size=24 // count), TINY)
        take_step(
            one, prepare(one, {name: column[number::count] for name, column in rows.items()}), 0.5
        )
        alone.append(dict(one.network.named_buffers()))
    found = [
        name for name, buffer in together.network.named_buffers() if buffer.is_floating_point()
    ]
    assert len(found) > 4
    for name in found:
        mean = torch.stack([buffers[name] for buffers in alone]).mean(0)
        assert torch.allclose(together.network.get_buffer(name), mean, atol=1e-6), name
        assert count == 1 or not torch.equal(alone[0][name], alone[1][name]), name
    assert together.network.get_buffer("stem.1.num_batches_tracked") == 1, "a step counts once"


@pytest.mark.parametrize("groups", [1, 20, 60])
def test_many_microbatches_add_up(groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against each microbatch by a network of its own."""
    config, rows = replace(CONFIG, batch_size=120, norm_rows=2), batch(120)
    run = make_run(config, groups, monkeypatch)
    prepared = prepare(new_run(config, TINY), rows)
    assert len(prepared) == config.microbatches == 60
    wanted = [torch.zeros_like(weight) for weight in run.network.parameters()]
    for columns in prepared:
        alone = new_run(config, TINY)
        _backward(alone, columns)
        for total, weight in zip(wanted, alone.network.parameters(), strict=True):
            total += weight.grad if weight.grad is not None else 0.0
    stepping._add_gradients(run, prepare(run, rows), stepping.NEVER_STOP)
    for total, weight in zip(wanted, run.network.parameters(), strict=True):
        assert weight.grad is not None
        assert torch.allclose(weight.grad, total, atol=1e-6)


@pytest.mark.parametrize(
    ("batch_size", "norm_rows", "processes", "device", "groups"),
    [
        (2048, 128, 1, "cuda", 16),
        (8192, 128, 1, "cuda", 16),
        (2048, 128, 1, "cpu", 1),
        (2048, 128, 4, "cuda", 4),
        (384, 128, 1, "cuda", 3),
        (1408, 128, 1, "cuda", 11),
        (2944, 128, 1, "cuda", 1),  # 23 microbatches
        (4096, 2048, 1, "cuda", 1),
    ],
)
def test_a_part_on_a_gpu_has_as_many_microbatches_as_fit(
    batch_size: int, norm_rows: int, processes: int, device: str, groups: int
) -> None:
    config = replace(CONFIG, batch_size=batch_size, norm_rows=norm_rows)
    assert stepping._count_groups(config, World(0, processes, 0), torch.device(device)) == groups


def test_an_interrupted_step_leaves_the_run_as_it_was() -> None:
    run = new_run(replace(CONFIG, norm_rows=4), TINY)
    before = {name: tensor.clone() for name, tensor in run.network.state_dict().items()}
    polls = iter([False, False, True])
    check = StopCheck(lambda: next(polls))
    check.check = lambda: check() and interrupt()  # type: ignore[method-assign, func-returns-value]
    with pytest.raises(WorkInterrupted):
        take_step(run, prepare(run, batch(16)), 0.5, check)
    assert run.step == 0
    assert all(
        torch.equal(run.network.state_dict()[name], tensor) for name, tensor in before.items()
    )
    assert all(weight.grad is None for weight in run.network.parameters())


def interrupt() -> None:
    raise WorkInterrupted


def test_rows_are_dealt_to_microbatches_as_to_processes() -> None:
    """Microbatches 0 and 1 of process 0 of two are 0 and 2 of one process: a run has the same among
    one or many."""
    rows = {"planes": np.arange(16)}
    one = [part["planes"].tolist() for part in stepping._deal(rows, 4)]
    two = [
        part["planes"].tolist()
        for rank in (0, 1)
        for part in stepping._deal({"planes": np.arange(16)[rank::2]}, 2)
    ]
    assert [two[0], two[2], two[1], two[3]] == one


def test_processes_that_cannot_share_the_microbatches_equally_are_refused() -> None:
    with pytest.raises(
        WorldError,
        match="a batch of 64 is 4 microbatches of at least 16 rows, which 3 processes cannot",
    ):
        new_run(replace(CONFIG, batch_size=64, norm_rows=16), TINY, World(0, 3, 0))


def test_figures_of_the_policy_are_those_of_rows_whose_move_is_a_target() -> None:
    sums = dict.fromkeys(COLUMNS, 8.0) | {"top1": 3.0, "legal_mass": 2.0, "known": 4.0}
    figures = mean_figures(torch.tensor([sums[name] for name in COLUMNS]), 16)
    assert figures == {
        "loss": 0.5,
        "policy_loss": 0.5,
        "value_loss": 0.5,
        "legal_mass": 0.5,
        "top1": 0.75,
    }
    assert mean_figures(torch.zeros(len(COLUMNS)), 16).keys() == {
        "loss",
        "policy_loss",
        "value_loss",
    }


def small(name: str) -> Preset:
    """Give a preset with the parts of another and few weights."""
    row = preset(name)
    optional = {
        field: 4
        for field in ("policy_width", "moves_left", "move_features_width")
        if getattr(row, field)
    }
    return replace(row, width=8, blocks=1, squeeze=4, value_width=2, value_hidden=8, **optional)


@pytest.mark.parametrize("known", [0, 1])
@pytest.mark.parametrize("name", presets())
def test_rows_without_a_move_train_every_network(name: str, known: int) -> None:
    rows = playout_rows(16)
    rows["label"][known:], rows["promotion"][known:] = NO_LABEL, 0
    rows["eval"] = np.full(16, 50, np.int16)
    run = new_run(TrainConfig(steps=1, batch_size=16, device="cpu", amp="off"), small(name))
    figures = mean_figures(take_step(run, prepare(run, rows), 0.5), 16)
    assert np.isfinite(list(figures.values())).all()
    assert ("top1" in figures) == bool(known)
    assert all(bool(weight.isfinite().all()) for weight in run.network.parameters())
    assert (
        validate(run, [{column: values[:known] for column, values in rows.items()}][:known], 16)[
            "positions"
        ]
        == known
    )


def test_what_is_not_finite_is_found_at_the_next_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(stepping.CHECK_STEPS, "cpu", 4)
    run, rows = new_run(replace(CONFIG, batch_size=24), TINY), batch(24)
    with torch.no_grad():
        next(run.network.parameters()).fill_(float("nan"))
    run.step = 1
    for _ in range(3):
        take_step(run, prepare(run, rows), 0.5)
    with pytest.raises(DivergedError, match="not finite at step 4"):
        take_step(run, prepare(run, rows), 0.5)
