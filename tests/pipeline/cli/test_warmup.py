"""`fianchetto warmup` compiles all kernels that common commands need."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY


@pytest.mark.slow
def test_nothing_compiles_after_a_warmup(tmp_path: Path) -> None:
    environment = os.environ | {
        "NUMBA_CACHE_DIR": str(tmp_path / "kernels"),
        "PYTHONPATH": str(REPOSITORY),
    }

    def run(*words: str, typed: str = "") -> str:
        command = [sys.executable, "-m", "pipeline", *words]
        done = subprocess.run(
            command,
            env=environment,
            input=typed,
            capture_output=True,
            text=True,
            check=False,
            timeout=480,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    assert "kernels" in run("warmup")
    sample = REPOSITORY / "datasets" / "sample" / "fianchetto_sample_2000.pgn.zst"
    quiet = run("ingest", str(sample), "--out", str(tmp_path / "positions"), "--workers", "1")
    quiet += run("uci", typed="isready\nposition startpos\ngo nodes 50\nquit\n")
    compact = ("--planes", "compact", "--out", str(tmp_path / "compact"))
    quiet += run("ingest", str(sample), *compact, "--workers", "1")
    for form in ("positions", "compact"):
        network, rows = str(tmp_path / f"net-{form}"), ["--positions", str(tmp_path / form)]
        quiet += run("train", *rows, "--steps", "2", "--preset", "fianchetto-xs", "--out", network)
        quiet += run("report", *rows, "--checkpoint", network, "--limit", "200")
    assert "compiling" not in quiet
