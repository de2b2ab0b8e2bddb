"""The code that a GPU captures, with fixed shapes and with numbers in tensors. On a processor, the
captured function is called instead, and its results must equal those of plain steps."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from model.data import rows as rows_module
from model.data.playouts import playout_rows
from model.data.rows import hash_step
from model.inference.evaluator import PADDED_SIZES, NetworkEvaluator
from model.network import graphs
from model.network.graphs import Graphs, Inputs
from model.network.network import build
from model.network.presets import preset
from model.training import step as stepping
from model.training.config import OptimizerName, TrainConfig, ema_decay, learning_rate
from model.training.step import Run, capture_steps, new_run, prepare_parts, take_step
from tests.model.network.test_presets import small
from tests.model.synthetic import perturb
from tests.model.training.test_loop import after, run, weights

CONFIG = TrainConfig(steps=8, batch_size=16, threads=1, amp="off", device="cpu", ema=0.9)
CPU = torch.device("cpu")


def plain_step(run: Run, batch: Any, fraction: float) -> torch.Tensor:
    """Take a step with unpadded moves, and with numbers instead of tensors."""
    config = run.config
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows_module, "pad_rows", lambda rows, *_: rows)
        parts = prepare_parts(run, batch)
    run.step_hash = hash_step(config.seed, run.step)  # type: ignore[assignment]
    totals = stepping._add_gradients(run, parts)
    nn.utils.clip_grad_norm_(run.network.parameters(), stepping.MAX_GRADIENT_NORM)
    for optimizer in run.optimizer.optimizers:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(config, fraction)
    run.optimizer.step()
    run.step += 1
    mine, raw = run.ema.state_dict(), run.network.state_dict()
    for name, tensor in mine.items():
        share = 1 - ema_decay(config, run.step) if tensor.is_floating_point() else 1
        tensor.copy_(torch.lerp(tensor.double(), raw[name].double(), share))
    return totals


@pytest.mark.parametrize(
    ("name", "optimizer", "groups"),
    [
        ("fianchetto-human", "muon", 2),
        ("fianchetto-human", "sgd", 1),
        ("chess-policy", "adamw", 1),
        ("self-learning", "adamw", 1),
    ],
)
def test_a_captured_step_equals_the_plain_step(
    name: str, optimizer: OptimizerName, groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stepping, "_count_groups", lambda *_: groups)
    config = replace(CONFIG, optimizer=optimizer, norm_rows=4, learning_rate=1e-3)
    captured, plain = (new_run(config, small(preset(name))) for _ in range(2))
    captured.graphs = capture_steps(captured)
    rows = playout_rows(16 * 8, seed=2)
    for step in range(8):
        # each shape comes twice, because it is captured at its second use
        part = {name: column[step % 4 :: 8] for name, column in rows.items()}
        found = take_step(captured, prepare_parts(captured, part), step / 8)
        expected = plain_step(plain, part, step / 8)
        assert torch.allclose(found, expected, rtol=2e-4, atol=2e-4), step
    assert captured.graphs.captured
    for one, other in ((captured.network, plain.network), (captured.ema, plain.ema)):
        for key, tensor in other.state_dict().items():
            assert torch.allclose(one.state_dict()[key].float(), tensor.float(), atol=2e-4), key


def test_captured_and_resumed_runs_end_with_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def new_captured_run(*arguments: Any) -> Run:
        captured_run = new_run(*arguments)
        captured_run.graphs = capture_steps(captured_run)
        return captured_run

    config, options = replace(CONFIG, steps=14), {"validation": None}
    plain = run(tmp_path / "plain", config, **options)
    monkeypatch.setattr("model.training.save.new_run", new_captured_run)
    captured = run(tmp_path / "captured", config, **options)
    assert run(tmp_path / "resumed", config, stop=after(6), **options)["step"] == 6
    resumed = run(tmp_path / "resumed", config, **options)
    assert weights(plain) == weights(captured) == weights(resumed)


def test_each_set_of_shapes_is_captured_once_and_the_least_recently_used_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(graphs, "MAX_GRAPHS", 2)
    calls: list[Inputs] = []

    def double(inputs: Inputs) -> tuple[torch.Tensor, ...]:
        calls.append(inputs)
        return (2 * inputs[0]["x"],)

    doubled = Graphs(double, CPU)
    for size in (1, 2, 3):
        given = {"x": torch.randn(size)}
        doubled([given])
        assert calls.pop()[0] is given, "the first call with a shape is not captured"
    for size in (1, 2, 1, 3, 1, 2):
        x = torch.randn(size)
        assert torch.equal(doubled([{"x": x}])[0], 2 * x)
        assert calls[-1][0]["x"] is not x
    static = [inputs[0]["x"].data_ptr() for inputs in calls]
    assert static[0] == static[2] == static[4], "a shape in use keeps its graph"
    assert len(doubled.captured) == 2
    assert len({id(inputs) for inputs in calls}) == 4, "size 3 replaces size 2"
    inputs = [{"x": torch.randn(4)}]
    doubled(inputs)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(doubled, inputs).result()
        assert calls[-1] is inputs, "the first call on each thread is not captured"
        pool.submit(doubled, inputs).result()
    assert calls[-1] is not inputs


def test_a_function_that_cannot_be_captured_still_runs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: Graphs, inputs: Inputs) -> None:
        raise RuntimeError("CUDA error: operation not permitted\nmore")

    monkeypatch.setattr(Graphs, "_capture", fail)
    doubled = Graphs(lambda inputs: (2 * inputs[0]["x"],), CPU)
    for _ in range(4):
        x = torch.randn(3)
        assert torch.equal(doubled([{"x": x}])[0], 2 * x)
    assert not doubled.captured
    assert caplog.text.count("could not capture a graph (CUDA error: operation not permitted)") == 1


@pytest.mark.parametrize("name", ["fianchetto-human", "chess-policy", "self-learning"])
def test_padding_a_batch_does_not_change_its_evaluations(name: str) -> None:
    network = build(small(preset(name)), 0)
    perturb(network, 0.05)
    plain, padded = (NetworkEvaluator(network, device="cpu", amp="off") for _ in range(2))
    padded.graphs = Graphs(padded._forward, CPU)
    rows = playout_rows(45, seed=3)
    for count in (1, 5, 33, 45, 40, 2):
        part = {name: column[:count] for name, column in rows.items()}
        outputs = (evaluate(part["planes"], part) for evaluate in (padded, plain))
        for one, other in zip(*outputs, strict=True):
            assert one.shape == other.shape
            assert np.allclose(one, other, atol=1e-5)
    assert padded.graphs.captured
    assert list(PADDED_SIZES) == sorted(PADDED_SIZES)
