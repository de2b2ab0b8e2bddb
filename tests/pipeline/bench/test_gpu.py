"""The benchmark of a GPU comes to its end on a CPU, with figures that agree with each other."""

from pathlib import Path

import pytest
import torch

from model.costs import size
from model.network.presets import preset
from pipeline.bench.gpu import PEAK_TFLOPS, GpuSettings, measure
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
    assert (found["device"], found["peak_tflops"], found["batch_size"]) == ("CPU", None, 4)
    assert found["matmul_tflops"] > 0
    assert min(found["feed"].values()) > 0
    rows = found["training"]
    assert [(row["preset"], row["compile"]) for row in rows] == [
        (name, compiled) for compiled in (False, True) for name in TINY.presets
    ]
    for row in rows:
        flops = row["positions_per_second"] * 3 * size(preset(row["preset"]))["flops"]
        assert row["tflops"] == pytest.approx(flops / 1e12, abs=1e-4)
        assert (row["mfu"], row["peak_memory_mib"]) == (None, None)
    playing = found["playing"]
    assert (playing["games"], playing["simulations"]) == (2, SIMULATIONS)
    assert playing["selfplay_moves_per_second"] > 0
    assert all(
        name in found["text"] for name in ("fianchetto-xs", "self-learning", "evaluations/s", "self-play moves/s")
    )


def test_what_the_time_does_not_admit_is_said(dump: Path) -> None:
    settings = GpuSettings(**{name: getattr(TINY, name) for name in TINY.__slots__} | {"budget": 0.0})
    found = measure(dump, device="cpu", settings=settings)
    assert [row["skipped"] for row in found["training"]] == 4 * ["the time was over"]
    assert found["text"].count("the time was over") == 4


def test_peaks_are_those_of_the_data_sheets() -> None:
    names = {"NVIDIA H100 PCIe": 756.0, "NVIDIA H100 80GB HBM3": 989.0, "NVIDIA L40S": 362.0, "NVIDIA L4": 121.0}
    for device, tflops in names.items():
        assert next(peak for name, peak in PEAK_TFLOPS.items() if name in device) == tflops


def test_a_step_that_needs_more_memory_is_said(dump: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("pipeline.bench.gpu.take_step", full)
    found = measure(dump, device="cpu", settings=TINY)
    assert {row["skipped"] for row in found["training"]} == {"4 positions need more memory"}
    assert "need more memory" in found["text"]
