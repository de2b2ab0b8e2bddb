"""`import fianchetto`: what it hands on, and what it says where somebody's file has the name of one of our packages."""

import subprocess
import sys
from pathlib import Path

import chess
import numpy as np
import pytest

import fianchetto
from tests.conftest import REPOSITORY
from tests.pipeline.datasets import random_game


def test_a_dataset_is_made_opened_and_played_from(tmp_path: Path) -> None:
    dump = tmp_path / "dump.pgn"
    dump.write_text("\n".join(random_game(seed) for seed in range(8)))
    out = tmp_path / "positions"
    manifest = fianchetto.ingest([str(dump)], out, workers=1)
    assert fianchetto.read_manifest(out)["positions"] == manifest["positions"]
    batch = next(fianchetto.open_dataset(out, batch_size=16).from_step(0))
    assert batch["planes"].shape == (16, 77)
    assert batch["planes"].dtype == np.uint64
    board = chess.Board()
    assert fianchetto.load(device="cpu").choose(board).move in board.legal_moves
    assert fianchetto.__version__


def test_importing_it_is_light() -> None:
    code = "import sys, fianchetto; sys.exit(bool({'numpy', 'numba', 'torch', 'pyarrow'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=False).returncode == 0


@pytest.mark.parametrize("name", ["model", "engine", "pipeline"])
def test_a_file_of_ones_own_that_hides_a_package_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / f"{name}.py").write_text("weights = 'mine'\n")
    code = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(REPOSITORY)!r}]; import fianchetto"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: {tmp_path / name}.py hides Fianchetto's package {name!r}: rename it, or work from another folder"
    )
