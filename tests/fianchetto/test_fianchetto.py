"""`import fianchetto`: what it hands on, and what it says where somebody's file has the name of one
of our packages."""

import os
import subprocess
import sys
from pathlib import Path

import chess
import numpy as np
import polars as pl
import pytest

import fianchetto
from engine.errors import UserError
from tests import forked
from tests.conftest import REPOSITORY
from tests.pipeline.datasets import random_game


def test_a_dataset_is_made_opened_and_played_from(tmp_path: Path) -> None:
    dump = tmp_path / "dump.pgn"
    dump.write_text("\n".join(random_game(seed) for seed in range(8)))
    out = tmp_path / "positions"
    manifest = fianchetto.ingest([str(dump)], out, workers=1)
    assert fianchetto.read_manifest(out)["positions"] == manifest["positions"]
    dataset = fianchetto.open_dataset(out, batch_size=16)
    batch = next(dataset.from_step(0))
    assert batch["planes"].shape == (16, 77)
    assert batch["planes"].dtype == np.uint64
    epoch = list(dataset)
    assert len(epoch) == len(dataset)
    columns = (np.concatenate([one[name] for one in epoch]) for name in ("game", "ply"))
    rows = sorted(zip(*columns, strict=True))
    stored = pl.read_parquet(out / "train-*.parquet")
    assert rows == sorted(stored.select("game", "ply").iter_rows()), "an epoch has every row once"
    board = chess.Board()
    player = fianchetto.load(device="cpu")
    assert player.choose(board).move in board.legal_moves
    assert (
        player.choose("startpos", 0, rating=1500).move
        == player.choose(board.fen(), 0, rating=1500).move
    )
    assert fianchetto.__version__


def test_a_board_or_a_rating_that_cannot_be_is_a_clear_error() -> None:
    player = fianchetto.load(device="cpu")
    with pytest.raises(UserError, match="elo is -5"):
        player.choose("startpos", rating=-5)
    with pytest.raises(UserError, match="not a FEN: 'e4'"):
        player.choose("e4")


def test_a_network_is_trained_and_measured(tmp_path: Path) -> None:
    dump = tmp_path / "dump.pgn"
    dump.write_text("\n".join(random_game(seed) for seed in range(40)))
    shares = fianchetto.IngestConfig(val_share=0.1, test_share=0.3)
    fianchetto.ingest([dump], tmp_path / "positions", shares, workers=1)
    config = fianchetto.TrainConfig(steps=2, batch_size=16, device="cpu")
    card = fianchetto.train(
        tmp_path / "positions", tmp_path / "network", config, preset="fianchetto-xs"
    )
    assert card["step"] == 2
    rule = fianchetto.Rule(limit=50)
    found = fianchetto.report(tmp_path / "network", tmp_path / "positions", rule=rule)
    assert found["positions"] == 50


INGEST = """
import fianchetto

shares = fianchetto.IngestConfig(val_share=0.1, test_share=0.3)
fianchetto.ingest(["dump.pgn"], "positions", shares, workers=2)
"""
SAY = "print('rows', fianchetto.read_manifest('positions')['positions']['total'])\n"


@pytest.mark.parametrize("way", ["script", "stdin", "notebook"])
def test_a_plain_program_needs_no_guard(way: str, tmp_path: Path) -> None:
    """Workers that ran the script again would start workers themselves, and so on."""
    (tmp_path / "dump.pgn").write_text("\n".join(random_game(seed) for seed in range(40)))
    text, start = INGEST + SAY, subprocess.run
    words = ["-"]
    if way == "script":
        (tmp_path / "script.py").write_text(text)
        words = ["script.py"]
    elif way == "notebook":
        words, start = ["-c", f"exec({text!r}, {{'__name__': '__main__'}})"], forked.run
    done = start(
        [sys.executable, *words],
        input=text if way == "stdin" else None,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["rows"]
    assert "Error" not in done.stderr


def test_one_path_is_taken_for_a_list_and_nothing_else_is(tmp_path: Path) -> None:
    dump = tmp_path / "dump.pgn"
    dump.write_text("\n".join(random_game(seed) for seed in range(8)))
    one, two = tmp_path / "text", tmp_path / "list"
    made = fianchetto.ingest(str(dump), one, workers=1)
    assert fianchetto.ingest([dump], two, workers=1) == made
    both = fianchetto.open_dataset([one, two], batch_size=16)
    assert len(both) == len(fianchetto.open_dataset(one, two, batch_size=16))
    for wrong in (5, None, [5], {"a": 1}, b"x"):
        with pytest.raises(UserError, match="sources must be a path or a list of paths"):
            fianchetto.ingest(wrong, tmp_path / "wrong")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="IngestConfig"):
        fianchetto.ingest(dump, tmp_path / "wrong", {"min_elo": 1500})  # type: ignore[arg-type]
    for count in (-1, 0, 1.5, "3", True):
        with pytest.raises(UserError, match="count must be"):
            fianchetto.rows(one, count=count)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="named twice"):
        fianchetto.open_dataset(one, tmp_path / "." / "text")
    config = fianchetto.TrainConfig(steps=1, batch_size=4)
    with pytest.raises(UserError, match="named twice"):
        fianchetto.train([one, one], tmp_path / "network", config)


@pytest.mark.parametrize(
    "settings",
    [
        {"player": "me"},
        {"speeds": "blitz"},
        {"min_elo": "1500"},
        {"min_elo": 1500.5},
        {"seed": True},
        {"sample": "0.5"},
        {"rated_only": 1},
        {"terminations": ("resigned",)},
    ],
)
def test_settings_of_another_type_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(UserError, match=next(iter(settings))):
        fianchetto.IngestConfig(**settings)  # type: ignore[arg-type]


def test_only_the_api_is_listed() -> None:
    assert dir(fianchetto) == sorted(fianchetto.__all__)
    assert all(getattr(fianchetto, name) is not None for name in dir(fianchetto))


def test_importing_it_is_light() -> None:
    code = (
        "import sys, fianchetto; sys.exit(bool({'numpy', 'numba', 'torch', 'pyarrow'} & "
        "set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=False).returncode == 0


def test_a_file_of_ones_own_that_hides_a_package_is_named(tmp_path: Path) -> None:
    name = "engine"
    (tmp_path / f"{name}.py").write_text("weights = 'mine'\n")
    code = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(REPOSITORY)!r}]; import fianchetto"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert f"{tmp_path / name}.py hides" in done.stderr.splitlines()[-1]
