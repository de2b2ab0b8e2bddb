"""`fianchetto warmup` compiles all kernels that common commands need."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.samples.shipped import SAMPLE_DUMP
from tests.conftest import REPOSITORY


@pytest.mark.slow
def test_nothing_compiles_after_a_warmup(tmp_path: Path) -> None:
    environment = os.environ | {
        "NUMBA_CACHE_DIR": str(tmp_path / "kernels"),
        "PYTHONPATH": str(REPOSITORY),
    }

    def run(*words: str, stdin: str = "") -> str:
        command = [sys.executable, "-m", "pipeline", *words]
        options = {"capture_output": True, "text": True, "timeout": 480}
        done = subprocess.run(command, env=environment, input=stdin, check=False, **options)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    assert "kernels" in run("warmup")
    printed = run("uci", stdin="isready\nposition startpos\ngo nodes 50\nquit\n")
    for planes in ("all", "compact"):
        positions, network = str(tmp_path / planes), str(tmp_path / f"net-{planes}")
        options = ("--planes", planes, "--workers", "1")
        printed += run("ingest", str(SAMPLE_DUMP), "--out", positions, *options)
        options = ("--steps", "2", "--preset", "fianchetto-xs")
        printed += run("train", "--positions", positions, "--out", network, *options)
        options = ("--checkpoint", network, "--limit", "200")
        printed += run("report", "--positions", positions, *options)
    assert "compiling" not in printed
