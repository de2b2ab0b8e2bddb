"""On a GPU: captured steps against single kernels, a resumed run, evaluators and an export.
`make gpu` runs these."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.progress import silent
from model.checkpoint import load
from model.data.playouts import playout_rows
from model.data.rows import Batch
from model.inference.evaluator import NetworkEvaluator, evaluator
from model.network.graphs import Graphs
from model.network.network import build
from model.network.presets import preset
from model.training import step as stepping
from model.training.config import TrainConfig
from model.training.loop import train
from model.training.monitor import mean_metrics, read_metrics
from model.training.step import new_run, prepare_parts, take_step
from tests.model.network.test_presets import small
from tests.model.synthetic import TINY

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
def some_batches() -> list[Batch]:
    rows = playout_rows(256 * BATCHES, seed=4)
    return [{name: one[step::BATCHES] for name, one in rows.items()} for step in range(BATCHES)]


def losses(config: TrainConfig) -> list[float]:
    """Return the mean loss of each 20 of 200 steps."""
    run = new_run(config, preset("fianchetto-human"))
    prepared = [prepare_parts(run, batch) for batch in some_batches()]
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
def noise() -> float:
    """Return how far two eager runs of one seed differ."""
    eager = replace(CONFIG, graphs=False)
    return largest_difference(losses(eager), losses(eager))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_captured_steps_learn_as_eager_ones(seed: int) -> None:
    """Sums on a GPU depend on the order of its threads, so two eager runs differ as well."""
    config = replace(CONFIG, seed=seed)
    captured, eager = losses(config), losses(replace(config, graphs=False))
    difference = largest_difference(captured, eager)
    print(f"\nseed {seed}: at most {difference:.4f} nats apart, eager runs {noise():.4f}")  # noqa: T201
    assert eager[-1] < eager[0] - 0.05, "it learns"
    assert difference <= max(0.02, 3 * noise())


def test_a_step_that_cannot_be_captured_is_run_kernel_by_kernel(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    average = stepping._update_average

    def average_and_wait(run: stepping.Run) -> None:
        average(run)
        float(run.average_weight)

    monkeypatch.setattr(stepping, "_update_average", average_and_wait)
    run = new_run(CONFIG, preset("fianchetto-human"))
    parts = prepare_parts(run, some_batches()[0])
    totals = [float(take_step(run, parts, step / 8)[0]) for step in range(8)]
    assert run.graphs is not None
    assert run.graphs.has_failed
    assert totals[-1] < totals[0]
    assert caplog.text.count("could not capture a graph") == 1


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    config = replace(CONFIG, steps=40, amp="off", batch_size=64, norm_rows=32)

    def open_batches(step: int) -> Iterator[Batch]:
        while True:
            batch = some_batches()[step % BATCHES]
            yield {name: column[:64] for name, column in batch.items()}
            step += 1

    def run_until(name: str, stop_after: int) -> dict[str, Any]:
        calls = iter(range(1000))
        options: dict[str, Any] = {"validation": None, "data": {}, "progress": silent}
        return train(
            config,
            TINY,
            open_batches,
            tmp_path / name,
            stop=lambda: next(calls) >= stop_after,
            **options,
        )

    whole = run_until("whole", 1000)
    assert run_until("parts", 17)["step"] == 17
    parts = run_until("parts", 1000)
    assert (parts["step"], parts["positions"]) == (whole["step"], whole["positions"])
    one, other = (load(tmp_path / name)[0].parameters() for name in ("whole", "parts"))
    one, other = (torch.cat([each.flatten() for each in weights]) for weights in (one, other))
    assert float((one - other).norm() / one.norm()) < 0.01
    waits = [line["data_wait"] for line in read_metrics(tmp_path / "whole") if "data_wait" in line]
    assert waits
    assert all(0 <= wait <= 1 for wait in waits)


def test_evaluations_are_those_of_the_processor_on_any_thread() -> None:
    network = build(small(preset("fianchetto-human")), 0)
    here = NetworkEvaluator(build(network.preset, 0), device="cpu", amp="off")
    there = NetworkEvaluator(network, device="cuda", amp="off")
    rows = playout_rows(300, seed=5)

    def compare(count: int) -> None:
        part = {name: column[-count:] for name, column in rows.items()}
        for one, other in zip(*(it(part["planes"], part) for it in (there, here)), strict=True):
            assert np.allclose(one, other, atol=1e-3)

    for count in (1, 5, 33, 300) * 2:  # captured at the second time
        compare(count)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(compare, [1, 7, 33, 40, 300, 299, 2, 64] * 3))
    assert isinstance(there.graphs, Graphs)
    assert len(there.graphs.captured) >= 4
    assert not there.graphs.has_failed


def test_a_network_of_a_gpu_exports_to_onnx(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="the extra `onnx` is not installed")
    from model.inference.export import export
    from model.inference.onnx_evaluator import open_export

    options: dict[str, Any] = {"validation": None, "data": {}, "progress": silent}
    row = replace(small(preset("fianchetto-human")), name="small-human")
    config = replace(CONFIG, steps=12)
    train(config, row, lambda _: iter(some_batches() * 2), tmp_path, stop=lambda: False, **options)
    batch = some_batches()[0]
    export(tmp_path, None, batch)
    exported, trained = open_export(tmp_path), evaluator(tmp_path, device="cuda", amp="off")
    for one, other in zip(*(it(batch["planes"], batch) for it in (exported, trained)), strict=True):
        assert np.allclose(one, other, atol=2e-3)
