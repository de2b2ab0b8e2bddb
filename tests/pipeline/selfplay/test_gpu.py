"""Self-play on a simulated GPU: the number of processes, and the GPU's utilization."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch

from pipeline.selfplay import job
from pipeline.selfplay.config import ExploreConfig
from pipeline.selfplay.worker import Task

GIB = 1 << 30


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Task:
    monkeypatch.setattr(job, "count_cores", lambda: 16)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    paths = {"journal": tmp_path, "run_file": tmp_path / "run", "checkpoint": tmp_path}
    return Task(numbers=(0,), config=ExploreConfig(device="cuda"), owner=None, **paths)


@pytest.mark.parametrize(
    ("gpu", "host", "processes"), [(80, 200, 16), (16, 200, 5), (80, 12, 4), (2, 200, 1)]
)
def test_the_number_of_processes_depends_on_cores_and_memory(
    task: Task, gpu: int, host: int, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (gpu * GIB, 80 * GIB))
    memory = SimpleNamespace(available=host * GIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    assert job._default_processes(task) == processes
    onnx = replace(task, config=ExploreConfig(device="onnx"))
    assert job._default_processes(onnx) == 16, "onnx runs on the CPU"


@pytest.mark.parametrize(("script", "share"), [("echo 40", 0.4), ("echo '[N/A]'", None)])
def test_the_driver_reports_how_busy_a_gpu_is(
    script: str, share: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\necho called >> {tmp_path}/calls\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    described = SimpleNamespace(uuid="1234")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: described)
    meter = job.GpuMeter()
    for _ in range(3):
        assert meter.read() == ({} if share is None else {"gpu_busy": share})
    assert len((tmp_path / "calls").read_text().split()) == 1, "one sample every few seconds"
