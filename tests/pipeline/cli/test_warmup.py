"""Kernels are compiled in advance: all of them, or those of the first network."""

import os
import shutil
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


@pytest.mark.slow
def test_the_first_network_compiles_all_that_it_needs_before_its_steps(tmp_path: Path) -> None:
    environment = os.environ | {
        "NUMBA_CACHE_DIR": str(tmp_path / "kernels"),
        "DAGSTER_HOME": str(tmp_path),
        "FIANCHETTO_DATASETS": str(tmp_path / "datasets"),
    }
    shutil.copy(REPOSITORY / "dagster_home" / "dagster.yaml", tmp_path)
    shutil.copytree(REPOSITORY / "datasets" / "sample", tmp_path / "datasets" / "sample")
    done = subprocess.run(
        [sys.executable, "-m", "pipeline.defs.first_network", "--minutes", "0.1"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
        timeout=480,
    )
    compiling, _, steps = done.stdout.partition("get_games ...")
    assert "compiling" in compiling
    assert "report: " in steps
    assert "compiling" not in steps
