"""Metrics in experiment trackers equal metrics.jsonl.

TensorBoard's own files are read back where it is installed. Weights & Biases and MLflow are
replaced by modules that record the calls: their servers are not available to a test.
"""

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from model.training.config import TrainConfigError
from model.training.monitor import read_metrics
from tests.model.training.test_loop import CONFIG, run

MetricsByStep = dict[int, dict[str, float]]


def read_by_step(folder: Path) -> MetricsByStep:
    """Return the metrics of metrics.jsonl by step."""
    by_step: MetricsByStep = {}
    for line in read_metrics(folder):
        by_step.setdefault(line.pop("step"), {}).update(line)
    return by_step


def make_module(name: str, written: MetricsByStep, ended: list[str]) -> ModuleType:
    """Return a module with the functions of wandb and mlflow that training calls."""
    module: Any = ModuleType(name)
    module.__spec__ = SimpleNamespace()

    def log(metrics: dict[str, float], step: int) -> None:
        written.setdefault(step, {}).update(metrics)

    module.init = lambda **_: SimpleNamespace(log=log, finish=lambda: ended.append(name))
    module.set_experiment = module.start_run = lambda *_, **__: None
    module.log_metrics, module.end_run = log, lambda: ended.append(name)
    return module  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_tracker_receives_the_lines_of_the_metrics(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, ended = MetricsByStep(), list[str]()
    monkeypatch.setitem(sys.modules, name, make_module(name, written, ended))
    run(tmp_path, replace(CONFIG, log=name))
    assert written == read_by_step(tmp_path)
    assert any("validation_top1" in metrics for metrics in written.values())
    assert ended == [name]


def test_tensorboard_reads_the_same_metrics(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run(tmp_path, replace(CONFIG, log="tensorboard", steps=8))
    run(tmp_path, replace(CONFIG, log="tensorboard"))
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    found: MetricsByStep = {}
    for tag in events.Tags()["scalars"]:
        for event in events.Scalars(tag):
            found.setdefault(event.step, {})[tag] = event.value
    expected = read_by_step(tmp_path)
    assert found.keys() == expected.keys()
    for step, metrics in expected.items():
        assert found[step] == pytest.approx(metrics, rel=1e-6)


def test_a_missing_tracker_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("model.training.monitor.find_spec", lambda name: None)
    with pytest.raises(TrainConfigError, match="pip install tensorboard"):
        run(tmp_path / "net", replace(CONFIG, log="tensorboard"))
    assert not (tmp_path / "net").exists()
