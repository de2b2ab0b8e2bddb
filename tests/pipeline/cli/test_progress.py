"""Progress on a terminal and in a log file, with a fake clock."""

import io
import sys
import time

import pytest

from engine.progress import Tick
from pipeline.cli import progress

STAGES = (("self-play", 1, 5), ("train", 1, 3), ("gate", 1, 4), ("gate", 2, 2))
"""Name, first tick and last tick of each stage of a command."""


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_a_finished_stage_keeps_its_bar_and_elapsed_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, terminal = [1000.0], Terminal()
    for module in ("time", "tqdm.std"):
        monkeypatch.setattr(f"{module}.time", lambda: clock[0])
    monkeypatch.setenv("COLUMNS", "141")
    monkeypatch.setenv("LINES", "41")
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress.show_progress("finetune") as show:
        for name, first, total in STAGES:
            for done in range(first, total + 1):
                clock[0] += 1.0
                figures = {"generation": 1, "loss": 2.5} if name == "train" else {"generation": 1}
                show(Tick(done, total, "games", figures, f"generation 1: {name}"))
            clock[0] += 3600.0  # the stage compiles or writes without reporting progress
    lines = terminal.getvalue().replace("\x1b[A", "").split("\n")
    assert [line.split("\r")[-1].rstrip() for line in lines if line.strip()] == [
        "finetune generation 1: self-play 100 %|██████████| 5.00 games  00:04<00:00",
        "finetune generation 1: train 100 %|██████████| 3.00 games  00:02<00:00, loss=2.5",
        "finetune generation 1: gate 100 %|██████████| 4.00 games  00:03<00:00",
        "finetune generation 1: gate 100 %|██████████| 2.00 games  00:00<?",
    ]


def test_without_a_terminal_a_line_is_printed_every_45_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    with progress.show_progress("ingest") as show:
        for second in range(100):
            clock[0] = float(second)
            figures = {"positions": second * 10**5, "positions/s": 1.25e5}
            show(Tick(second * 10**7, 2 * 10**9, "B", figures))
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("fianchetto: ingest  22 %|##2       | 450MB  ")
    assert second.startswith("fianchetto: ingest  45 %|####5     | 900MB  ")
    assert second.endswith(", positions=9.00M, positions/s=125k")
