"""Ctrl-C and SIGTERM: a command prints one line, keeps its work, and exits by the signal."""

import json
import os
import signal
import sys
import tempfile
from contextlib import nullcontext
from importlib import import_module
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import pytest

from engine.progress import Tick
from pipeline.cli.commands.base import StopOnSignal, raise_interrupt
from tests.pipeline.cli.conftest import SMALLEST_PRESET, invoke
from tests.pipeline.datasets import dump as random_dump
from tests.waiting import drop_slow_lines


def raise_signal_at_first_call(
    monkeypatch: pytest.MonkeyPatch, module: str, name: str, number: signal.Signals
) -> None:
    """Send this process a signal at the first call of a module's function."""
    function = getattr(import_module(module), name)

    def raise_and_call(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(f"{module}.{name}", function)
        signal.raise_signal(number)
        return function(*arguments, **options)

    monkeypatch.setattr(f"{module}.{name}", raise_and_call)


def test_ctrl_c_during_training_saves_the_weights(
    journey: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def show(tick: Tick) -> None:
        if tick.done and not StopOnSignal.received_signal:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("pipeline.cli.commands.base.show_progress", lambda _: nullcontext(show))
    words = ["--positions", str(journey["folder"] / "positions"), "--out", str(tmp_path)]
    code, _, error = invoke(
        "train", *words, *SMALLEST_PRESET, "--minutes", "10", "--batch-size", "16"
    )
    assert code == 128 + signal.SIGINT
    (line,) = drop_slow_lines(error).splitlines()
    assert line.endswith("saved; run the same command to continue")
    card = json.loads((tmp_path / "checkpoint.json").read_text())
    assert card["step"] > 0
    assert not card["finished"]


def test_ctrl_c_during_an_ingest_leaves_it_resumable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raise_signal_at_first_call(monkeypatch, "pipeline.ingest.job", "note_name", signal.SIGINT)
    words = ["--out", str(tmp_path / "positions"), "--workers", "1"]
    code, _, error = invoke("ingest", str(random_dump(tmp_path / "games.pgn", 4)), *words)
    assert (code, error.count("\n")) == (128 + signal.SIGINT, 1), error
    assert "run the same command to continue" in error
    assert not (tmp_path / "positions" / "manifest.json").exists()


def test_sigterm_during_a_report_deletes_its_temporary_folder(
    journey: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    raise_signal_at_first_call(
        monkeypatch, "pipeline.evaluation.report", "measure_rows", signal.SIGTERM
    )
    pgn = str(random_dump(tmp_path / "games.pgn", 4))
    code, _, error = invoke("report", "--checkpoint", str(journey["folder"] / "net"), "--pgn", pgn)
    assert (code, error) == (128 + signal.SIGTERM, "fianchetto: interrupted\n")
    assert not list(tmp_path.glob("fianchetto-report-*"))


def test_a_signal_while_torch_is_imported_ends_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An exception would abort torch's C++ initialization."""

    def raise_exit(status: int) -> NoReturn:
        raise SystemExit(status)

    torch = ModuleType("torch")
    torch.__spec__ = ModuleSpec("torch", None)
    monkeypatch.setattr(torch.__spec__, "_initializing", True, raising=False)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(os, "_exit", raise_exit)
    with pytest.raises(SystemExit) as ended:
        raise_interrupt(signal.SIGTERM, None)
    assert ended.value.code == 128 + signal.SIGTERM
    assert capsys.readouterr().err == "fianchetto: interrupted\n"
