"""The path that a GPU captures: fixed shapes, and numbers in tensors. On a processor the captured
function is called, so its results must equal those of the plain path."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from engine.progress import silent
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
from model.training.loop import train
from model.training.step import Run, capture_steps, new_run, prepare_parts, take_step
from tests.model.network.test_presets import small
from tests.model.synthetic import TINY, stream

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
    one, other = (new_run(config, small(preset(name))) for _ in range(2))
    one.graphs = capture_steps(one)
    rows = playout_rows(16 * 8, seed=2)
    for step in range(8):
        # the same shapes twice: they are run once before they are captured
        part = {name: column[step % 4 :: 8] for name, column in rows.items()}
        fraction = step / 8
        found = take_step(one, prepare_parts(one, part), fraction)
        wanted = plain_step(other, part, fraction)
        assert torch.allclose(found, wanted, rtol=2e-4, atol=2e-4), step
    assert one.graphs.captured
    for mine, plain in ((one.network, other.network), (one.ema, other.ema)):
        for key, tensor in plain.state_dict().items():
            assert torch.allclose(mine.state_dict()[key].float(), tensor.float(), atol=2e-4), key


def test_captured_and_resumed_runs_end_with_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def capture(*arguments: Any) -> Run:
        run = new_run(*arguments)
        run.graphs = capture_steps(run)
        return run

    def run_until(name: str, stop_after: int = 100) -> dict[str, Any]:
        calls = iter(range(1000))
        stop = lambda: next(calls) >= stop_after  # noqa: E731
        options: dict[str, Any] = {"validation": None, "data": {}, "progress": silent}
        return train(
            replace(CONFIG, steps=14), TINY, stream(), tmp_path / name, stop=stop, **options
        )

    plain = run_until("plain")
    with monkeypatch.context() as patch:
        patch.setattr("model.training.save.new_run", capture)
        captured = run_until("captured")
        assert run_until("resumed", 6)["step"] == 6
        resumed = run_until("resumed")
    hashes = {card["files"]["weights"]["sha256"] for card in (plain, captured, resumed)}
    assert len(hashes) == 1


def test_each_set_of_shapes_is_captured_once_and_the_oldest_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(graphs, "MAX_GRAPHS", 2)
    seen: list[Inputs] = []

    def double(inputs: Inputs) -> tuple[torch.Tensor, ...]:
        seen.append(inputs)
        return (2 * inputs[0]["x"],)

    run = Graphs(double, CPU)
    for size in (1, 2, 3):
        given = {"x": torch.randn(size)}
        run([given])
        assert seen.pop()[0] is given, "new shapes are run once before they are captured"
    for size in (1, 2, 1, 3, 1, 2):
        given = torch.randn(size)
        assert torch.equal(run([{"x": given}])[0], 2 * given)
        assert seen[-1][0]["x"] is not given
    static = [inputs[0]["x"].data_ptr() for inputs in seen]
    assert static[0] == static[2] == static[4], "the shape that is used stays"
    assert len(run.captured) == 2
    assert len({id(inputs) for inputs in seen}) == 4, "2 was dropped for 3"
    given_4 = [{"x": torch.randn(4)}]
    run(given_4)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(run, given_4).result()
        assert seen[-1] is given_4, "each thread runs new shapes once"
        pool.submit(run, given_4).result()
    assert seen[-1] is not given_4


def test_without_captures_the_function_still_runs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: Graphs, inputs: Inputs) -> None:
        raise RuntimeError("CUDA error: operation not permitted\nmore")

    monkeypatch.setattr(Graphs, "_capture", fail)
    run = Graphs(lambda inputs: (2 * inputs[0]["x"],), CPU)
    for _ in range(4):
        given = torch.randn(3)
        assert torch.equal(run([{"x": given}])[0], 2 * given)
    assert not run.captured
    assert caplog.text.count("could not capture a graph (CUDA error: operation not permitted)") == 1


@pytest.mark.parametrize("name", ["fianchetto-human", "chess-policy", "self-learning"])
def test_padding_a_batch_does_not_change_its_evaluations(name: str) -> None:
    network = build(small(preset(name)), 0)
    with torch.no_grad():
        for weight in network.parameters():
            weight += 0.05 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
    plain, padded = (NetworkEvaluator(network, device="cpu", amp="off") for _ in range(2))
    padded.graphs = Graphs(padded._forward, CPU)
    rows = playout_rows(45, seed=3)
    for count in (1, 5, 33, 45, 40, 2):
        part = {name: column[:count] for name, column in rows.items()}
        for one, other in zip(
            padded(part["planes"], part), plain(part["planes"], part), strict=True
        ):
            assert one.shape == other.shape
            assert np.allclose(one, other, atol=1e-5)
    assert padded.graphs.captured
    assert list(PADDED_SIZES) == sorted(PADDED_SIZES)
