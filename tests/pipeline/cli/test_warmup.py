"""Kernels are compiled in advance: all of them, or those of the first network."""

import os
import shutil
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
