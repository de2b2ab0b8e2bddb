"""`import fianchetto`: its functions, and its error if a file shadows one of its packages."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import chess
import numpy as np
import polars as pl
import pytest

import fianchetto
from engine.errors import UserError
from tests.conftest import REPOSITORY
from tests.pipeline.datasets import random_game


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a dump and a dataset from it."""
    folder = tmp_path_factory.mktemp("api")
    (folder / "dump.pgn").write_text("\n".join(random_game(seed) for seed in range(40)))
    config = fianchetto.IngestConfig(val_share=0.1, test_share=0.3)
    fianchetto.ingest(str(folder / "dump.pgn"), folder / "positions", config, workers=1)
    return folder


def test_a_dataset_is_read_and_the_embedded_network_plays(folder: Path) -> None:
    positions = folder / "positions"
    stored = pl.read_parquet(positions / "train-*.parquet")
    assert fianchetto.read_manifest(positions)["positions"]["train"] == len(stored)
    dataset = fianchetto.open_dataset([positions], batch_size=16)
    batch = next(dataset.from_step(0))
    assert (batch["planes"].shape, batch["planes"].dtype) == ((16, 77), np.uint64)
    epoch = list(dataset)
    assert len(epoch) == len(dataset)
    columns = (np.concatenate([batch[name] for batch in epoch]) for name in ("game", "ply"))
    rows = sorted(zip(*columns, strict=True))
    assert rows == sorted(stored.select("game", "ply").iter_rows()), "an epoch has every row once"
    assert len(fianchetto.rows(positions, count=3)) == 3
    player, board = fianchetto.load(device="cpu"), chess.Board()
    assert player.choose(board).move in board.legal_moves


def test_a_network_is_trained_and_measured(folder: Path, tmp_path: Path) -> None:
    config = fianchetto.TrainConfig(steps=2, batch_size=16, device="cpu")
    positions, network = folder / "positions", tmp_path / "network"
    assert fianchetto.train(positions, network, config, preset="fianchetto-xs")["step"] == 2
    rule = fianchetto.PositionFilter(limit=50)
    assert fianchetto.report(network, positions, rule=rule)["positions"] == 50


def test_errors_name_the_wrong_argument(folder: Path, tmp_path: Path) -> None:
    positions, out = folder / "positions", tmp_path / "out"
    config = fianchetto.TrainConfig(steps=1, batch_size=4)
    calls: list[tuple[Any, str]] = [
        *((lambda one=one: fianchetto.ingest(one, out), "sources must be") for one in (5, b"x")),
        (lambda: fianchetto.ingest([5], out), "sources must be a path or a list of paths"),
        (lambda: fianchetto.ingest("x.pgn", out, {"min_elo": 1500}), "fianchetto.IngestConfig"),
        *((lambda one=one: fianchetto.rows(positions, count=one), "count") for one in (0, "3")),
        (lambda: fianchetto.open_dataset(positions, folder / "." / "positions"), "named twice"),
        (lambda: fianchetto.train([positions] * 2, out, config), "named twice"),
        (lambda: fianchetto.IngestConfig(speeds="blitz"), "speeds"),
        (lambda: fianchetto.IngestConfig(seed=True), "seed"),
    ]
    for call, words in calls:
        with pytest.raises(UserError, match=words):
            call()


def test_only_the_api_is_listed() -> None:
    assert dir(fianchetto) == sorted(fianchetto.__all__)
    assert all(getattr(fianchetto, name) is not None for name in dir(fianchetto))


def test_a_file_that_shadows_a_package_is_named(tmp_path: Path) -> None:
    (tmp_path / "engine.py").write_text("weights = 'mine'\n")
    code = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(REPOSITORY)!r}]; import fianchetto"
    command = [sys.executable, "-c", code]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert process.returncode == 1
    assert f"{tmp_path / 'engine'}.py shadows" in process.stderr.splitlines()[-1]
