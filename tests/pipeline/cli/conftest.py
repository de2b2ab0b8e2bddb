"""Fixtures for tests of the command line: run a command in this process; a network from PGN."""

import contextlib
import io
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli.main import main
from pipeline.samples.shipped import SAMPLE_DUMP
from tests.waiting import drop_slow_lines

COMMAND = [sys.executable, "-c", "from pipeline.cli.main import main; main()"]
SMALLEST_PRESET = ["--preset", "fianchetto-xs"]
STEPS = ["--steps", "40", "--batch-size", "32"]
"""Length of a training whose network is half as good again as chance."""


def invoke(*words: str, stdin: bytes = b"") -> tuple[int, str, str]:
    """Run a command in this process; return exit status, standard output and standard error.

    The signal handlers that the command sets are removed again.
    """
    out, error = (io.TextIOWrapper(io.BytesIO(), write_through=True) for _ in range(2))
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(error),
    ):
        patch.setattr(sys, "argv", ["fianchetto", *words])
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        try:
            with pytest.raises(SystemExit) as ended:
                main()
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
    out_text, error_text = (stream.buffer.getvalue().decode() for stream in (out, error))
    return int(ended.value.code or 0), out_text, error_text


class CommandRunner:
    """Runs commands, in which {net} and {positions} stand for results of `journey`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.paths = {name: str(folder / name) for name in ("net", "positions")}

    def __call__(self, *words: str) -> tuple[int, str, str]:
        return invoke(*(word.format(**self.paths) for word in words))

    def lines(self, *words: str) -> list[str]:
        """Run a command that must succeed, and return the printed lines."""
        code, out, error = self(*words)
        assert code == 0, error
        return out.splitlines()

    def json(self, *words: str) -> Any:
        """Return the JSON object that a command prints."""
        return json.loads(self.lines(*words, "--json")[-1])


@pytest.fixture(scope="session")
def run(journey: dict[str, Any]) -> CommandRunner:
    return CommandRunner(journey["folder"])


@pytest.fixture(scope="session")
def journey(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Ingest the sample, train a few steps and report; return each result, and the folder.

    Tests do not change the folder. To save time, validations are small, and the report has no page.
    """
    folder = tmp_path_factory.mktemp("journey")
    net, positions = str(folder / "net"), str(folder / "positions")
    report = ["--checkpoint", net, "--positions", positions, "--limit", "1000"]
    commands = (
        ["ingest", str(SAMPLE_DUMP), "--out", positions, "--workers", "1"],
        ["train", "--positions", positions, "--out", net, *STEPS, *SMALLEST_PRESET],
        ["report", *report, "--out", str(folder / "report")],
    )
    results: dict[str, Any] = {"folder": folder}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("model.training.loop.VALIDATION_POSITIONS", 512)
        patch.setattr("pipeline.evaluation.render.render_report", lambda *_: b"<!doctype html>")
        for words in commands:
            code, out, error = invoke(*words, "--json")
            assert code == 0, error
            assert drop_slow_lines(error) == "", "a command is quiet without a terminal"
            results[words[0]] = json.loads(out.splitlines()[-1])
    return results
