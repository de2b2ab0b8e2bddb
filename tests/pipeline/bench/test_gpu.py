"""The benchmark of a GPU comes to its end on a CPU, with figures that agree with each other."""

from pathlib import Path

import pytest
import torch

from model.costs import size
from model.network.presets import preset
from pipeline.bench.gpu import GpuSettings, measure
from pipeline.bench.search import SIMULATIONS
from tests.pipeline.datasets import random_game

TINY = GpuSettings(
    presets=("fianchetto-xs", "self-learning"),
    player="fianchetto-xs",
    batch_size=4,
    seconds=0.01,
    games=2,
    plies=2,
    matrix=64,
    budget=600.0,
)


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gpu") / "dump.pgn"
    path.write_text("\n".join(random_game(seed) for seed in range(12)))
    return path


def test_it_comes_to_its_end_on_a_cpu(dump: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.compile", lambda network, **_: network)  # minutes on a CPU, and not what is tested
    found = measure(dump, device="cpu", settings=TINY)
    assert (found["device"], found["batch_size"]) == ("CPU", 4)
    assert found["matmul_tflops"] > 0
    assert found["feed_positions_per_second"] > 0
    rows = found["training"]
    assert [(row["preset"], row["compile"]) for row in rows] == [
        (name, compiled) for compiled in (False, True) for name in TINY.presets
    ]
    for row in rows:
        flops = row["positions_per_second"] * 3 * size(preset(row["preset"]))["flops"]
        assert row["tflops"] == pytest.approx(flops / 1e12, abs=1e-4)
        assert row["share_of_matmul"] >= 0
    assert (found["games"], found["simulations"]) == (2, SIMULATIONS)
    assert found["selfplay_moves_per_second"] > 0


def test_what_the_time_does_not_admit_is_said(dump: Path) -> None:
    settings = GpuSettings(**{name: getattr(TINY, name) for name in TINY.__slots__} | {"budget": 0.0})
    found = measure(dump, device="cpu", settings=settings)
    assert [row["skipped"] for row in found["training"]] == 4 * ["no time left"]


def test_a_step_that_needs_more_memory_is_said(dump: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("pipeline.bench.gpu.take_step", full)
    found = measure(dump, device="cpu", settings=TINY)
    assert {row["skipped"] for row in found["training"]} == {"4 positions need more memory"}
