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

Lines = dict[int, dict[str, float]]


def lines_of(folder: Path) -> Lines:
    """Return the figures of metrics.jsonl by step."""
    found: Lines = {}
    for line in read_metrics(folder):
        figures = {name: value for name, value in line.items() if name != "step"}
        found.setdefault(line["step"], {}).update(figures)
    return found


def module(name: str, written: Lines, ended: list[str]) -> ModuleType:
    """Return a module with the functions of wandb and mlflow that training calls."""
    made: Any = ModuleType(name)
    made.__spec__ = SimpleNamespace()

    def log(figures: dict[str, float], step: int) -> None:
        written.setdefault(step, {}).update(figures)

    made.init = lambda **_: SimpleNamespace(log=log, finish=lambda: ended.append(name))
    made.set_experiment = made.start_run = lambda *_, **__: None
    made.log_metrics, made.end_run = log, lambda: ended.append(name)
    return made  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_tracker_receives_the_lines_of_the_metrics(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, ended = Lines(), list[str]()
    monkeypatch.setitem(sys.modules, name, module(name, written, ended))
    run(tmp_path, replace(CONFIG, log=name))
    assert written == lines_of(tmp_path)
    assert any("validation_top1" in figures for figures in written.values())
    assert ended == [name]


def test_tensorboard_reads_the_same_figures(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run(tmp_path, replace(CONFIG, log="tensorboard", steps=8))
    run(tmp_path, replace(CONFIG, log="tensorboard"))
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    found: Lines = {}
    for tag in events.Tags()["scalars"]:
        for event in events.Scalars(tag):
            found.setdefault(event.step, {})[tag] = event.value
    expected = lines_of(tmp_path)
    assert found.keys() == expected.keys()
    for step, figures in expected.items():
        assert found[step] == pytest.approx(figures, rel=1e-6)


def test_a_missing_tracker_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("model.training.monitor.find_spec", lambda name: None)
    with pytest.raises(TrainConfigError, match="pip install tensorboard"):
        run(tmp_path / "net", replace(CONFIG, log="tensorboard"))
    assert not (tmp_path / "net").exists()
