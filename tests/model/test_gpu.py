"""On a GPU, captured steps, resumed runs, evaluators and exports agree with the plain ones.

`make gpu` runs these tests.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from model.checkpoint import load
from model.data.playouts import playout_rows
from model.data.rows import Batch
from model.inference.evaluator import NetworkEvaluator, evaluator
from model.network.graphs import Graphs
from model.network.network import build
from model.network.presets import preset
from model.training import step as stepping
from model.training.config import TrainConfig
from model.training.monitor import mean_metrics, read_metrics
from model.training.step import new_run, prepare_parts, take_step
from tests.model.network.test_presets import small
from tests.model.synthetic import stream
from tests.model.training.test_loop import after, run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU"),
]
CONFIG = TrainConfig(steps=200, batch_size=256, device="cuda")
BATCHES = 8


@pytest.fixture(autouse=True)
def exact_convolutions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@cache
def make_batches() -> list[Batch]:
    rows = playout_rows(256 * BATCHES, seed=4)
    return [{name: one[step::BATCHES] for name, one in rows.items()} for step in range(BATCHES)]


def train_losses(config: TrainConfig) -> list[float]:
    """Take 200 steps, and return the mean loss of each 20."""
    run = new_run(config, preset("fianchetto-human"))
    prepared = [prepare_parts(run, batch) for batch in make_batches()]
    sums = []
    for step in range(200):
        sums.append(take_step(run, prepared[step % BATCHES], step / 200).clone())
    assert (run.graphs is not None and len(run.graphs.captured) > 0) == config.graphs
    run.graphs = None
    return [
        mean_metrics(torch.stack(sums[at : at + 20]).sum(0), 20 * 256)["loss"]
        for at in range(0, 200, 20)
    ]


def largest_difference(one: list[float], other: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


@cache
def measure_noise() -> float:
    """Return the difference between two eager runs with the same seed."""
    eager = replace(CONFIG, graphs=False)
    return largest_difference(train_losses(eager), train_losses(eager))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_captured_steps_learn_like_eager_steps(seed: int) -> None:
    """Sums on a GPU depend on the order of its threads, so two eager runs differ as well."""
    config = replace(CONFIG, seed=seed)
    captured, eager = train_losses(config), train_losses(replace(config, graphs=False))
    difference, noise = largest_difference(captured, eager), measure_noise()
    print(f"\nseed {seed}: differs by at most {difference:.4f} nats, eager runs by {noise:.4f}")  # noqa: T201
    assert eager[-1] < eager[0] - 0.05, "it learns"
    assert difference <= max(0.02, 3 * noise)


def test_a_step_that_cannot_be_captured_is_run_kernel_by_kernel(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    update_average = stepping._update_average

    def average_and_wait(run: stepping.Run) -> None:
        update_average(run)
        float(run.average_weight)  # a capture must not wait for the GPU

    monkeypatch.setattr(stepping, "_update_average", average_and_wait)
    run = new_run(CONFIG, preset("fianchetto-human"))
    parts = prepare_parts(run, make_batches()[0])
    totals = [float(take_step(run, parts, step / 8)[0]) for step in range(8)]
    assert run.graphs is not None
    assert run.graphs.has_failed
    assert totals[-1] < totals[0]
    assert caplog.text.count("could not capture a graph") == 1


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    config = replace(CONFIG, steps=40, amp="off", batch_size=64, norm_rows=32)
    options: dict[str, Any] = {"batches": stream(64, distinct=BATCHES), "validation": None}
    whole = run(tmp_path / "whole", config, **options)
    assert run(tmp_path / "parts", config, stop=after(17), **options)["step"] == 17
    parts = run(tmp_path / "parts", config, **options)
    assert (parts["step"], parts["positions"]) == (whole["step"], whole["positions"])
    one, other = (
        torch.cat([weight.flatten() for weight in load(tmp_path / name)[0].parameters()])
        for name in ("whole", "parts")
    )
    assert float((one - other).norm() / one.norm()) < 0.01
    waits = [line["data_wait"] for line in read_metrics(tmp_path / "whole") if "data_wait" in line]
    assert waits
    assert all(0 <= wait <= 1 for wait in waits)


def test_evaluations_on_any_thread_equal_those_of_the_cpu() -> None:
    row = small(preset("fianchetto-human"))
    cpu, gpu = (
        NetworkEvaluator(build(row, 0), device=device, amp="off") for device in ("cpu", "cuda")
    )
    rows = playout_rows(300, seed=5)

    def compare(count: int) -> None:
        part = {name: column[-count:] for name, column in rows.items()}
        for one, other in zip(*(it(part["planes"], part) for it in (gpu, cpu)), strict=True):
            assert np.allclose(one, other, atol=1e-3)

    for count in (1, 5, 33, 300) * 2:  # the second call is captured
        compare(count)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(compare, [1, 7, 33, 40, 300, 299, 2, 64] * 3))
    assert isinstance(gpu.graphs, Graphs)
    assert len(gpu.graphs.captured) >= 4
    assert not gpu.graphs.has_failed


def test_a_network_trained_on_a_gpu_exports_to_onnx(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="the extra `onnx` is not installed")
    from model.inference.export import export
    from model.inference.onnx_evaluator import open_export

    row = replace(small(preset("fianchetto-human")), name="small-human")
    batches = make_batches()
    run(
        tmp_path,
        replace(CONFIG, steps=12),
        row,
        batches=lambda _: iter(batches * 2),
        validation=None,
    )
    batch = batches[0]
    export(tmp_path, None, batch)
    exported, trained = open_export(tmp_path), evaluator(tmp_path, device="cuda", amp="off")
    for one, other in zip(*(it(batch["planes"], batch) for it in (exported, trained)), strict=True):
        assert np.allclose(one, other, atol=2e-3)
